"""The jobs of submitted runs: their states and output, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.api.runs import remove as remove_runs
from repro_env.launch.engine import Engine, State
from repro_env.launch.slurm import Slurm
from repro_env.runs.records import ids, records, submissions
from repro_env.runs.records.records import Run
from repro_env.runs.records.submissions import Submitted
from repro_env.schema.environment import Variable, values_of
from repro_env.schema.errors import EngineError, RecordError, ReproEnvError
from repro_env.schema.progress import Tell
from repro_env.schema.run import Job

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOGS, _FIRST, _LAST = 0.2, 0.5, 10.0
"""Seconds between two looks at the logs; between the first two questions for the state; the longest time between two."""
_LOST = 300.0
"""Seconds without an answer about a job after which `wait` gives up."""


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


def engine_of(submitted: Submitted, environ: Mapping[str, str], *, variables: Sequence[Variable] = ()) -> Engine:
    """Return the engine of a job that was submitted, or that is to be submitted with the user's `variables`."""
    if submitted.submission.engine == "kubernetes":
        from repro_env.launch.kubernetes import Kubernetes  # slow to import

        return Kubernetes(submitted.directory, environ, submitted.submission.start.image, variables=variables)
    return Slurm(submitted.directory, {**environ, **values_of(variables)})


def state_of(submitted: Submitted, environ: Mapping[str, str]) -> State:
    """Return the state of a job."""
    if not submitted.job:
        return State(phase="unknown", text="it is not known whether the job was submitted")
    return engine_of(submitted, environ).state(submitted.job)


def requeue(job: Job) -> None:
    """Queue the job of this process again, which ends this process. Raises `EngineError`."""
    Slurm(Path(), os.environ).requeue(job.id)


def unfinished(runs: Path, recorded: Sequence[Run], environ: Mapping[str, str]) -> dict[str, tuple[Submitted, State]]:
    """Return the submitted runs that have not ended, or whose end was an interruption, with the states of their jobs.

    By the ID of the last attempt, or of the submission if the run has not started. `recorded`: the runs in `runs`, newest first.
    """
    waiting = [item for item in submissions.listing(runs, recorded) if not item.is_finished]
    return {item.runs[-1].id if item.runs else item.id: (item, state_of(item, environ)) for item in waiting}


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
            hint = f"cancel the job first: {engine_of(found, environ).stop(found.job)}"
            raise RecordError("this run is submitted, and its job has not ended", where=word, hint=hint)
        directories.append(found.directory)
    removed = remove_runs(runs, names, force=force)
    for directory in directories:
        submissions.remove(directory)
    return (*removed, *directories)


def wait(submitted: Submitted, engine: Engine, *, write: Callable[[bytes, bytes], None], tell: Tell) -> Waited:
    """Wait until a job has ended, and report its states. Ctrl-C, SIGTERM and SIGHUP cancel it.

    `write` gets what it prints on stdout and stderr. Raises `EngineError` if the engine does not know the job any more.
    """
    job, state, stopped = submitted.job, State(phase="unknown", text=""), 0
    due, pause, answered = 0.0, _FIRST, time.monotonic()
    with _stops() as signals:
        while state.phase != "ended":
            write(*engine.logs(job))
            if signals and not stopped:
                stopped = signals[0]
                engine.cancel(job)
                tell(f"cancelled the job {job} ({signal.Signals(stopped).name}); waiting for its end")
                due, pause = 0.0, _FIRST
            if time.monotonic() < due:
                time.sleep(_LOGS)
                continue
            before, state = state, engine.state(job)
            if state.text != before.text and state.phase in ("pending", "running"):
                tell(f"job {job}: {state.text}")
                if state.hint:
                    tell(f"hint: {state.hint}")
            if state.phase != "unknown":
                answered = time.monotonic()
            elif time.monotonic() > answered + _LOST:
                hint = f"look at {submitted.directory}, and at the records with `repro-env runs list`"
                raise EngineError(f"the state of the job {job} is not known any more: {state.text}", hint=hint)
            due, pause = time.monotonic() + pause, min(pause * 1.5, _LAST)
        write(*engine.logs(job))
    runs = submitted.directory.parent.parent
    if submitted.submission.catalog:
        _pull(submitted)
    attempts = records.attempts(records.listing(runs)[0], submitted.id)
    return Waited(msgspec.structs.replace(submitted, runs=tuple(attempts)), state, stopped)


@contextlib.contextmanager
def _stops() -> Iterator[list[int]]:
    """Collect the signals that stop a command. The second one ends this process."""
    received: list[int] = []
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _STOPS}

    def take(number: int, frame: object) -> None:  # noqa: ARG001
        received.append(number)
        signal.signal(number, before[number])

    for stop in before:
        signal.signal(stop, take)
    try:
        yield received
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)
