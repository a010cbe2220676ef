from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.runs.records import ids, records, submissions
from repro_env.runs.records.records import Run
from repro_env.schema.errors import RecordError
from tests.runs.records.examples import end, recorded, start
from tests.runs.records.jobs import submitted


def attempt(run_id: str, resume_of: str | None = None, *, interrupted: int = 0, over: bool = True) -> Run:
    record = end(run_id)
    record = msgspec.structs.replace(record, outcome=msgspec.structs.replace(record.outcome, interrupted=interrupted))
    return Run(Path("/runs"), msgspec.structs.replace(start(run_id), resume_of=resume_of), record if over else None, "done")


def test_a_submission_is_read_as_it_was_written_and_is_not_a_run(tmp_path: Path) -> None:
    run_id = submitted(tmp_path, 1)
    (item,) = submissions.listing(tmp_path, ())
    assert (item.id, item.job, item.submission.start, item.runs, item.is_finished) == (run_id, "12", start(run_id), (), False)
    assert submissions.read(tmp_path, run_id) == item.submission
    assert records.listing(tmp_path) == ([], [])
    assert item.directory.stat().st_mode & 0o777 == 0o700


def test_a_submission_is_never_written_again(tmp_path: Path) -> None:
    submitted(tmp_path, 1)
    with pytest.raises(RecordError, match="the directory of the job cannot be created: File exists"):
        submitted(tmp_path, 1)


def test_submissions_are_listed_newest_first_without_damaged_ones(tmp_path: Path) -> None:
    assert submissions.listing(tmp_path, ()) == []
    first, second = submitted(tmp_path, 1), submitted(tmp_path, 2, job="")
    damaged, moved = tmp_path / records.JOBS / "damaged", tmp_path / records.JOBS / "moved"
    for directory in (damaged, moved):
        directory.mkdir()
    (damaged / "submission.json").write_text("{}")
    (moved / "submission.json").write_bytes((tmp_path / records.JOBS / first / "submission.json").read_bytes())
    assert [(item.id, item.job) for item in submissions.listing(tmp_path, ())] == [(second, ""), (first, "12")]


def test_a_submission_is_found_by_its_id_or_the_beginning_of_one(tmp_path: Path) -> None:
    run_id = submitted(tmp_path, 1)
    submitted(tmp_path, 300)
    listing = submissions.listing(tmp_path, ())
    for word in (run_id, ids.short(run_id), ids.short(run_id)[:7]):
        found = submissions.find(listing, word)
        assert found is not None
        assert found.id == run_id
    assert [submissions.find(listing, word) for word in ("", "0000", "ffff")] == [None, None, None]


def test_attempts_are_the_run_and_those_that_resumed_it() -> None:
    runs = [attempt("d", "c"), attempt("c", "a"), attempt("b"), attempt("a")]  # newest first
    assert [run.id for run in records.attempts(runs, "a")] == ["a", "c", "d"]
    assert [run.id for run in records.attempts(runs, "b")] == ["b"]
    assert records.attempts(runs, "x") == []


def test_only_an_end_without_an_interruption_finishes_a_submission(tmp_path: Path) -> None:
    run_id = submitted(tmp_path, 1)
    for recorded_runs, finished in (
        ([], False),
        ([attempt(run_id, over=False)], False),
        ([attempt(run_id, interrupted=10)], False),
        ([attempt(run_id)], True),
        ([attempt("z", run_id), attempt(run_id, interrupted=10)], True),
    ):
        (item,) = submissions.listing(tmp_path, recorded_runs)
        assert item.is_finished is finished


def test_removing_a_run_removes_the_files_of_its_job(tmp_path: Path) -> None:
    run_id, other = submitted(tmp_path, 1), submitted(tmp_path, 2)
    records.remove(recorded(tmp_path, 1))
    assert not (tmp_path / records.JOBS / run_id).exists()
    assert (tmp_path / records.JOBS / other).is_dir()
