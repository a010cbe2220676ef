from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import work
from tests.parts import need


def test_no_command_does_more_work_than_the_table_allows(tmp_path: Path) -> None:
    need(shutil.which("strace"), "strace counts system calls: apt-get install strace")
    limits = work.parse(work.TABLE.read_text())
    counted = dict(work.measure(work.new_project(tmp_path)))
    assert counted.keys() == limits.keys()
    exceeded = {name: work.over(limits[name][0], counts) for name, counts in counted.items()}
    assert not any(exceeded.values()), f"{exceeded}; make it less, or say why: make work ARGS='--reason \"...\"'"


def test_a_number_above_its_limit_is_named() -> None:
    limit = work.Counts(100, 100, 1.0, 10, 10)
    assert work.over(limit, limit) == []
    assert work.over(limit, limit._replace(opened=111)) == []
    assert work.over(limit, limit._replace(opened=112, programs=13)) == [
        "opened: 112.0, limit 100.0",
        "programs: 13.0, limit 10.0",
    ]


@pytest.mark.parametrize("why", ["", "each run is now checked twice, because (0063)"])
def test_the_table_is_read_as_it_was_written(why: str) -> None:
    rows = {"exec": (work.Counts(1, 2_000, 3.5, 4, 5), why), "check": (work.Counts(0, 0, 0.0, 0, 0), "")}
    assert work.parse(work.render(rows)) == rows
