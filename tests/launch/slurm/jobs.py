"""The script of a job with options."""

from __future__ import annotations

from tests.launch.nodejobs import ON_THE_NODE, RUN

GOLDEN = f"""\
#!/bin/bash
#SBATCH --job-name=train-0000abcd
#SBATCH --comment=repro-env:{RUN}
#SBATCH --output="/home/ann/digits/runs/.jobs/{RUN}/stdout.log"
#SBATCH --error="/home/ann/digits/runs/.jobs/{RUN}/stderr.log"
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --account=lab_1
#SBATCH --time=2160
#SBATCH --gpus-per-node=2
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --qos=high
# The run {RUN}. Written by repro-env.
trap '' USR1  # comes before the time limit; `exec` handles it from its start
block=(env --block-signal=USR1)              # keeps it until then
"${{block[@]}}" true 2>/dev/null || block=()   # coreutils before 8.31

{ON_THE_NODE}exec "${{block[@]}}" /opt/tool/bin/repro-env exec --run-id {RUN} --seed 7 -- train.py --lr 0.1
"""
