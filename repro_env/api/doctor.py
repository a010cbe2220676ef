"""The command `repro-env doctor`: try what runs need, and diagnose problems."""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.sandbox import doctor, programs, trial
from repro_env.sandbox.doctor import Finding, Observations
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import PlatformError, UsageError


class Diagnosis(Frozen, frozen=True, kw_only=True):
    works: bool
    """Whether `exec` works on this machine, perhaps with a fallback."""
    findings: tuple[Finding, ...]
    alternatives: tuple[str, ...]
    """What still works if runs in the image are blocked; empty if they are not."""
    observations: Observations
    has_engine: bool
    """Whether there is a usable container engine."""


def examine(store: Path, runs: Path) -> Diagnosis:
    """Try what a run needs that is recorded in `runs` and has its layers in `store`. Raises `UsageError`, `PlatformError`."""
    if os.uname().sysname != "Linux":
        raise PlatformError(
            f"runs need Linux, but this is {os.uname().sysname}", where="this machine", hint="run repro-env on a Linux machine"
        )
    if not runs.is_dir():
        hint = "name the directory in which runs will be recorded: doctor --for DIR"
        raise UsageError("this path is not a directory", where=str(runs), hint=hint)
    runs = runs.resolve()
    observations = doctor.observe(store, runs)
    findings = doctor.diagnose(observations)
    if doctor.works(findings):
        run = Finding(name="run", state="ok", text="a tiny run starts and ends")
        findings = (*findings, trial.try_run("embedded", run, store, runs))
    engine = trial.try_run("docker", doctor.find_engine(), store, runs)
    programs_found = [trial.try_run(name, doctor.find_program(name), store, runs) for name in programs.NAMES]
    has_engine = engine.state == "ok"
    return Diagnosis(
        works=doctor.works(findings),
        findings=(*findings, engine, *programs_found, doctor.find_network()),
        alternatives=doctor.alternatives(findings, engine=has_engine),
        observations=observations,
        has_engine=has_engine,
    )
