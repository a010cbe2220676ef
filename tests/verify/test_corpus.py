"""Differences that were planted in results, written from what real projects write: none is called the same. One line each in `planted/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.verify import corpus


@pytest.mark.parametrize(
    "case", corpus.cases("text", "data", "binary", "tensors", "trees", "earlier"), ids=lambda case: case["name"]
)
def test_a_planted_difference_is_never_called_the_same(case: dict[str, Any], tmp_path: Path) -> None:
    found = corpus.judged(case, tmp_path)
    assert found.level in ("different", "numeric"), found.sentence
    assert not found.same


@pytest.mark.parametrize("case", corpus.cases("accepted"), ids=lambda case: case["name"])
def test_what_evidence_explains_is_equal_and_shown(case: dict[str, Any], tmp_path: Path) -> None:
    found = corpus.judged(case, tmp_path)
    assert found.level == "equal except for", found.sentence
    assert found.same
    assert all(file.ignored for file in found.files if file.level != "bitwise")
