"""Each cause for which a run is due, and none without a cause."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from repro_env.policy.due import Facts, Watch, parse, reasons
from repro_env.policy.protocol import Evaluation
from repro_env.runs.records.verdicts import Last
from repro_env.schema.errors import UsageError
from repro_env.schema.sources import Package

NOW = datetime(2026, 11, 30, 4, 17, tzinfo=timezone.utc)


def verdict(*, days: int = 1, **changes: Any) -> Last:
    written = f"{NOW - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"
    facts = {"level": "bitwise", "same": True, "ignored": 0, "written": written, **changes}
    return Last(schema="repro-env/verified/1", **facts)


def evaluation(departures: tuple[str, ...], failures: tuple[str, ...]) -> Evaluation:
    return Evaluation(protocol="test-set", departures=departures, failures=failures)


CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"verdict": None}, "verify", "interval", "it was not verified"),
    ({"verdict": verdict(days=31)}, "verify", "interval", "the last verification is 31 days old, and may be 30d"),
    ({"verdict": verdict(same=False, level="different")}, "verify", "verdict", "is different"),
    ({"machine": ("this CPU is B, the run's was A",)}, "verify", "machine", "this CPU is B"),
    ({"data": ("data /d: its digest was",)}, "retrain", "data", "data /d"),
    ({"packages": (Package(name="a", version="1", vulnerabilities=("CVE-1",)),)}, "retrain", "vulnerable", "a 1 is vulnerable (CVE-1)"),
    ({"packages": (Package(name="a", version="1", yanked=""),)}, "retrain", "yanked", "a 1 was yanked (without a reason)"),
    ({"download": "it cannot be rebuilt"}, "keep", "download", "it cannot be rebuilt"),
    ({"evaluations": (evaluation((), ("loss is 2",)),)}, "retrain", "protocol", "test-set: loss is 2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "action", "cause", "text"), CASES, ids=[f"{case[2]}-{number}" for number, case in enumerate(CASES)]
)
def test_each_cause_has_its_sentence(change: dict[str, Any], action: str, cause: str, text: str) -> None:
    (reason,) = reasons(Facts(**{"verdict": verdict(), **change}), Watch(), NOW)
    assert (reason.action, reason.cause) == (action, cause)
    assert text in reason.text


def test_nothing_is_due_without_a_cause() -> None:
    facts = Facts(
        verdict=verdict(days=29),
        packages=(Package(name="a", version="1"),),
        evaluations=(evaluation((), ()), evaluation(("another command",), ("loss is 2",))),
    )
    assert not [*reasons(facts, Watch(), NOW)]


def test_the_interval_is_that_of_the_project() -> None:
    facts = Facts(verdict=verdict(days=2))
    assert [*reasons(facts, Watch(every="1d"), NOW)]
    assert not [*reasons(facts, Watch(every="1w"), NOW)]


@pytest.mark.parametrize("table", [{"every": "30"}, {"every": "0d"}, {"every": 3}, {"tags": "x"}, {"evry": "1d"}])
def test_invalid_settings_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        parse(table, "pyproject.toml")
