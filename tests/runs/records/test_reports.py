"""Reports of hooks: facts from several processes, and invalid lines from a script."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from repro_env.runs.records import reports
from repro_env.runs.records.checkpointmanifest import CheckpointParent
from repro_env.schema.run import Count, Fact, Rank, Seeded


def lines(*facts: dict[str, Any]) -> list[bytes]:
    return [json.dumps(fact).encode() for fact in facts]


def test_each_kind_of_note_is_parsed() -> None:
    found = reports.parse(
        lines(
            {"library": "numpy", "what": "generator without a seed", "file": "/p/t.py", "line": 3},
            {"problem": "torch: no room"},
            {"seeded": "torch", "what": "torch.manual_seed", "value": "42", "file": "/p/t.py", "line": 5},
            {"system_randomness": "os.urandom", "count": 16, "file": "/p/t.py", "line": 7},
            {"operation": "put_", "count": 2, "file": "/p/t.py", "line": 9},
            {"settings": {"threads torch": "2", "aslr": "off"}, "rank": ""},
            {"world": {"rank": 0, "size": 2, "backend": "gloo", "device": "cpu"}},
            {
                "world": {
                    "rank": 1,
                    "size": 2,
                    "backend": "gloo",
                    "device": "cpu",
                    "nodes": 2,
                    "strategy": "DDP",
                    "accumulation": "4",
                }
            },
            {"resumed": {"run": "x", "path": "/c/step-3", "sha256": "ab", "step": 3}},
        )
    )
    assert found.auto_seeded == ("numpy generator without a seed at /p/t.py:3", "seeds: torch: no room")
    assert found.seeded == (Seeded(library="torch", what="torch.manual_seed", value="42", file="/p/t.py", line=5),)
    assert found.system_randomness == (Count(what="os.urandom", count=16, file="/p/t.py", line=7),)
    assert found.operations == (Count(what="put_", count=2, file="/p/t.py", line=9),)
    assert found.settings == (Fact(name="aslr", value="off"), Fact(name="threads torch", value="2"))
    assert found.ranks == (
        Rank(rank=0, size=2, backend="gloo", device="cpu"),
        Rank(rank=1, size=2, backend="gloo", device="cpu", nodes=2, strategy="DDP", accumulation="4"),
    )
    assert [rank.training for rank in found.ranks] == ["", "DDP, 2 nodes, 4 backward passes per optimizer step"]
    assert found.resumed == (CheckpointParent(run="x", path="/c/step-3", sha256="ab", step=3),)


def test_the_notes_of_processes_that_share_a_run_are_read_in_the_order_of_ranks(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        (tmp_path / f"{rank}-reports.jsonl").write_bytes(b"\n".join(lines({"pid": rank + 1})))
    (tmp_path / "trace").mkdir()
    assert reports.of_run(tmp_path).pids == (1, 3, 11)
    assert reports.of_run(tmp_path / "missing").pids == ()


def test_counts_are_summed_and_other_facts_are_not_repeated() -> None:
    operation = {"operation": "put_", "count": 2, "file": "/p/t.py", "line": 9}
    unseeded = {"library": "python", "what": "x", "file": "/p/t.py", "line": 1}
    found = reports.parse(lines(operation, unseeded, operation, unseeded, operation | {"line": 10}))
    assert found.operations == (
        Count(what="put_", count=4, file="/p/t.py", line=9),
        Count(what="put_", count=2, file="/p/t.py", line=10),
    )
    assert found.auto_seeded == ("python x at /p/t.py:1",)


def test_the_facts_of_ranks_do_not_depend_on_the_order_of_reports() -> None:
    facts = lines(
        *({"world": {"rank": rank, "size": 3, "backend": "gloo", "device": "cpu"}} for rank in range(3)),
        *({"settings": {"threads": str(1 + rank % 2), "mode": "warn"}, "rank": str(rank)} for rank in range(3)),
    )
    first = reports.parse(facts)
    assert first.settings == (
        Fact(name="mode", value="warn"),
        Fact(name="threads", value="1 (rank 0), 2 (rank 1), 1 (rank 2)"),
    )
    assert [rank.rank for rank in first.ranks] == [0, 1, 2]
    for number in range(10):
        random.Random(number).shuffle(facts)
        shuffled = reports.parse(facts)
        assert (shuffled.settings, shuffled.ranks) == (first.settings, first.ranks)


def test_invalid_notes_are_ignored() -> None:
    bad = [
        b"not JSON", b"[]", b"3", b"{}", b"\xff", b'{"line": "x"}', b"[" * 5000,
        *lines(
            {"world": {"rank": 3, "size": 2}},
            {"world": {"rank": "0", "size": 2}},
            {"world": {"rank": 0, "size": 1 << 40}},
            {"resumed": {"run": "x", "step": "3", "sha256": "ab"}},
            {"resumed": {"run": "x", "step": 3}},
            {"settings": {}},
        ),
    ]  # fmt: skip
    assert reports.parse(bad) == reports.Reports()
    (count,) = reports.parse(lines({"operation": "x\ny", "count": -5, "file": "a\x00b", "line": -1})).operations
    assert (count.count, count.line) == (0, 0)
    assert "\n" not in count.what
    assert "\0" not in count.file


def test_the_size_of_notes_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    assert reports.read(path) == reports.Reports()
    report = lines({"operation": "x", "count": 1, "file": "f", "line": 1})[0] + b"\n"
    path.write_bytes(report * ((5 << 20) // len(report)))
    (count,) = reports.read(path).operations
    assert count.count == (4 << 20) // len(report)


def test_only_the_first_seeds_of_a_line_are_recorded() -> None:
    call = {"seeded": "numpy", "what": "numpy.random.seed", "file": "/p/t.py", "line": 5}

    def recorded(*values: object) -> list[str]:
        return [seed.value for seed in reports.parse(lines(*({**call, "value": str(value)} for value in values))).seeded]

    assert recorded(*range(1000), "and others") == recorded(*range(17)) == [*map(str, range(16)), "and others"]
    assert recorded(*range(16)) == [*map(str, range(16))]
    assert recorded(0, 1, "and others", 2, "and others") == ["0", "1", "and others", "2"]


def test_the_number_of_failures_is_limited() -> None:
    failures = reports.parse(lines(*({"failure": "path", "what": f"/gone/{number}"} for number in range(100)))).failures
    assert [(failure.kind, failure.what) for failure in failures] == [("path", f"/gone/{number}") for number in range(32)]
    bad = lines(
        {"failure": "other", "what": "/x"},
        {"failure": "path", "what": "/" + "x" * 5000},
        {"failure": "path", "what": "/x\x1b[31m"},
        {"failure": "path", "what": ["/x"]},
        {"failure": 1},
    )
    assert reports.parse(bad) == reports.Reports()
