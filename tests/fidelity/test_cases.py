"""The trap benchmark: every environment comes back file for file, or the failure names what cannot be held."""

from __future__ import annotations

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
    assert verdict.verdict == one.verdict, str(verdict)
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


def test_the_table_of_the_benchmark_has_these_cases_as_they_are_judged_here() -> None:
    shown = {"identical": "identical", "named": "named failure"}
    table = (
        (parts.ROOT / "benchmarks" / "README.md").read_text().partition("<!-- fidelity: ")[2].partition("<!-- /fidelity -->")[0]
    )
    rows = [row.split(" | ")[:2] for row in table.splitlines() if row.startswith("| ")][1:-1]
    assert rows == [[f"| {case.title}", shown[case.verdict]] for case in cases()], "run benchmarks/fidelity.py --missing"
