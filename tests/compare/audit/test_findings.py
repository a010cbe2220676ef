from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.compare.audit import findings as audit
from repro_env.compare.audit.findings import Finding
from repro_env.runs.records import ids
from repro_env.runs.records.records import Run
from repro_env.sandbox.outputs import Contents
from repro_env.schema.run import End, Output, Parent
from tests.runs.records.test_records import end, start

A, B = (f"sha256:{letter * 64}" for letter in "ab")
ID = ids.uuid7(1, bytes(9) + b"\x01")
OTHER = ids.uuid7(2, bytes(9) + b"\x02")


def make_run(run_end: End | None, **changes: object) -> Run:
    directory = Path("/runs/20260701T101507Z-train-00000001")
    return msgspec.structs.replace(Run(directory, start(ID), run_end, "done" if run_end else "interrupted"), **changes)


def finished(**changes: object) -> Run:
    return make_run(msgspec.structs.replace(end(ID), **changes))


def facts(findings: list[Finding]) -> list[tuple[str, str, str]]:
    assert all(finding.runs == (ID,) for finding in findings)
    return [(finding.part, finding.state, finding.what) for finding in findings]


def output(path: str, digest: str = A, size: int = 1) -> Output:
    return Output(path=path, sha256=digest, size=size)


def test_a_complete_record_has_no_findings() -> None:
    assert audit.check_record(finished(start=A), A) == []


@pytest.mark.parametrize(
    ("run", "finding"),
    [
        (finished(start=A), ("record", "changed", "start.json")),
        (finished(start=None), ("record", "unknown", "start.json")),
        (finished(id=OTHER), ("record", "changed", "end.json")),
        (make_run(None), ("record", "unknown", "end.json")),
        (make_run(None, state="running"), ("record", "unknown", "end.json")),
    ],
)
def test_a_mismatch_between_start_and_end_is_reported(run: Run, finding: tuple[str, str, str]) -> None:
    assert facts(audit.check_record(run, B)) == [finding]


def test_a_record_in_the_directory_of_another_run_is_reported() -> None:
    run = msgspec.structs.replace(finished(start=A), directory=Path("/runs/20260701T101507Z-train-0000000f"))
    assert facts(audit.check_record(run, A)) == [("record", "changed", "start.json")]


def test_missing_changed_and_unrecorded_outputs_are_reported() -> None:
    run = finished(
        outputs=(output("a"), output("b"), output("c"), output("d")), others=("l -> a", "p (pipe)", "(not complete: disk)")
    )
    contents = Contents((output("a"), output("b", B), output("c", size=2), output("e")), ("l -> b",))
    assert facts(audit.check_outputs(run, contents)) == [
        ("output", "changed", "b"),
        ("output", "changed", "c"),
        ("output", "gone", "d"),
        ("output", "unrecorded", "e"),
        ("output", "gone", "l -> a"),
        ("output", "gone", "p (pipe)"),
        ("output", "unrecorded", "l -> b"),
        ("output", "unknown", "outputs"),
    ]


def test_a_trace_is_compared_with_its_record() -> None:
    assert facts(audit.check_trace(finished(trace=(output("0.jsonl"),)), Contents((), ()))) == [("trace", "gone", "0.jsonl")]
    assert audit.check_trace(finished(trace=(output("0.jsonl"),)), Contents((output("0.jsonl"),), ())) == []


def test_the_outputs_of_an_interrupted_run_are_not_compared() -> None:
    assert audit.check_outputs(make_run(None), Contents((output("a"),), ())) == []


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
def test_missing_and_changed_parents_are_reported(
    record: str | None, ends: dict[str, str | None], broken: dict[str, str], state: str | None
) -> None:
    parent = Parent(id=OTHER, record=record, how="data")
    findings = audit.check_parents(finished(), [parent, parent], ends, broken)
    assert facts(findings) == ([("parent", state, "run 00000002")] if state else [])


def test_missing_and_changed_checkpoints_are_reported_but_not_unrecorded_ones() -> None:
    claims = [audit.Claim("/ck/a", A, ID), audit.Claim("/ck/b", A, ID), audit.Claim("/ck/c", A, ID)]
    assert facts(audit.check_checkpoints(claims, {"/ck/a": A, "/ck/b": B, "/ck/own": A})) == [
        ("checkpoint", "changed", "/ck/b"),
        ("checkpoint", "gone", "/ck/c"),
    ]


def test_a_checkpoint_that_no_recorded_run_wrote_is_unknown() -> None:
    assert facts(audit.check_parents(finished(), [Parent(id="", record=None, how="resumed", path="ck/1")], {}, {})) == [
        ("parent", "unknown", "ck/1")
    ]


def test_findings_are_sorted_by_severity() -> None:
    def finding(part: audit.Part, state: audit.State, what: str) -> Finding:
        return Finding(part=part, state=state, what=what, why="", runs=(ID,))

    unsorted = [
        finding("data", "unknown", "x"),
        finding("output", "gone", "b"),
        finding("image", "changed", "x"),
        finding("output", "gone", "a"),
    ]
    assert [(finding.state, finding.what) for finding in audit.sort_findings(unsorted)] == [
        ("gone", "a"),
        ("gone", "b"),
        ("changed", "x"),
        ("unknown", "x"),
    ]


def test_a_shared_thing_is_checked_once_and_reported_once_with_all_its_runs() -> None:
    checks: list[str] = []

    def check(key: str, run: Run) -> audit.Answer:
        checks.append(f"{key} for {run.short}")
        return ("gone", "two\nlines") if key == "bad" else None

    run = make_run(None)
    second_run = msgspec.structs.replace(run, start=start(OTHER))
    shared = audit.Shared[str]("image", lambda key: f"the {key}", check)
    for key, user in (("bad", run), ("good", run), ("bad", second_run)):
        shared.add(key, user)
    assert checks == ["bad for 00000001", "good for 00000001"]
    assert len(shared) == 2
    ((finding),) = shared.findings()
    assert (finding.part, finding.state, finding.what, finding.runs) == ("image", "gone", "the bad", (ID, OTHER))
    assert "\n" not in finding.why
