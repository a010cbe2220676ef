"""The jobs of submitted runs: their states and output, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.api.runs import remove as remove_runs
from repro_env.io.signals import handled
from repro_env.launch import engines
from repro_env.launch.engine import Client, Phase, State
from repro_env.runs.records import ids, records, submissions
from repro_env.runs.records.records import Run
from repro_env.runs.records.submissions import Submitted
from repro_env.runs.start import resumption
from repro_env.schema import codec
from repro_env.schema.environment import Variable
from repro_env.schema.errors import RecordError, ReproEnvError
from repro_env.schema.progress import Tell
from repro_env.schema.run import Job

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOGS, _FIRST, _LAST = 0.2, 0.5, 10.0
"""Seconds between two looks at the logs; between the first two questions for the state; the longest time between two."""
_ATTEMPTS = 3
"""How many attempts may reach their time limit without progress."""
_LOCK, _LOOK, _AGAIN = 120.0, 1.0, 30
"""Seconds that an attempt waits for the end of the last one, longer than a server of NFSv4 keeps the lock of a lost node (90 seconds);
seconds between two looks; how often the job is queued again for this reason."""
_GRACE = 300.0
"""Seconds that `wait` gives the run of a job that its engine has forgotten to make a record."""


class Waited(msgspec.Struct, frozen=True):
    """How a submitted run ended."""

    submitted: Submitted
    state: State
    stopped: int
    """The signal with which the user stopped it; 0 for none."""

    @property
    def exit_code(self) -> int:
        """That of the command; that of the job if no run was recorded."""
        end = self.submitted.runs[-1].end if self.submitted.runs else None
        if self.stopped:
            return 128 + self.stopped
        return end.outcome.exit_code if end is not None else self.state.exit_code or 1


def client_of(submitted: Submitted, environ: Mapping[str, str], *, variables: Sequence[Variable] = ()) -> Client:
    """Return the client of a job that was submitted, or that is to be submitted with the user's `variables`."""
    submission = submitted.submission
    return engines.get(submission.engine).client(submitted.directory, environ, image=submission.start.image, variables=variables)


def state_of(submitted: Submitted, environ: Mapping[str, str]) -> State:
    """Return the state of a job."""
    return states_of([submitted], environ)[submitted.id]


def states_of(items: Sequence[Submitted], environ: Mapping[str, str]) -> dict[str, State]:
    """Return the states of jobs by the IDs of their runs. Each engine is asked for all of its jobs together.

    The last state of a run that has not started is kept, because engines forget why a job did not start.
    """
    unknown = State(phase="unknown", text="it is not known whether the job was submitted")
    states = {item.id: unknown for item in items if not item.job}
    for name in dict.fromkeys(item.submission.engine for item in items if item.job):
        found = [item for item in items if item.job and item.submission.engine == name]
        answers = engines.get(name).states([(client_of(item, environ), item.job) for item in found])
        states |= {item.id: _keep(item, state) for item, state in zip(found, answers, strict=True)}
    return states


def _keep(item: Submitted, state: State) -> State:
    """Keep the state of a job whose run has not started. Return it, or the last one if its engine has forgotten the job."""
    if item.runs or state.phase == "unknown":
        return state
    data, last = submissions.read_state(item.directory), None
    with contextlib.suppress(ReproEnvError):
        last = codec.decode(data, State, where=str(item.directory)) if data else None
    if state.phase != "forgotten":
        if state != last:
            submissions.write_state(item.directory, codec.pretty(state))
    elif last is not None and last.phase == "ended":
        return last
    elif last is not None and last.phase == "pending":
        return msgspec.structs.replace(last, phase="forgotten", text=f"{state.text}; its last state was {last.text}")
    return state


def requeue(job: Job) -> None:
    """Queue the job of this process again, which ends this process. Raises `EngineError`."""
    engines.get(job.engine).client(Path(), os.environ).requeue(job.id)


