"""The trap benchmark: every environment comes back file for file, or the failure names what cannot be held."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import parts
from tests.fidelity import play
from tests.fidelity.case import Case, cases

VERDICTS: dict[str, play.Verdict] = {}


def _marked(case: Case) -> object:
    return pytest.param(case, id=case.id, marks=[pytest.mark.soak] if case.soak else [])


@pytest.mark.index
@pytest.mark.parametrize("case", [_marked(case) for case in cases()])
def test_a_case_has_its_expected_verdict(case: Case, machine: play.Machine, place: Path) -> None:
    verdict = play.play(case, place, machine)
    VERDICTS[case.id] = verdict
    assert verdict.verdict != "silent", str(verdict)
    assert verdict.verdict == case.verdict, str(verdict)
    assert case.named in verdict.detail


def test_at_least_nine_in_ten_are_identical() -> None:
    """What the table promises, and what of it was seen just now."""
    held = [case for case in cases() if not case.named]
    assert len(held) >= 0.9 * len(cases()), [case.id for case in cases() if case.named]
    if not VERDICTS:
        pytest.skip("no case was run with this test")
    assert not [name for name, verdict in VERDICTS.items() if verdict.verdict == "silent"]
    if len(VERDICTS) >= 30:
        assert sum(verdict.verdict == "identical" for verdict in VERDICTS.values()) >= 0.9 * len(VERDICTS)


def test_the_table_of_the_benchmark_has_these_cases_as_they_are_judged_here() -> None:
    shown = {"identical": "identical", "named": "named failure"}
    table = (
        (parts.ROOT / "benchmarks" / "README.md").read_text().partition("<!-- fidelity: ")[2].partition("<!-- /fidelity -->")[0]
    )
    rows = [row.split(" | ")[:2] for row in table.splitlines() if row.startswith("| ")][1:-1]
    assert rows == [[f"| {case.title}", shown[case.verdict]] for case in cases()], "run benchmarks/fidelity.py --missing"
