"""Planted differences in results of the kinds that real projects write (`planted/`). Each of them must be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.compare.outputs import corpus
from tests.compare.outputs.sides import NUMERIC


@pytest.mark.parametrize(
    "case", corpus.cases("text", "data", "binary", "tensors", "trees", "earlier"), ids=lambda case: case["name"]
)
def test_a_planted_difference_is_found(case: dict[str, Any], tmp_path: Path) -> None:
    found = corpus.judge(case, tmp_path)
    assert found.level in ("different", "numeric"), found.sentence
    assert not found.same


@pytest.mark.parametrize("case", corpus.cases("rounding"), ids=lambda case: case["name"])
def test_a_difference_that_rounding_cannot_explain_is_different(case: dict[str, Any], tmp_path: Path) -> None:
    found = corpus.judge(case, tmp_path, NUMERIC)
    assert (found.level, found.same) == ("different", False), found.sentence


@pytest.mark.parametrize("case", corpus.cases("clocks"), ids=lambda case: case["name"])
def test_times_in_another_order_or_zone_are_different(case: dict[str, Any], tmp_path: Path) -> None:
    found = corpus.judge(case, tmp_path, NUMERIC)
    assert (found.level, found.same) == ("different", False), found.sentence


@pytest.mark.parametrize("case", corpus.cases("rounded"), ids=lambda case: case["name"])
def test_a_difference_that_rounding_explains_is_numeric(case: dict[str, Any], tmp_path: Path) -> None:
    found = corpus.judge(case, tmp_path, NUMERIC)
    assert (found.level, found.same) == ("numeric", True), found.sentence
    assert not corpus.judge(case, tmp_path).same


@pytest.mark.parametrize("case", corpus.cases("accepted"), ids=lambda case: case["name"])
def test_a_difference_with_evidence_is_equal_and_shown(case: dict[str, Any], tmp_path: Path) -> None:
    found = corpus.judge(case, tmp_path)
    assert found.level == "equal except for", found.sentence
    assert found.same
    assert all(file.ignored for file in found.files if file.level != "bitwise")
