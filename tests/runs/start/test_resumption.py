from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.launch.engines import job_of
from repro_env.runs.records import ids, records
from repro_env.runs.records.records import Run
from repro_env.runs.start import resumption
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import RecordError, SpecError, UsageError
from repro_env.schema.run import Job, Output
from tests.fakes import specs
from tests.runs.records.examples import end, recorded, start


def options(tmp_path: Path, **changes: Any) -> RunOptions:
    return RunOptions(command=("train.py",), here=tmp_path, environ={}, **changes)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = specs.make(tmp_path / "repro", {})
    monkeypatch.setattr("tests.runs.records.examples.DIGEST", made.digest)
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


def attempt(
    number: int, *, outputs: str = "", interrupted: int = signal.SIGUSR1, over: bool = True, after: str = "0", job: str = "7"
) -> Run:
    """An attempt of a job. `outputs` and `after`: what its outputs and its checkpoints are at the end."""
    run_id, earlier = (ids.uuid7(value, value.to_bytes(10, "big")) for value in (number, number - 1))
    digest = f"sha256:{after * 64}"
    record = end(run_id)
    files = tuple(Output(path=path, sha256=f"sha256:{path * 64}", size=1) for path in outputs)
    outcome = msgspec.structs.replace(record.outcome, interrupted=interrupted)
    record = msgspec.structs.replace(record, outcome=outcome, outputs=files, checkpoints_after=digest)
    made = msgspec.structs.replace(
        start(run_id), resume_of=earlier if number > 1 else None, checkpoints_before=f"sha256:{'0' * 64}"
    )
    made = msgspec.structs.replace(made, job=Job(engine="slurm", id=job, node="node1"))
    return Run(Path("/runs"), made, record if over else None, "done" if over else "interrupted")


@pytest.mark.parametrize(
    ("attempts", "count"),
    [
        ([attempt(1)], 1),
        ([attempt(1, outputs="a")], 0),
        ([attempt(1), attempt(2), attempt(3)], 3),
        ([attempt(1, outputs="a"), attempt(2, outputs="a"), attempt(3, outputs="a")], 2),
        ([attempt(1), attempt(2, outputs="a"), attempt(3, outputs="b")], 0),
        ([attempt(1), attempt(2, after="1")], 0),
        ([attempt(1), attempt(2, over=False), attempt(3, interrupted=signal.SIGTERM), attempt(4)], 2),
        ([attempt(1), attempt(2, job="8"), attempt(3, job="8")], 2),
        ([attempt(1, outputs="a"), attempt(2, outputs="a", job="8")], 1),
    ],
    ids=[
        "first",
        "an output",
        "nothing",
        "the same output",
        "another output",
        "a checkpoint",
        "killed and preempted",
        "an earlier job",
        "outputs of an earlier job",
    ],
)
def test_attempts_without_a_new_output_or_checkpoint_are_counted(attempts: list[Run], count: int) -> None:
    assert resumption.count_without_progress(attempts, signal.SIGUSR1) == count


def test_the_attempts_of_a_job_are_found_from_the_last_one() -> None:
    attempts = [attempt(number) for number in (1, 2, 3)]
    assert resumption.chain(attempts[2], [attempts[1], attempt(9), attempts[0]]) == attempts
