"""Slurm: a job script for `sbatch`, states from `squeue` or `sacct`, and what the tasks of a step know of each other.

`settings` are what `--job` can set, `engine` has the directives, `client` asks Slurm's commands, and `states` parses their answers.
"""

from __future__ import annotations

from repro_env.launch.slurm.engine import SlurmEngine

ENGINE = SlurmEngine()