def requeue_interrupted(run: Run, tell: Tell) -> None:
    """Queue the job of a run that its time limit interrupted again, unless its attempts make no progress. Raises `EngineError`."""
    job = run.start.job
    if job is None:
        return
    attempts = resumption.chain(run, records.listing(run.directory.parent)[0])
    if resumption.count_without_progress(attempts, signal.SIGUSR1) >= _ATTEMPTS:
        tell.warn(
            f"job {job.id} is not queued again: {_ATTEMPTS} attempts reached the time limit, and no output and no checkpoint has changed"
        )
        tell.warn("hint: save the state of the training to a file, at the latest after SIGUSR1, or request more time with --time")
        return
    tell(f"job {job.id} is queued again, and will resume this run")
    requeue(job)


def last_attempt(runs: Path, run_id: str, job: Job, tell: Tell) -> Run | None:
    """Return the last attempt of the job of this process, after its end; None if this is the first one.

    The run of a lost node continues, and holds its lock. If that takes too long, the job is queued again. Raises `EngineError`, and
    `RecordError` if that does not help.
    """
    deadline = 0.0
    while True:
        attempts = records.attempts(records.listing(runs)[0], run_id)
        last = next(reversed(attempts), None)
        # Another process of this attempt may have started the run that this process shares.
        if last is None or last.start.job is None or (last.start.job.id, last.start.job.restarts) == (job.id, job.restarts):
            return None
        if last.state != "running":
            return last
        where = f"run {last.short}, the last attempt of job {job.id}, is still running on {last.start.job.node}"
        if not deadline:
            deadline = time.monotonic() + _LOCK
            tell(f"{where}; waiting up to {_LOCK:.0f} seconds for its end")
        elif time.monotonic() > deadline:
            if job.restarts >= len(attempts) + _AGAIN:
                raise RecordError(where, where=last.directory.name, hint="stop it there, then start the job again")
            tell(f"{where}; job {job.id} is queued again")
            requeue(job)
            raise RecordError(where, where=last.directory.name, hint="the job is queued again, and will resume it")
        time.sleep(_LOOK)


def unfinished(runs: Path, environ: Mapping[str, str]) -> dict[str, tuple[Submitted, State]]:
    """Return the submitted runs that have not ended, or whose end was an interruption, with the states of their jobs.

    By the ID of the last attempt, or of the submission if the run has not started.
    """
    if not submissions.listing(runs, ()):  # then nothing asks for the records
        return {}
    recorded = records.listing(runs)[0]
    waiting = [item for item in submissions.listing(runs, recorded) if not item.is_finished]
    states = states_of(waiting, environ)
    return {item.runs[-1].id if item.runs else item.id: (item, states[item.id]) for item in waiting}


def bring_home(runs: Path, environ: Mapping[str, str], tell: Tell) -> None:
    """Pull the runs of jobs that have ended and do not share this directory of runs. A failure is only reported."""
    waiting = [item for item in submissions.listing(runs, ()) if item.submission.catalog]
    if not waiting:
        return
    recorded = records.listing(runs)[0]
    for item in waiting:
        if not records.attempts(recorded, item.id) and state_of(item, environ).phase == "ended":
            try:
                _pull(item)
            except ReproEnvError as error:
                tell.warn(
                    f"the job of run {ids.short(item.id)} has ended, but {item.submission.catalog} cannot be read: {error.what}"
                )


def _pull(submitted: Submitted) -> None:
    """Pull a run. One that its job has not pushed, because it was killed, stays a submission."""
    from repro_env.api.runsshare import pull_runs  # slow to import

    with contextlib.suppress(RecordError):
        pull_runs(submitted.submission.catalog, [submitted.id], runs=submitted.directory.parent.parent)


def locate(runs: Path, word: str) -> Path | Submitted:
    """Return the directory of a run, or a submitted run that has not started. Raises `RecordError` if there is neither."""
    try:
        return records.find(runs, word)
    except RecordError:
        found = submissions.find(submissions.listing(runs, ()), word)
        if found is None:
            raise
        return found


