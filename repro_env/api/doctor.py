"""The command `repro-env doctor`: try what runs need, and diagnose problems."""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.sandbox import doctor, runners, trial
from repro_env.sandbox.doctor import Finding, Observations
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import PlatformError, UsageError
from repro_env.schema.runners import CHOICES, DEFAULT, RunnerName


class Diagnosis(Frozen, frozen=True, kw_only=True):
    works: bool
    """Whether `exec` works on this machine, perhaps with a fallback."""
    findings: tuple[Finding, ...]
    alternatives: tuple[str, ...]
    """What still works if runs in the image are blocked; empty if they are not."""
    observations: Observations
    runners: tuple[RunnerName, ...]
    """Other runners that start a tiny run here."""


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
        findings = (*findings, trial.try_run(runners.runner_class(DEFAULT), run, store, runs))
    others: dict[RunnerName, Finding] = {}
    for runner in map(runners.runner_class, CHOICES):
        if (found := runner.find()) is not None:
            others[runner.name] = trial.try_run(runner, found, store, runs)
    working = tuple(name for name, finding in others.items() if finding.state == "ok")
    return Diagnosis(
        works=doctor.works(findings),
        findings=(*findings, *others.values(), doctor.find_network()),
        alternatives=doctor.alternatives(findings, working),
        observations=observations,
        runners=working,
    )
