"""The library list. Each of its places occurs in a file that the library wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.compare.outputs import fields, judge
from repro_env.compare.outputs.fields import Field
from tests.compare.outputs.pairs import CASES, judge_case

FIELDS = fields.all_fields()


def without(field: Field, place: str) -> tuple[Field, ...]:
    """Remove a place of an entry from the list, and the entry if it has no other place."""
    places = tuple(other for other in field.places if other != place)
    shorter = (msgspec.structs.replace(field, places=places),) if places else ()
    number = FIELDS.index(field)
    return (*FIELDS[:number], *shorter, *FIELDS[number + 1 :])


PLACES = [pytest.param(field, place, id=f"{field.library}, {field.file}: {place}") for field in FIELDS for place in field.places]


@pytest.mark.parametrize(("field", "place"), PLACES)
def test_a_recorded_pair_differs_without_the_place(
    field: Field, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fields, judge):
        monkeypatch.setattr(module, "all_fields", lambda: without(field, place))
    cases = [case for case in CASES if f"{field.library} {field.versions}." in case["libraries"]]
    assert any(not judge_case(case, tmp_path / case["case"], tuple(case["accept"])).same for case in cases)
