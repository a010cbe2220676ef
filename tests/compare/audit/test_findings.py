from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from repro_env.compare.audit import findings as audit
from repro_env.compare.audit.findings import Finding
from repro_env.runs.records import ids
from repro_env.runs.records.records import Run
from repro_env.schema.run import End, Output, Parent
from tests.runs.records.examples import end, start

A, B = (f"sha256:{letter * 64}" for letter in "ab")
ID = ids.uuid7(1, bytes(9) + b"\x01")
OTHER = ids.uuid7(2, bytes(9) + b"\x02")


def make_run(run_end: End | None, **changes: object) -> Run:
    directory = Path("/runs/20260701T101507Z-train-00000001")
    return msgspec.structs.replace(Run(directory, start(ID), run_end, "done" if run_end else "interrupted"), **changes)


def finished(**changes: object) -> Run:
    return make_run(msgspec.structs.replace(end(ID), **changes))


def facts(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    found = list(findings)
    assert all(finding.runs == (ID,) for finding in found)
    return [(finding.part, finding.state, finding.what) for finding in found]


def output(path: str, digest: str = A, size: int = 1) -> Output:
    return Output(path=path, sha256=digest, size=size)


def test_a_complete_record_has_no_findings() -> None:
    assert facts(audit.check_record(finished(start=A), A)) == []


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
    recorded = (output("a"), output("b"), output("c"), output("d"))
    current = (output("a"), output("b", B), output("c", size=2), output("e"))
    findings = audit.check_files("output", make_run(None), recorded, current)
    others = audit.check_others(make_run(None), ("l -> a", "p (pipe)", "(not complete: disk)"), ("l -> b",))
    assert facts([*findings, *others]) == [
        ("output", "changed", "b"),
        ("output", "changed", "c"),
        ("output", "gone", "d"),
        ("output", "unrecorded", "e"),
        ("output", "gone", "l -> a"),
        ("output", "gone", "p (pipe)"),
        ("output", "unrecorded", "l -> b"),
        ("output", "unknown", "outputs"),
    ]


@pytest.mark.parametrize(
    ("record", "current", "broken", "state"),
    [
        (A, A, None, None),
        (A, B, None, "changed"),
        (A, "", None, "gone"),
        (A, None, None, "gone"),
        (A, None, "torn", "changed"),
        (None, A, None, "unknown"),
        (None, None, None, "gone"),
    ],
)
def test_missing_and_changed_parents_are_reported(
    record: str | None, current: str | None, broken: str | None, state: str | None
) -> None:
    answer = audit.check_parent(Parent(id=OTHER, record=record, how="data"), current, broken)
    assert (answer and answer[0]) == state


def test_a_checkpoint_that_no_recorded_run_wrote_is_unknown() -> None:
    answer = audit.check_parent(Parent(id="", record=None, how="resumed", path="ck/1"), None, None)
    assert answer == ("unknown", "it was not written by a recorded run")


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
    looks: list[str] = []

    def check(key: str, run: Run) -> audit.Answer:
        looks.append(f"{key} for {run.short}")
        return ("gone", "two\nlines") if key == "bad" else None

    run = make_run(None)
    second_run = msgspec.structs.replace(run, start=start(OTHER))
    checks = audit.Checks()
    for key, user in (("bad", run), ("good", run), ("bad", second_run), ("bad", second_run)):
        checks.check("image", key, f"the {key}", user, partial(check, key, user))
    assert looks == ["bad for 00000001", "good for 00000001"]
    assert (checks.count("image"), checks.count("data")) == (2, 0)
    ((finding),) = checks.findings()
    assert (finding.part, finding.state, finding.what, finding.runs) == ("image", "gone", "the bad", (ID, OTHER))
    assert "\n" not in finding.why
