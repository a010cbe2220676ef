"""Pairs of equal runs of real trainings (`honest/`), with the differences that a user must accept once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro_env.cli.verify import offered
from tests.compare.outputs.pairs import CASES, judge_case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_an_equal_training_is_equal_if_the_user_accepts_its_durations(case: dict[str, Any], tmp_path: Path) -> None:
    found = judge_case(case, tmp_path, tuple(case["accept"]))
    assert (found.level, found.same) == (case["expect"], True), found.sentence
    if found.level == "equal except for":
        assert sum(file.ignored_count for file in found.files) or any(file.kind == "ignored" for file in found.files)


@pytest.mark.parametrize("case", [case for case in CASES if case["accept"]], ids=lambda case: case["case"])
def test_an_equal_training_is_different_if_the_user_accepts_nothing(case: dict[str, Any], tmp_path: Path) -> None:
    found = judge_case(case, tmp_path, ())
    assert not found.same
    assert found.level in ("different", "numeric")
    again = judge_case(case, tmp_path / "again", tuple(offered(found)))
    assert again.same, (offered(found), again.sentence)
