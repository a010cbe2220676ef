"""Find the class of a runner by its name. Nothing else knows which class that is, and nothing is imported that a run does not need."""

from __future__ import annotations

import pkgutil

from repro_env.sandbox.runner import Runner
from repro_env.schema.runners import RunnerName

_CLASSES: dict[RunnerName, str] = {
    "embedded": "embedded.runner:EmbeddedRunner",
    "docker": "docker.runner:DockerRunner",
    "charliecloud": "programs.charliecloud:CharliecloudRunner",
    "apptainer": "programs.apptainer:ApptainerRunner",
    "host": "host:HostRunner",
    "pod": "pod:PodRunner",
}


def runner_class(name: RunnerName) -> type[Runner]:
    """Return the class of a runner."""
    found: type[Runner] = pkgutil.resolve_name(f"repro_env.sandbox.{_CLASSES[name]}")
    return found
