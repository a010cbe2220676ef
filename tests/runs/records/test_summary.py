from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.runs.records import ids, records
from repro_env.runs.records.summary import Summary, summarize
from repro_env.schema.errors import RecordError
from repro_env.schema.run import DataFact, Output, Parent
from tests.runs.records.test_records import DIGEST, end, recorded, start


def summaries(runs: Path) -> list[Summary]:
    return [summarize(run) for run in records.listing(runs)[0]]


def test_a_listing_has_the_newest_run_first(tmp_path: Path) -> None:
    for number in (1, 61, 2, 3):
        recorded(tmp_path, number, over=number != 2)
    assert [run.short for run in summaries(tmp_path)] == ["0000003d", "00000003", "00000002", "00000001"]
    assert [run.state for run in summaries(tmp_path)] == ["done", "done", "interrupted", "done"]


def test_a_run_that_ends_while_it_is_read_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000001")
    recording.start(start(run_id))
    is_running = records.is_running

    def check_then_end(directory: Path) -> bool:
        result = is_running(directory)
        recording.finish(end(run_id))
        return result

    monkeypatch.setattr(records, "is_running", check_then_end)
    assert [run.state for run in summaries(tmp_path)] == ["done"]


def test_the_state_and_the_end_of_a_run_are_read_each_time(tmp_path: Path) -> None:
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(start(run_id))
    (run,) = summaries(tmp_path)
    assert (run.state, run.ending, run.end, run.outputs, run.intact) == ("running", "running", "", None, True)
    recording.close()
    assert [run.state for run in summaries(tmp_path)] == ["interrupted"]
    recording.finish(msgspec.structs.replace(end(run_id), start=recording.start_digest))
    (run,) = summaries(tmp_path)
    assert (run.state, run.ending, run.outputs, run.size, run.intact) == ("done", "exit 0", 1, 1, True)
    assert (run.start, run.end) == (recording.start_digest, records.digest(recording.directory / "end.json"))


def test_a_removed_run_is_not_listed_and_a_damaged_run_is_unreadable(tmp_path: Path) -> None:
    removed, damaged, good = (recorded(tmp_path, number) for number in (1, 2, 3))
    records.remove(removed)
    (damaged / "end.json").chmod(0o644)
    (damaged / "end.json").write_bytes(b"{")
    readable, unreadable = records.listing(tmp_path)
    assert [run.directory for run in readable] == [good]
    assert [run.directory for run in unreadable] == [damaged]


def test_a_summary_has_inputs_and_parents(tmp_path: Path) -> None:
    run_id = ids.uuid7(1, bytes(10))
    parents = [Parent(id=str(number), record=None, how=how) for number, how in ((1, "named"), (2, "resumed"))]  # type: ignore[arg-type]
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(
        msgspec.structs.replace(
            start(run_id),
            data=(
                DataFact(source="/d", target="/data", kind="data", digest=DIGEST),
                DataFact(source="/c", target="/c", kind="checkpoints", digest=None),
            ),
            parents=(parents[0],),
        )
    )
    outputs = tuple(Output(path=str(number), sha256=f"sha256:{number:064x}", size=2**62) for number in (1, 2))
    recording.finish(msgspec.structs.replace(end(run_id), outputs=outputs, resumed=(parents[1],), start=DIGEST))
    (run,) = summaries(tmp_path)
    assert [(datum.role, datum.path, datum.digest) for datum in run.data] == [
        ("data", "/d", DIGEST),
        ("checkpoints", "/c", ""),
    ]
    assert run.parents == tuple(parents)
    assert not run.intact, "end.json has the digest of another start.json"
    assert (run.outputs, run.size) == (2, 2**63 - 1), "a record may claim any size, but JSON has no larger integer"


def test_a_file_is_refused_as_a_directory_of_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert records.listing(tmp_path / "none") == ([], [])
    with pytest.raises(RecordError, match="as a directory"):
        records.listing(tmp_path / "file")
