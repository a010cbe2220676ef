"""Runners that start a program which makes the container, as clusters have them: one file per program."""

from repro_env.sandbox.programs.apptainer import ApptainerRunner
from repro_env.sandbox.programs.charliecloud import CharliecloudRunner
from repro_env.sandbox.programs.runner import ProgramRunner

RUNNERS: dict[str, type[ProgramRunner]] = {"charliecloud": CharliecloudRunner, "apptainer": ApptainerRunner}
"""By the name that `exec --runner` has for it."""
