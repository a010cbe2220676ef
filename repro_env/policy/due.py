"""What must be verified or retrained, and why. Pure: `api.due` reads the facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from repro_env.launch.settings import JOBS
from repro_env.policy.defaults import POLICY
from repro_env.policy.protocol import PROTOCOL, Evaluation
from repro_env.runs.records.verdicts import Last
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import UsageError
from repro_env.schema.messages import plural, shorten
from repro_env.schema.sources import Package

DUE = "due"
"""The key of the table with the settings."""
TABLES = (JOBS, POLICY, PROTOCOL, DUE)
"""All tables in `[tool.repro-env]`."""
Action = Literal["verify", "retrain", "keep"]
"""`keep`: capture with `--ask` while the environment is here, which bundles what cannot be downloaded any more."""
Cause = Literal["interval", "verdict", "machine", "data", "vulnerable", "yanked", "download", "protocol"]
_INTERVAL = re.compile(r"([1-9][0-9]{0,5})([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


class Watch(Frozen, frozen=True, kw_only=True):
    """The settings of a project."""

    every: str = "30d"
    """The longest time between two verifications."""
    tags: tuple[str, ...] = ()
    """Runs with one of these tags are watched too, besides the versions that have a stage."""

    @property
    def interval(self) -> timedelta:
        match = _INTERVAL.fullmatch(self.every)
        return timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else timedelta()


class Facts(Frozen, frozen=True, kw_only=True):
    """A run, and what is known now."""

    verdict: Last | None = None
    """The last one."""
    machine: tuple[str, ...] = ()
    """How this machine differs from that of the run and of the last verification, so that numbers may differ."""
    data: tuple[str, ...] = ()
    """How data differs from the record."""
    packages: tuple[Package, ...] = ()
    download: str = ""
    """Why the image cannot be rebuilt without the files of this machine."""
    evaluations: tuple[Evaluation, ...] = ()


class Reason(Frozen, frozen=True, kw_only=True):
    action: Action
    cause: Cause
    text: str


def parse(table: Mapping[str, Any], where: str) -> Watch:
    """Return the settings. Raises `UsageError`."""
    try:
        watch = msgspec.convert(table, Watch)
    except msgspec.ValidationError as error:
        hint = 'its keys are every = "30d" and tags = ["paper/1"]'
        raise UsageError(f"invalid settings: {redact.line(str(error))}", where=where, hint=hint) from None
    if not watch.interval:
        raise UsageError(
            f'every must be a time (got "{redact.line(watch.every)}")', where=where, hint="for example 12h, 30d or 4w"
        )
    return watch


def due_date(verdict: Last | None, watch: Watch) -> str:
    """Return the day until which a run must be verified, UTC; `now` if it was not verified, or not as expected."""
    if verdict is None or not verdict.same:
        return "now"
    return f"{_time(verdict) + watch.interval:%Y-%m-%d}"


def reasons(facts: Facts, watch: Watch, now: datetime) -> Iterator[Reason]:
    """Yield why a run is due, retraining first. `now`: with a time zone."""
    for text in facts.data:
        yield Reason(action="retrain", cause="data", text=text)
    for package in facts.packages:
        what = f"{package.name} {package.version}"
        if package.vulnerabilities:
            yield Reason(
                action="retrain", cause="vulnerable", text=f"{what} is vulnerable ({shorten(package.vulnerabilities, 3)})"
            )
        if package.yanked is not None:
            yield Reason(action="retrain", cause="yanked", text=f"{what} was yanked ({package.yanked or 'without a reason'})")
    for evaluation in facts.evaluations:
        if not evaluation.departures:
            for text in evaluation.failures:
                yield Reason(action="retrain", cause="protocol", text=f"{evaluation.protocol}: {text}")
    if facts.download:
        yield Reason(action="keep", cause="download", text=facts.download)
    verdict = facts.verdict
    for text in facts.machine:
        yield Reason(action="verify", cause="machine", text=text)
    if verdict is None:
        yield Reason(action="verify", cause="interval", text="it was not verified")
    elif not verdict.same:
        yield Reason(action="verify", cause="verdict", text=f"the last verification ({verdict.written}) is {verdict.level}")
    elif (since := now - _time(verdict)) > watch.interval:
        text = f"the last verification is {plural(since.days, 'day')} old, and may be {watch.every}"
        yield Reason(action="verify", cause="interval", text=text)


def _time(verdict: Last) -> datetime:
    return datetime.strptime(verdict.written, "%Y-%m-%dT%H:%M:%S%z")
