"""Grid Engine as an engine: the directives of a job script for `qsub`, and the facts that a job has of itself."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from repro_env.launch import nodescript
from repro_env.launch.engine import NodeJob, Resources
from repro_env.launch.gridengine.client import GridEngine
from repro_env.launch.gridengine.settings import GridEngineSettings
from repro_env.launch.nodes import WARNING, NodeEngine
from repro_env.schema.errors import UsageError
from repro_env.schema.patterns import lazy
from repro_env.schema.run import Job

PREFIX = "#$"
_STARTER = Path(__file__).with_name("start.sh")
_OPTION = lazy(r"-(?:l|q|hard|soft|p|P|a|A|hold_jid|m|M|ac|dc|sc|ar|binding|R|js|masterq|u|v|ckpt|dl|h)(?: .*)?")
"""Options of qsub that a template may have: the others decide what a job is, or this module does."""


class GridEngineEngine(NodeEngine[GridEngineSettings]):
    """See `Engine`."""

    name = "gridengine"
    settings = GridEngineSettings
    client_type = GridEngine
    job_variables = ("JOB_ID", "HOSTNAME", "REPRO_ENV_JOB_RESTARTS")  # the last one is of `start.sh`
    dialect = nodescript.Dialect(PREFIX)

    def requests_gpus(self, settings: GridEngineSettings, template: str) -> bool:
        """See `Engine`."""
        return any(re.search(rf"[ ,]{re.escape(settings.gpu_resource)}=", option) for option in _options_of(template))

    def job_of(self, environ: Mapping[str, str]) -> Job | None:
        """See `Engine`. Other schedulers have JOB_ID too."""
        return super().job_of(environ) if "SGE_ROOT" in environ else None

    def starter(self, job: NodeJob, resources: Resources, settings: GridEngineSettings) -> list[str]:
        """See `NodeEngine`. It also counts the starts of a job, and queues it again."""
        directory, processes = f"{job.jobs}/{job.runs[0][0]}", settings.tasks_per_node
        warning = resources.seconds - WARNING if settings.requeue and resources.seconds else 0
        return ["bash", str(_STARTER), directory, *(str(int(value)) for value in (processes, settings.requeue, warning))]

    def directives(self, job: NodeJob, resources: Resources, settings: GridEngineSettings, template: str) -> list[str]:
        """See `NodeEngine`."""
        if resources.nodes > 1:
            raise UsageError("--on gridengine does not support several nodes", hint="leave out --nodes")
        outputs = nodescript.outputs(job)
        if set(outputs[0]) & set("',:$"):
            what = "this path has a quote, a comma, a colon or a dollar sign, which has another meaning in a path for Grid Engine"
            raise UsageError(what, where=outputs[0], hint="put the runs into another directory (--runs DIR)")
        given = [name for option, name in zip(job.command, job.command[1:], strict=False) if option == "--env"]
        if given and not settings.show_variables:
            hint = "if they may, add --job show-variables; otherwise let the command read the value from a file"
            raise UsageError(
                "all users of the cluster can read the variables of a job (`qstat -j`)", where=f"--env {given[0]}", hint=hint
            )
        slots = max(1, math.ceil(resources.cpus)) * settings.tasks_per_node
        requests = {
            settings.gpu_resource: resources.gpus,
            settings.memory_resource: resources.memory and f"{-(-resources.memory // slots) >> 10}K",
            "h_rt": resources.seconds,
        }
        settings.check_warning(resources.seconds)
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", job.name)
        lines = [f"-N {name if name[0].isalpha() else f'_{name}'}", "-S /bin/bash", "-wd /", "-notify"]
        lines += [f'-{option} "{path}"' for option, path in zip("oe", outputs, strict=True)]
        lines += [f"-r {'y' if settings.requeue else 'n'}", f"-v {','.join(['PATH', *given])}"]
        lines += [f"-q {settings.queue}"] if settings.queue else []
        lines += [f"-P {settings.project}"] if settings.project else []
        lines += [f"-pe {settings.parallel_environment} {slots}"] if slots > 1 else []
        lines += [f"-l {resource}={value}" for resource, value in requests.items() if value]
        return [*lines, *_options_of(template)]


def _options_of(template: str) -> list[str]:
    """Return the options of qsub in a template. Raises `UsageError` for one that this module decides."""
    found = nodescript.directives_of(template, PREFIX)
    for line in found:
        if not _OPTION.fullmatch(line):
            hint = f"write one option a line, for example {PREFIX} -l h=node1; use --job for queue, project, slots and restarts"
            raise UsageError("a template cannot have this option of qsub", where=f"--job-template: {PREFIX} {line}", hint=hint)
    return found
