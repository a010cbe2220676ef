"""Runners that start a program which makes the container, as clusters have them: one file per program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repro_env.sandbox.programs.runner import ProgramRunner

NAMES = ("charliecloud", "apptainer")
"""The values of `exec --runner` for them."""


def runner_class(name: str) -> type[ProgramRunner]:
    """Return the runner with one of `NAMES`."""
    if name == "charliecloud":  # slow to import, like the other one
        from repro_env.sandbox.programs.charliecloud import CharliecloudRunner

        return CharliecloudRunner
    from repro_env.sandbox.programs.apptainer import ApptainerRunner

    return ApptainerRunner
