"""What hooks noted: facts of many processes, and lines that a script wrote itself."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from repro_env.catalog import noted
from repro_env.model.run import Count, Fact, Rank, Seeded


def lines(*facts: dict[str, Any]) -> list[bytes]:
    return [json.dumps(fact).encode() for fact in facts]


def test_each_kind_of_note() -> None:
    found = noted.parse(
        lines(
            {"library": "numpy", "what": "generator without a seed", "file": "/p/t.py", "line": 3},
            {"problem": "torch: no room"},
            {"seeded": "torch", "what": "torch.manual_seed", "value": "42", "file": "/p/t.py", "line": 5},
            {"entropy": "os.urandom", "count": 16, "file": "/p/t.py", "line": 7},
            {"operation": "put_", "count": 2, "file": "/p/t.py", "line": 9},
            {"effective": {"threads torch": "2", "aslr": "off"}, "rank": ""},
            {"world": {"rank": 0, "size": 2, "backend": "gloo", "device": "cpu"}},
            {"resumed": {"run": "x", "path": "/c/step-3", "sha256": "ab", "step": 3}},
        )
    )
    assert found.holes == ("numpy generator without a seed at /p/t.py:3", "seeds: torch: no room")
    assert found.seeded == (Seeded(library="torch", what="torch.manual_seed", value="42", file="/p/t.py", line=5),)
    assert found.entropy == (Count(what="os.urandom", count=16, file="/p/t.py", line=7),)
    assert found.operations == (Count(what="put_", count=2, file="/p/t.py", line=9),)
    assert found.effective == (Fact(name="aslr", value="off"), Fact(name="threads torch", value="2"))
    assert found.world == (Rank(rank=0, size=2, backend="gloo", device="cpu"),)
    assert found.resumed == (noted.Resumed(run="x", path="/c/step-3", sha256="ab", step=3),)


def test_counts_of_processes_are_added_and_facts_told_once() -> None:
    operation = {"operation": "put_", "count": 2, "file": "/p/t.py", "line": 9}
    hole = {"library": "python", "what": "x", "file": "/p/t.py", "line": 1}
    found = noted.parse(lines(operation, hole, operation, hole, operation | {"line": 10}))
    assert found.operations == (
        Count(what="put_", count=4, file="/p/t.py", line=9),
        Count(what="put_", count=2, file="/p/t.py", line=10),
    )
    assert found.holes == ("python x at /p/t.py:1",)


def test_what_ranks_say_does_not_depend_on_who_was_first() -> None:
    said = lines(
        *({"world": {"rank": rank, "size": 3, "backend": "gloo", "device": "cpu"}} for rank in range(3)),
        *({"effective": {"threads": str(1 + rank % 2), "mode": "warn"}, "rank": str(rank)} for rank in range(3)),
    )
    first = noted.parse(said)
    assert first.effective == (
        Fact(name="mode", value="warn"),
        Fact(name="threads", value="1 (rank 0), 2 (rank 1), 1 (rank 2)"),
    )
    assert [rank.rank for rank in first.world] == [0, 1, 2]
    for number in range(10):
        random.Random(number).shuffle(said)
        again = noted.parse(said)
        assert (again.effective, again.world) == (first.effective, first.world)


def test_what_a_script_writes_there_is_not_believed() -> None:
    bad = [
        b"no JSON", b"[]", b"3", b"{}", b"\xff", b'{"line": "x"}', b"[" * 5000,
        *lines(
            {"world": {"rank": 3, "size": 2}},
            {"world": {"rank": "0", "size": 2}},
            {"world": {"rank": 0, "size": 1 << 40}},
            {"resumed": {"run": "x", "step": "3", "sha256": "ab"}},
            {"resumed": {"run": "x", "step": 3}},
            {"effective": {}},
        ),
    ]  # fmt: skip
    assert noted.parse(bad) == noted.Noted()
    (count,) = noted.parse(lines({"operation": "x\ny", "count": -5, "file": "a\x00b", "line": -1})).operations
    assert (count.count, count.line) == (0, 0)
    assert "\n" not in count.what
    assert "\0" not in count.file


def test_no_more_than_a_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    assert noted.read(path) == noted.Noted()
    one = lines({"operation": "x", "count": 1, "file": "f", "line": 1})[0] + b"\n"
    path.write_bytes(one * ((5 << 20) // len(one)))
    (count,) = noted.read(path).operations
    assert count.count == (4 << 20) // len(one)


def test_a_line_that_seeds_its_workers_anew_is_told_by_its_first_values() -> None:
    at = {"seeded": "numpy", "what": "numpy.random.seed", "file": "/p/t.py", "line": 5}

    def kept(*values: object) -> list[str]:
        return [one.value for one in noted.parse(lines(*({**at, "value": str(value)} for value in values))).seeded]

    assert kept(*range(1000), "and others") == kept(*range(17)) == [*map(str, range(16)), "and others"]
    assert kept(*range(16)) == [*map(str, range(16))]
    assert kept(0, 1, "and others", 2, "and others") == ["0", "1", "and others", "2"]


def test_what_a_failed_process_missed_is_bounded() -> None:
    found = noted.parse(lines(*({"failure": "path", "what": f"/gone/{number}"} for number in range(100)))).failures
    assert [(one.kind, one.what) for one in found] == [("path", f"/gone/{number}") for number in range(32)]
    bad = lines(
        {"failure": "other", "what": "/x"},
        {"failure": "path", "what": "/" + "x" * 5000},
        {"failure": "path", "what": "/x\x1b[31m"},
        {"failure": "path", "what": ["/x"]},
        {"failure": 1},
    )
    assert noted.parse(bad) == noted.Noted()
