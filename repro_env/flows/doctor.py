"""The story of `doctor`: try, diagnose, answer."""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.model.codec import Frozen
from repro_env.model.errors import PlatformError, UsageError
from repro_env.run import diagnosis, doctor, engines
from repro_env.run.diagnosis import Finding
from repro_env.run.engines import Met
from repro_env.run.observations import Observations


class Diagnosis(Frozen, frozen=True, kw_only=True):
    works: bool
    """`exec` will run here, perhaps with a fall-back."""
    findings: tuple[Finding, ...]
    alternatives: tuple[str, ...]
    """What works although runs in the image are blocked; empty where they are not."""
    observations: Observations
    engines: tuple[Met, ...]


def examine(store: Path, runs: Path) -> Diagnosis:
    """Try what a run with its folder in `runs` and its layers in `store` needs. Raises `UsageError`, `PlatformError`."""
    if os.uname().sysname != "Linux":
        raise PlatformError(
            f"runs need Linux, and this is {os.uname().sysname}", where="this machine", hint="run repro-env on a Linux machine"
        )
    if not runs.is_dir():
        raise UsageError("is no folder", where=str(runs), hint="name the folder that runs will be kept in: doctor --for DIR")
    observations = doctor.observe(store, runs.resolve())
    findings = diagnosis.diagnose(observations)
    met = engines.meet(os.environ)
    alternatives = diagnosis.alternatives(findings, engine=any(one.product and not one.problem for one in met))
    findings += engines.findings(met)
    return Diagnosis(
        works=diagnosis.works(findings),
        findings=findings,
        alternatives=alternatives,
        observations=observations,
        engines=met,
    )
