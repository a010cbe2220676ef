from __future__ import annotations

import json
from pathlib import Path

import msgspec

from repro_env.catalog.records import Run
from repro_env.cli import verify
from repro_env.cli.page import Page
from repro_env.flows.verify import Verified
from tests.fakes.tensors import Tensor, npy
from tests.verify import sides
from tests.verify.test_verdict import END, START


def done(tmp_path: Path, left: dict[str, bytes], right: dict[str, bytes]) -> Verified:
    run = Run(tmp_path / "20260701T000000Z-train-1f2e3d4c", START, END, "done")
    return Verified(run=run, verdict=sides.judged(tmp_path, left, right))


def shown(found: Verified, most: int | None = 10) -> str:
    page = Page(most=most)
    verify.show(page, found)
    return "\n".join(page.lines)


def test_a_run_that_came_back(tmp_path: Path) -> None:
    text = shown(done(tmp_path, {"w.npy": b"1", "a.log": b"10:15:30 x\n"}, {"w.npy": b"1", "a.log": b"10:15:31 x\n"}))
    assert "expected      bitwise" in text
    assert "bitwise: the one result is the same, bit for bit" in text
    assert "logs  1 of 1 the same\n  a.log  bitwise\n      apart: 10:15:30 x -> 10:15:31 x" in text


def test_a_log_that_differs_around_equal_results_is_one_line(tmp_path: Path) -> None:
    found = done(tmp_path, {"w.npy": b"1", "a.log": b"bar ##\nend ##\n"}, {"w.npy": b"1", "a.log": b"bar ###\nend ###\n"})
    assert "  a.log  different: 2 of 2 lines differ, from line 1 (--all shows them)" in shown(found).splitlines()
    assert "###" not in shown(found)
    assert "+ bar ###" in shown(found, most=None)


def test_one_that_did_not(tmp_path: Path) -> None:
    left = {"w.npy": npy(Tensor([1.0, 2.0])), "m.txt": b"loss 0.5\n", "x.pid": b"1"}
    right = {"w.npy": npy(Tensor([1.0, 2.0]).next(1)), "m.txt": b"loss 0.7\n", "x.pid": b"2"}
    text = shown(done(tmp_path, left, right))
    assert "different: 1 of 2 results differs: m.txt: 1 of 1 lines differs, from line 1" in text
    assert "      - loss 0.5\n      + loss 0.7" in text
    assert "w.npy  numeric: its one tensor differs: 1 of 2 elements from [1]" in text
    assert text.endswith("volatile, which do not count  1 file")


def test_many_files_are_counted_unless_all_are_asked_for(tmp_path: Path) -> None:
    found = done(tmp_path, {f"{n}.txt": b"a" for n in range(15)}, {f"{n}.txt": b"b" for n in range(15)})
    assert "and 5 more (--all shows them)" in shown(found)
    assert "and 5 more" not in shown(found, most=None)


def test_files_that_only_moved_are_counted(tmp_path: Path) -> None:
    then, now = ({f"out/2026-11-22/10-15-3{second}/{n}.txt": b"a" for n in range(3)} for second in (0, 1))
    found = done(tmp_path, {**then, "b.txt": b"1"}, {**now, "b.txt": b"2"})
    line = "  3 bitwise under another path, as out/2026-11-22/10-15-30/0.txt -> out/2026-11-22/10-15-31/0.txt (--all shows them)"
    text = shown(found)
    assert line in text.splitlines()
    assert "apart" not in text.partition("results")[2]
    assert "1.txt  bitwise\n      apart: its path is out/2026-11-22/10-15-31/1.txt now" in shown(found, most=None)


def test_names_cannot_move_the_cursor(tmp_path: Path) -> None:
    text = shown(done(tmp_path, {"a\x1b[2J": b"\x1b[31m1\n"}, {"a\x1b[2J": b"\x1b[31m2\n"}))
    assert "\x1b" not in text


def test_json_has_what_the_page_has(tmp_path: Path) -> None:
    found = done(tmp_path, {"w.npy": npy(Tensor([1.0]))}, {"w.npy": npy(Tensor([1.0]).next(0))})
    facts = json.loads(msgspec.json.encode(verify.facts(found)))
    assert (facts["same"], facts["level"], facts["promised"]) == (False, "numeric", "bitwise")
    assert facts["files"][0]["tensors"][0]["ulp"] == 1
    assert set(facts) >= {"run", "sentence", "promise", "first_step", "causes", "kept"}


def test_a_kept_run_can_be_compared(tmp_path: Path) -> None:
    found = done(tmp_path, {"w.npy": b"1"}, {"w.npy": b"1"})
    assert verify.after(found) == f"show {found.run.short}"
    kept = msgspec.structs.replace(found, folder=tmp_path / "20260702T000000Z-train-9f8e7d6c")
    assert verify.after(kept) == f"compare {found.run.short} 9f8e7d6c"
