from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro_env.runs.records import records
from repro_env.runs.start import resumption
from repro_env.runs.start.request import RunOptions, job_of
from repro_env.schema.errors import RecordError, SpecError, UsageError
from repro_env.schema.run import Job
from tests.fakes import specs
from tests.runs.records.test_records import recorded


def options(tmp_path: Path, **changes: Any) -> RunOptions:
    return RunOptions(command=("train.py",), here=tmp_path, environ={}, **changes)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = specs.make(tmp_path / "repro", {})
    monkeypatch.setattr("tests.runs.records.test_records.DIGEST", made.digest)
    return made


def test_a_new_run_resumes_nothing(tmp_path: Path, spec: Any) -> None:
    recorded(tmp_path / "runs", 1)
    new = "0197c1d2-0000-7000-8000-00000000abcd"
    assert resumption.find(options(tmp_path), spec, tmp_path / "runs")[1] is None
    assert resumption.find(options(tmp_path, run_id=new), spec, tmp_path / "runs") == (new, None)


@pytest.mark.parametrize("name", ["x", "0197c1d2-0000-4000-8000-00000000abcd", "../../../etc", ""])
def test_an_id_must_be_that_of_a_run(tmp_path: Path, spec: Any, name: str) -> None:
    with pytest.raises(UsageError, match="not the id of a run"):
        resumption.find(options(tmp_path, run_id=name), spec, tmp_path / "runs")


def test_a_named_run_is_resumed(tmp_path: Path, spec: Any) -> None:
    directory = recorded(tmp_path / "runs", 1)
    for word in ("latest", directory.name, f"runs/{directory.name}"):
        _, run = resumption.find(options(tmp_path, resume=word), spec, tmp_path / "runs")
        assert run is not None
        assert run.directory == directory
        parent = resumption.parent_of(run)
        assert (parent.id, parent.how, parent.record) == (run.id, "outputs", run.end_digest)


def test_a_job_that_was_queued_again_resumes_its_own_run(tmp_path: Path, spec: Any) -> None:
    first, other = recorded(tmp_path / "runs", 1), recorded(tmp_path / "runs", 2)
    run_id = records.read(first).id
    new, run = resumption.find(options(tmp_path, run_id=run_id, resume=other.name), spec, tmp_path / "runs")
    assert run is not None
    assert (run.directory, new != run_id) == (first, True)


def test_a_submitted_run_that_resumes_another_one_has_its_own_id(tmp_path: Path, spec: Any) -> None:
    other, run_id = recorded(tmp_path / "runs", 2), "0197c1d2-0000-7000-8000-00000000abcd"
    new, run = resumption.find(options(tmp_path, run_id=run_id, resume=other.name), spec, tmp_path / "runs")
    assert run is not None
    assert (new, run.directory) == (run_id, other)


def test_a_run_with_another_spec_is_not_resumed(tmp_path: Path) -> None:
    recorded(tmp_path / "runs", 1)
    with pytest.raises(SpecError, match="the run to resume has another spec"):
        resumption.find(options(tmp_path, resume="latest"), specs.make(tmp_path / "repro", {}), tmp_path / "runs")


def test_a_missing_run_is_an_error(tmp_path: Path, spec: Any) -> None:
    with pytest.raises(RecordError, match="does not exist"):
        resumption.find(options(tmp_path, resume="abc"), spec, tmp_path / "runs")


def test_the_job_of_slurm_is_read_from_its_variables() -> None:
    assert job_of({}) is None
    assert job_of({"SLURM_JOB_ID": "x"}) is None
    assert job_of({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}) == Job(engine="slurm", id="7", node="n1")
    assert job_of({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}) == Job(engine="slurm", id="7", node="", restarts=2)
