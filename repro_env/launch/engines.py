"""The engines by name. A new one is a directory in `launch` and a name here."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import msgspec

from repro_env.launch.engine import TEMPLATE, Engine, Processes
from repro_env.schema import codec
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Job
from repro_env.schema.text import Digest

NAMES = ("slurm", "kubernetes", "gridengine")


@functools.cache
def get(name: str) -> Engine[Any]:
    """Return the engine with this name. Raises `UsageError` if there is none."""
    if name not in NAMES:
        raise UsageError(f'--on must be one of {", ".join(NAMES)} (got "{name}")', hint="leave it out to run on this machine")
    engine: Engine[Any] = importlib.import_module(f"repro_env.launch.{name}").ENGINE
    return engine


def job_of(environ: Mapping[str, str]) -> Job | None:
    """Return the job of an engine in which a process with this environment is; None if it is in none."""
    job = next(filter(None, (get(name).job_of(environ) for name in NAMES)), None)
    template = environ.get(TEMPLATE)
    return msgspec.structs.replace(job, template=template) if job is not None and codec.fits(template, Digest) else job


def processes_of(environ: Mapping[str, str]) -> Processes | None:
    """Return the processes of a job that share a run with the one that has this environment; None if there are none."""
    return next(filter(None, (get(name).processes_of(environ) for name in NAMES)), None)


def prefixes() -> tuple[str, ...]:
    """Return how the names of the variables begin that engines set in their jobs."""
    return tuple(prefix for name in NAMES for prefix in get(name).prefixes)
