"""The engines by name. A new one is a directory in `launch` and a name here."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from repro_env.launch.engine import TEMPLATE, Engine, Processes
from repro_env.schema import codec
from repro_env.schema.errors import UsageError
from repro_env.schema.options import Option
from repro_env.schema.run import Job
from repro_env.schema.text import Digest

NAMES = {"slurm": ("SLURM_",), "kubernetes": ("REPRO_ENV_JOB", "REPRO_ENV_SHARED"), "gridengine": ("SGE_",)}
"""Name -> how the names of variables begin that its jobs have. The engine is not imported for a process without any of them."""
PREFIXES = tuple(prefix for prefixes in NAMES.values() for prefix in prefixes)


@functools.cache
def get(name: str) -> Engine[Any]:
    """Return the engine with this name. Raises `UsageError` if there is none."""
    if name not in NAMES:
        raise UsageError(f'--on must be one of {", ".join(NAMES)} (got "{name}")', hint="leave it out to run on this machine")
    engine: Engine[Any] = importlib.import_module(f"repro_env.launch.{name}").ENGINE
    return engine


def job_of(environ: Mapping[str, str]) -> Job | None:
    """Return the job of an engine in which a process with this environment is; None if it is in none."""
    job = next(filter(None, (engine.job_of(environ) for engine in _possible(environ))), None)
    template = environ.get(TEMPLATE)
    return msgspec.structs.replace(job, template=template) if job is not None and codec.fits(template, Digest) else job


def processes_of(environ: Mapping[str, str]) -> Processes | None:
    """Return the processes of a job that share a run with the one that has this environment; None if there are none."""
    return next(filter(None, (engine.processes_of(environ) for engine in _possible(environ))), None)


def _possible(environ: Mapping[str, str]) -> Iterator[Engine[Any]]:
    return (get(name) for name, prefixes in NAMES.items() if any(variable.startswith(prefixes) for variable in environ))


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The options of `exec` for a job, besides those of the run."""

    catalog: Annotated[
        str | None,
        Option("Push the run to this catalog when it has ended, like `repro-env runs push`.", "REF|DIR"),
    ] = msgspec.field(default=None, name="push")
    """None for the repository of the image, if a pod pushes the run."""
    engine: Annotated[
        Any,
        Option(
            f"Submit the run as a job. ENGINE is {' or '.join(NAMES)}.",
            "ENGINE",
            get,
        ),
    ] = msgspec.field(default=None, name="on")
    """A `NodeEngine` or a `PodEngine`; None for a run on this machine."""
    settings: Annotated[
        Sequence[str],
        Option(
            "Set what the job requests from its engine, such as partition=gpu; requires --on. `--job help` lists the settings. "
            "Repeatable.",
            "KEY=VALUE",
        ),
    ] = msgspec.field(default=(), name="job")
    template: Annotated[
        Path | None,
        Option(
            "Merge this file into the job: lines of a job script, or a part of a Kubernetes Job as YAML; requires --on.", "FILE"
        ),
    ] = msgspec.field(default=None, name="job-template")
    nodes: Annotated[
        int, Option("Use N nodes, whose processes share the run; requires --on. Default: 1.", "N", min=1, max=65536)
    ] = 1
    print: Annotated[bool, Option("Prepare the job and print it, but do not submit it; requires --on.")] = False
    wait: Annotated[bool, Option("Wait for the job, print its output, and exit with the command's exit code; requires --on.")] = (
        False
    )

    count: int = 1
    """How many runs with consecutive seeds, as the tasks of an array job."""