def remove(runs: Path, words: Sequence[str], environ: Mapping[str, str], *, force: bool) -> tuple[Path, ...]:
    """Remove runs, with their jobs' files, and submitted runs that will not start. Raises as `api.runs.remove`."""
    names, directories = [], []
    for word in words:
        found = locate(runs, word)
        if isinstance(found, Path):
            names.append(found.name)
            continue
        if not force and state_of(found, environ).phase in ("pending", "running"):
            hint = f"cancel the job first: {client_of(found, environ).stop(found.job)}"
            raise RecordError("this run is submitted, and its job has not ended", where=word, hint=hint)
        directories.append(found.directory)
    removed = remove_runs(runs, names, force=force)
    for directory in directories:
        submissions.remove(directory)
    return (*removed, *directories)


def wait(
    submitted: Submitted, client: Client, *, write: Callable[[bytes, bytes], None], tell: Tell, others: Sequence[str] = ()
) -> Waited:
    """Wait until a job has ended, and report its states. Ctrl-C, SIGTERM and SIGHUP cancel it.

    `write` gets what it prints on stdout and stderr. `others`: the IDs of the further runs of an array job. If the engine does not
    answer or has forgotten the job, the records of the runs decide. Raises `EngineError` if the job cannot be cancelled.
    """
    job, state, stopped = submitted.job, State(phase="unknown", text=""), 0
    due, pause, answered = 0.0, _FIRST, time.monotonic()
    with _stops() as signals:
        while state.phase != "ended" and state.exit_code is None:
            write(*client.logs(job))
            if signals and not stopped:
                stopped = signals[0]
                client.cancel(job)
                tell(f"cancelled the job {job} ({signal.Signals(stopped).name}); waiting for its end")
                due, pause = 0.0, _FIRST
            if time.monotonic() < due:
                time.sleep(_LOGS)
                continue
            before, state = state, _keep(submitted, client.state(job))
            if state.phase in ("forgotten", "unknown"):
                is_new = state.phase == "forgotten" and time.monotonic() < answered + _GRACE
                if not _may_continue(submitted, others, state.phase, is_new=is_new):
                    break
                if state.phase != before.phase:
                    tell(f"job {job}: {state.text}; waiting for the record of the run, which may still continue")
            else:
                answered = time.monotonic()
                if state.text != before.text and state.phase != "ended":
                    tell(f"job {job}: {state.text}")
                    if state.hint and state.exit_code is None:
                        tell(f"hint: {state.hint}")
            due, pause = time.monotonic() + pause, min(pause * 1.5, _LAST)
        write(*client.logs(job))
    if submitted.submission.catalog:
        _pull(submitted)
    return Waited(msgspec.structs.replace(submitted, runs=tuple(_attempts(submitted, submitted.id))), state, stopped)


def _may_continue(submitted: Submitted, others: Sequence[str], phase: Phase, *, is_new: bool) -> bool:
    """Whether a run of a job may still write its record, of which the engine says nothing.

    A run without a record may still start: for ever if the engine does not answer, else while `is_new`. If the engine has forgotten
    the job, it does not queue it again, so an interrupted run has ended.
    """
    if submitted.submission.catalog:
        with contextlib.suppress(ReproEnvError):  # the registry may not answer either
            _pull(submitted)
    for run_id in (submitted.id, *others):
        last = next(reversed(_attempts(submitted, run_id)), None)
        if last is None:
            is_over = phase == "forgotten" and not is_new
        elif phase == "forgotten":
            is_over = last.state != "running"
        else:
            is_over = last.end is not None and not last.end.outcome.interrupted
        if not is_over:
            return True
    return False


def _attempts(submitted: Submitted, run_id: str) -> list[Run]:
    return records.attempts(records.listing(submitted.directory.parent.parent)[0], run_id)


@contextlib.contextmanager
def _stops() -> Iterator[list[int]]:
    """Collect the signals that stop a command. The second one ends this process."""
    received: list[int] = []

    def take(number: int, frame: object) -> None:  # noqa: ARG001
        received.append(number)
        signal.signal(number, before[number])

    with handled(_STOPS, take) as before:
        yield received
