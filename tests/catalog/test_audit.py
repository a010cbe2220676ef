from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import audit, ids
from repro_env.catalog.audit import Finding
from repro_env.catalog.outputs import Left
from repro_env.catalog.records import Run
from repro_env.model.run import End, Output, Parent
from tests.catalog.test_records import end, start

A, B = (f"sha256:{letter * 64}" for letter in "ab")
ID = ids.uuid7(1, bytes(9) + b"\x01")
OTHER = ids.uuid7(2, bytes(9) + b"\x02")


def run(over: End | None, **changes: object) -> Run:
    folder = Path("/runs/20260701T101507Z-train-00000001")
    return msgspec.structs.replace(Run(folder, start(ID), over, "done" if over else "interrupted"), **changes)


def ended(**changes: object) -> Run:
    return run(msgspec.structs.replace(end(ID), **changes))


def told(found: list[Finding]) -> list[tuple[str, str, str]]:
    assert all(one.runs == (ID,) for one in found)
    return [(one.part, one.state, one.what) for one in found]


def output(path: str, digest: str = A, size: int = 1) -> Output:
    return Output(path=path, sha256=digest, size=size)


def test_a_record_that_is_whole_has_no_finding() -> None:
    assert audit.record(ended(start=A), A) == []


@pytest.mark.parametrize(
    ("one", "finding"),
    [
        (ended(start=A), ("record", "changed", "start.json")),
        (ended(start=None), ("record", "unknown", "start.json")),
        (ended(id=OTHER), ("record", "changed", "end.json")),
        (run(None), ("record", "unknown", "end.json")),
        (run(None, state="running"), ("record", "unknown", "end.json")),
    ],
)
def test_halves_that_do_not_fit_are_named(one: Run, finding: tuple[str, str, str]) -> None:
    assert told(audit.record(one, B)) == [finding]


def test_a_record_in_the_folder_of_another_run_is_named() -> None:
    one = msgspec.structs.replace(ended(start=A), folder=Path("/runs/20260701T101507Z-train-0000000f"))
    assert told(audit.record(one, A)) == [("record", "changed", "start.json")]


def test_outputs_are_gone_changed_or_of_no_record() -> None:
    one = ended(
        outputs=(output("a"), output("b"), output("c"), output("d")), others=("l -> a", "p (pipe)", "(not complete: disk)")
    )
    left = Left((output("a"), output("b", B), output("c", size=2), output("e")), ("l -> b",))
    assert told(audit.outputs(one, left)) == [
        ("output", "changed", "b"),
        ("output", "changed", "c"),
        ("output", "gone", "d"),
        ("output", "unrecorded", "e"),
        ("output", "gone", "l -> a"),
        ("output", "gone", "p (pipe)"),
        ("output", "unrecorded", "l -> b"),
        ("output", "unknown", "outputs"),
    ]


def test_a_trace_is_held_against_its_record_too() -> None:
    assert told(audit.trace(ended(trace=(output("0.jsonl"),)), Left((), ()))) == [("trace", "gone", "0.jsonl")]
    assert audit.trace(ended(trace=(output("0.jsonl"),)), Left((output("0.jsonl"),), ())) == []


def test_an_interrupted_run_has_no_outputs_to_compare() -> None:
    assert audit.outputs(run(None), Left((output("a"),), ())) == []


@pytest.mark.parametrize(
    ("record", "ends", "broken", "state"),
    [
        (A, {OTHER: A}, {}, None),
        (A, {OTHER: B}, {}, "changed"),
        (A, {OTHER: None}, {}, "gone"),
        (A, {}, {}, "gone"),
        (A, {}, {"00000002": "torn"}, "changed"),
        (None, {OTHER: A}, {}, "unknown"),
        (None, {}, {}, "gone"),
    ],
)
def test_parents(record: str | None, ends: dict[str, str | None], broken: dict[str, str], state: str | None) -> None:
    named = Parent(id=OTHER, record=record, how="data")
    found = audit.parents(ended(), [named, named], ends, broken)
    assert told(found) == ([("parent", state, "run 00000002")] if state else [])


def test_files_in_folders_of_checkpoints_are_gone_or_changed_and_others_may_be_there() -> None:
    claims = [audit.Claim("/ck/a", A, ID), audit.Claim("/ck/b", A, ID), audit.Claim("/ck/c", A, ID)]
    assert told(audit.checkpoints(claims, {"/ck/a": A, "/ck/b": B, "/ck/own": A})) == [
        ("checkpoint", "changed", "/ck/b"),
        ("checkpoint", "gone", "/ck/c"),
    ]


def test_a_checkpoint_of_no_run_is_unknown() -> None:
    assert told(audit.parents(ended(), [Parent(id="", record=None, how="resumed", path="ck/1")], {}, {})) == [
        ("parent", "unknown", "ck/1")
    ]


def test_the_worst_comes_first() -> None:
    def one(part: audit.Part, state: audit.State, what: str) -> Finding:
        return Finding(part=part, state=state, what=what, why="", runs=(ID,))

    shuffled = [one("data", "unknown", "x"), one("output", "gone", "b"), one("image", "changed", "x"), one("output", "gone", "a")]
    assert [(each.state, each.what) for each in audit.ordered(shuffled)] == [
        ("gone", "a"),
        ("gone", "b"),
        ("changed", "x"),
        ("unknown", "x"),
    ]


def test_what_runs_share_is_looked_at_once_and_told_once_with_all_of_them() -> None:
    looked: list[str] = []

    def look(key: str, one: Run) -> audit.Answer:
        looked.append(f"{key} for {one.short}")
        return ("gone", "a line\nof two") if key == "bad" else None

    other = msgspec.structs.replace(run(None), start=start(OTHER))
    shared = audit.Shared[str]("image", lambda key: f"the {key}", look)
    for key, one in (("bad", run(None)), ("good", run(None)), ("bad", other)):
        shared.add(key, one)
    assert looked == ["bad for 00000001", "good for 00000001"]
    assert len(shared) == 2
    ((finding),) = shared.findings()
    assert (finding.part, finding.state, finding.what, finding.runs) == ("image", "gone", "the bad", (ID, OTHER))
    assert "\n" not in finding.why
