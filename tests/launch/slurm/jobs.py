"""A job and its script."""

from __future__ import annotations

from repro_env.launch.engine import NodeJob

RUN = "0197c1d2-0000-7000-8000-00000000abcd"
JOB = NodeJob(
    runs=((RUN, 7),),
    name="train-0000abcd",
    command=("/opt/tool/bin/repro-env", "exec"),
    words=("train.py", "--lr", "0.1"),
    directory="/home/ann/digits",
    jobs="/home/ann/digits/runs/.jobs",
    store="/home/ann/.cache/repro-env",
    needed=("/opt/tool/bin/repro-env", "/home/ann/.cache/repro-env"),
)
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

missing() {{
    echo "repro-env: error: $1 is not on the node $(hostname)" >&2
    echo "  -> the project, the store (REPRO_ENV_STORE) and repro-env must be on a file system that the nodes share" >&2
    exit 16
}}
for path in /opt/tool/bin/repro-env /home/ann/.cache/repro-env; do
    [ -e "$path" ] || missing "$path"
done
cd /home/ann/digits || missing /home/ann/digits
export REPRO_ENV_STORE=/home/ann/.cache/repro-env
exec "${{block[@]}}" /opt/tool/bin/repro-env exec --run-id {RUN} --seed 7 -- train.py --lr 0.1
"""
