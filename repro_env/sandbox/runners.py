"""Find the class of a runner by its name: the only place that knows which class that is. Modules of runners are slow to import."""

from __future__ import annotations

from repro_env.sandbox.runner import Runner
from repro_env.schema.runners import RunnerName


def runner_class(name: RunnerName) -> type[Runner]:
    """Return the class of a runner."""
    match name:
        case "embedded":
            from repro_env.sandbox.embedded.runner import EmbeddedRunner

            return EmbeddedRunner
        case "docker":
            from repro_env.sandbox.docker.runner import DockerRunner

            return DockerRunner
        case "charliecloud":
            from repro_env.sandbox.programs.charliecloud import CharliecloudRunner

            return CharliecloudRunner
        case "apptainer":
            from repro_env.sandbox.programs.apptainer import ApptainerRunner

            return ApptainerRunner
        case "host":
            from repro_env.sandbox.host import HostRunner

            return HostRunner
        case "pod":
            from repro_env.sandbox.pod import PodRunner

            return PodRunner
