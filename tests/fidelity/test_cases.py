"""The trap benchmark: every environment comes back file for file, or the failure names what cannot be held."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.fidelity import play
from tests.fidelity.case import Case, cases

VERDICTS: dict[str, play.Verdict] = {}


def _marked(one: Case) -> object:
    return pytest.param(one, id=one.id, marks=[pytest.mark.soak] if one.soak else [])


@pytest.mark.index
@pytest.mark.parametrize("one", [_marked(one) for one in cases()])
def test_case(one: Case, machine: play.Machine, place: Path) -> None:
    verdict = play.play(one, place, machine)
    VERDICTS[one.id] = verdict
    assert verdict.verdict != "silent", str(verdict)
    assert verdict.verdict == ("named" if one.named else "identical"), str(verdict)
    assert one.named in verdict.detail


def test_at_least_nine_in_ten_are_identical() -> None:
    """What the table promises, and what of it was seen just now."""
    held = [one for one in cases() if not one.named]
    assert len(held) >= 0.9 * len(cases()), [one.id for one in cases() if one.named]
    if not VERDICTS:
        pytest.skip("no case was run with this test")
    assert not [name for name, one in VERDICTS.items() if one.verdict == "silent"]
    if len(VERDICTS) >= 30:
        assert sum(one.verdict == "identical" for one in VERDICTS.values()) >= 0.9 * len(VERDICTS)


def test_the_written_results_are_of_these_cases() -> None:
    """benchmarks/results/fidelity.json: of cases that are there, judged as they are expected, none silent."""
    written = json.loads((parts.ROOT / "benchmarks" / "results" / "fidelity.json").read_text())["cases"]
    expected = {one.id: "named" if one.named else "identical" for one in cases()}
    told = {one["case"]: one["repro-env"]["verdict"] for one in written}
    assert set(told) == set(expected), "run benchmarks/fidelity.py --missing"
    assert {name: verdict for name, verdict in told.items() if verdict not in ("n/a", expected.get(name))} == {}, (
        "run benchmarks/fidelity.py"
    )
