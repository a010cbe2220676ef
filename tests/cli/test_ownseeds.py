from __future__ import annotations

from repro_env.catalog.noted import OTHERS
from repro_env.cli import ownseeds
from repro_env.model.run import Seeded


def seeded(*values: str, line: int = 7) -> tuple[Seeded, ...]:
    return tuple(Seeded(library="numpy", what="RandomState", value=value, file="/p/t.py", line=line) for value in values)


def test_one_seed_stands_in_its_call() -> None:
    assert ownseeds.lines([*seeded("1"), *seeded("2", line=8)], whole=False) == [
        "RandomState(1) at /p/t.py:7",
        "RandomState(2) at /p/t.py:8",
    ]


def test_many_of_one_call_are_one_line() -> None:
    many = seeded("5", "3", OTHERS, "4", "1")
    assert ownseeds.lines(many, whole=False) == ["RandomState at /p/t.py:7, with more than 4 values: 5, 3, 4, ..."]
    assert ownseeds.lines(many, whole=True) == ["RandomState at /p/t.py:7, with more than 4 values: 5, 3, 4, 1, ..."]
    assert ownseeds.lines(seeded("5", "3"), whole=False) == ["RandomState at /p/t.py:7, with 2 values: 5, 3"]
