"""Waiting for a job whose engine is a list of states."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from repro_env.api import jobs
from repro_env.api.jobs import Waited
from repro_env.cli.ui import runpage
from repro_env.launch.engine import Client, State
from repro_env.runs.records import ids, records, submissions
from repro_env.runs.records.records import Recording
from repro_env.runs.records.submissions import Submission, Submitted
from repro_env.schema.errors import RecordError
from repro_env.schema.progress import Silent
from repro_env.schema.run import Job
from tests.runs.records.examples import end, recorded, start
from tests.runs.records.jobs import submitted

PENDING = State(phase="pending", text="pending (Resources)")
RUNNING = State(phase="running", text="running")
FAILED = State(phase="ended", text="failed", exit_code=16)
UNKNOWN = State(phase="unknown", text="no answer")


class Fake(Client):
    def __init__(self, *states: State, on_state: Callable[[int], None] = lambda count: None) -> None:
        self._states = states
        self._on_state = on_state
        self.count = 0
        self.cancelled: list[str] = []

    def prepare(self, script: str) -> str:
        raise NotImplementedError

    def submit(self, script: str) -> str:
        raise NotImplementedError

    def state(self, job: str) -> State:
        self.count += 1
        self._on_state(self.count)
        return self._states[min(self.count, len(self._states)) - 1]

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)

    def logs(self, job: str) -> tuple[bytes, bytes]:
        return b"o", b"e"

    def stop(self, job: str) -> str:
        raise NotImplementedError


class Lines(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOGS", "_FIRST", "_LAST"):
        monkeypatch.setattr(jobs, name, 0.001)


def wait(runs: Path, engine: Client, tell: Silent | None = None) -> tuple[Waited, bytes]:
    run_id = submitted(runs, 1)
    item = Submitted(submissions.directory_of(runs, run_id), Submission(engine="slurm", start=start(run_id)), "12")
    printed = bytearray()

    def write(stdout: bytes, stderr: bytes) -> None:
        printed.extend(stdout)

    return jobs.wait(item, engine, write=write, tell=tell or Silent()), bytes(printed)


def test_states_are_reported_once_and_the_exit_code_is_that_of_the_record(tmp_path: Path) -> None:
    tell = Lines()
    waited, printed = wait(
        tmp_path, Fake(PENDING, PENDING, RUNNING, FAILED, on_state=lambda count: _record(tmp_path, count)), tell
    )
    assert tell.lines == ["job 12: pending (Resources)", "job 12: running"]
    assert waited.exit_code == 0  # of the recorded run
    assert set(printed) == set(b"o")


def _record(runs: Path, count: int) -> None:
    if count == 4:
        recorded(runs, 1)


def test_a_job_without_a_record_gives_its_own_exit_code(tmp_path: Path) -> None:
    waited, _ = wait(tmp_path, Fake(FAILED))
    assert (waited.exit_code, waited.submitted.runs) == (16, ())


def test_an_engine_that_does_not_answer_for_a_while_is_asked_again(tmp_path: Path) -> None:
    waited, _ = wait(tmp_path, Fake(RUNNING, UNKNOWN, UNKNOWN, FAILED))
    assert waited.exit_code == 16


FORGOTTEN = State(phase="forgotten", text="Slurm does not know the job any more")


@pytest.mark.parametrize("answer", [UNKNOWN, FORGOTTEN], ids=["a silent engine", "a forgotten job"])
def test_the_record_of_the_run_ends_the_wait_if_the_engine_says_nothing(tmp_path: Path, answer: State) -> None:
    tell = Lines()
    waited, _ = wait(tmp_path, Fake(RUNNING, answer, on_state=lambda count: _record(tmp_path, count)), tell)
    assert waited.exit_code == 0
    assert tell.lines == [
        "job 12: running",
        f"job 12: {answer.text}; waiting for the record of the run, which may still continue",
    ]


def test_a_silent_engine_does_not_end_the_wait(tmp_path: Path) -> None:
    silent = [UNKNOWN] * 500
    waited, _ = wait(tmp_path, Fake(RUNNING, *silent, FAILED))
    assert waited.exit_code == 16


def test_a_forgotten_job_without_a_run_ends_the_wait_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_GRACE", 0.05)
    engine = Fake(PENDING, FORGOTTEN)
    waited, _ = wait(tmp_path, engine)
    assert (waited.exit_code, waited.submitted.runs) == (1, ())
    assert waited.state.text == "Slurm does not know the job any more; its last state was pending (Resources)"
    assert engine.count > 2


def test_a_job_that_does_not_start_without_help_ends_the_wait(tmp_path: Path) -> None:
    held = State(phase="pending", text="pending (launch_failed_requeued_held)", hint="release it", exit_code=16)
    tell = Lines()
    waited, _ = wait(tmp_path, Fake(PENDING, held), tell)
    assert waited.exit_code == 16
    assert tell.lines == ["job 12: pending (Resources)", "job 12: pending (launch_failed_requeued_held)"]
    assert waited.state.hint == "release it"  # the caller reports it


def test_the_last_state_of_a_job_is_kept_until_its_run_starts(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    directory = submissions.directory_of(runs, submitted(runs, 1))
    (item,) = submissions.listing(runs, ())
    program, squeue = tmp_path / "bin", tmp_path / "bin/squeue"
    program.mkdir()

    def state(text: str) -> State:
        squeue.write_text(f"#!/bin/sh\n{text}\n")
        squeue.chmod(0o755)
        return jobs.state_of(item, {"PATH": str(program)})

    forget = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    (program / "sacct").write_text("#!/bin/sh\nexit 1\n")
    (program / "sacct").chmod(0o755)
    assert state(forget).text == "Slurm does not know the job any more"
    assert state(f"echo '12|PENDING|BadConstraints|0|{directory}/job.sh|'").text == "pending (BadConstraints)"
    for _ in range(2):
        assert state(forget).text == "Slurm does not know the job any more; its last state was pending (BadConstraints)"
    assert state(f"echo '12|FAILED|JobLaunchFailure|53|{directory}/job.sh|'").exit_code == 16
    ended = state(forget)
    assert (ended.phase, ended.text, ended.exit_code) == ("ended", "failed (JobLaunchFailure)", 16)
    assert "output files" in ended.hint


def test_a_signal_cancels_the_job_once_and_waits_for_its_end(tmp_path: Path) -> None:
    def interrupt(count: int) -> None:
        if count == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    before, tell = signal.getsignal(signal.SIGTERM), Lines()
    engine = Fake(RUNNING, RUNNING, RUNNING, FAILED, on_state=interrupt)
    waited, _ = wait(tmp_path, engine, tell)
    assert (waited.exit_code, engine.cancelled) == (143, ["12"])
    assert tell.lines[-1] == "cancelled the job 12 (SIGTERM); waiting for its end"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_pending_job_is_not_removed_without_force(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    run_id, done = submitted(tmp_path / "runs", 1), recorded(tmp_path / "runs", 2)
    (directory / "squeue").write_text(
        f"#!/bin/sh\necho '12|PENDING|None|0|{submissions.directory_of(tmp_path / 'runs', run_id)}/job.sh|'\n"
    )
    (directory / "squeue").chmod(0o755)
    environ = {"PATH": str(directory)}
    with pytest.raises(RecordError, match="this run is submitted, and its job has not ended"):
        jobs.remove(tmp_path / "runs", [done.name, run_id], environ, force=False)
    assert records.directories(tmp_path / "runs") == [done]
    removed = jobs.remove(tmp_path / "runs", [done.name, run_id], environ, force=True)
    assert [path.exists() for path in removed] == [False, False]


def test_a_run_that_its_pod_did_not_push_stays_a_submission(tmp_path: Path) -> None:
    run_id, tell = ids.uuid7(1, bytes(10)), Lines()
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho 'Error from server (NotFound): x' >&2\nexit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "catalog").mkdir()
    for catalog in (str(tmp_path / "catalog"), "127.0.0.1:1/team/runs"):
        runs = tmp_path / catalog.replace("/", "-") / "runs"
        submissions.write_job(
            submissions.write(runs, Submission(engine="kubernetes", start=start(run_id), catalog=catalog)), "c/vision/x"
        )
        jobs.bring_home(runs, {"PATH": str(tmp_path)}, tell)
        ((item, state),) = jobs.unfinished(runs, {"PATH": f"{tmp_path}:/bin"}).values()
        assert runpage.before_start(state, item) == "not recorded: Kubernetes does not know the job any more"
    assert len(tell.lines) == 1
    assert tell.lines[0].startswith(f"the job of run {ids.short(run_id)} has ended, but 127.0.0.1:1/team/runs cannot be read: ")


LOST = Job(engine="slurm", id="12", node="node1")
AGAIN = Job(engine="slurm", id="12", node="node2", restarts=1)


def running(runs: Path) -> tuple[str, Recording]:
    """A run of a job that holds its lock."""
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(runs, f"20260701T101501Z-train-{ids.short(run_id)}")
    recording.start(msgspec.structs.replace(start(run_id), job=LOST))
    return run_id, recording


def test_an_attempt_waits_for_the_end_of_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_LOOK", 0.001)
    run_id, recording = running(tmp_path)

    class Ends(Lines):
        def __call__(self, text: str, /) -> None:
            super().__call__(text)
            recording.finish(end(run_id))

    tell = Ends()
    last = jobs.last_attempt(tmp_path, run_id, AGAIN, tell)
    assert last is not None
    assert (last.id, last.state) == (run_id, "done")
    text = (
        f"run {ids.short(run_id)}, the last attempt of job 12, is still running on node1; waiting up to 120 seconds for its end"
    )
    assert tell.lines == [text]


def test_a_process_of_the_same_attempt_is_not_waited_for(tmp_path: Path) -> None:
    run_id, recording = running(tmp_path)
    assert jobs.last_attempt(tmp_path, run_id, LOST, Lines()) is None
    assert jobs.last_attempt(tmp_path, ids.new(), AGAIN, Lines()) is None
    recording.close()


@pytest.mark.parametrize(("restarts", "is_queued"), [(1, True), (31, False)])
def test_a_run_that_does_not_end_queues_the_job_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int, is_queued: bool
) -> None:
    queued: list[Job] = []
    for name, seconds in (("_LOOK", 0.001), ("_LOCK", 0.01)):
        monkeypatch.setattr(jobs, name, seconds)
    monkeypatch.setattr(jobs, "requeue", queued.append)
    run_id, recording = running(tmp_path)
    job = msgspec.structs.replace(AGAIN, restarts=restarts)
    with pytest.raises(RecordError, match="is still running on node1"):
        jobs.last_attempt(tmp_path, run_id, job, Lines())
    assert queued == [job] * is_queued
    recording.close()
