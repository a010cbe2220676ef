"""Run a prepared command and record the run, from its directory to its end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from repro_env.io.files import remove_tree
from repro_env.io.patience import PATIENCE
from repro_env.io.signals import handled
from repro_env.runs.execution import imageprogram
from repro_env.runs.execution.advice import Advisor
from repro_env.runs.execution.streams import silent
from repro_env.runs.records import annotation, checkpointstate, records, reports
from repro_env.runs.records import end as ended
from repro_env.runs.records.records import Recording
from repro_env.runs.records.reports import Failure
from repro_env.runs.start.inputs import Inputs
from repro_env.runs.start.request import secrets_of
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.session import FORWARDED
from repro_env.sandbox.workspace import collect
from repro_env.schema import redact
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.progress import Tell
from repro_env.schema.run import End, Outcome, Process, Start
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE


class FinishedRun(msgspec.Struct, frozen=True):
    directory: Path
    start: Start
    end: End
    failures: tuple[Failure, ...] = ()
    """What a failed command did not find."""
    advice: tuple[str, ...] = ()
    """What the user can do about the failure: one line each."""
    own: Outcome | None = None
    """The outcome of this process, if it shares the run with others."""
    stopped: int = 0
    """The signal that came while the outputs were read, so that they are not all recorded; or 0."""
    is_last: bool = True
    """Whether this process recorded the end of the run. If not, `end` has only what this process knows, and others still run."""

    @property
    def status(self) -> int:
        """The exit code of `exec`."""
        status = (self.own or self.end.outcome).status
        return 128 + self.stopped if self.stopped and not status else status


def run(inputs: Inputs, backend: Runner | None, tell: Tell) -> FinishedRun:
    """Run the command of a run of one process, and record it. Raises what the runner raises if the command cannot be started."""
    with hold(inputs):
        recording = begin(inputs)
        try:
            outcome, seconds = start_command(inputs, backend, recording)
        except ReproEnvError:
            recording.discard()
            raise
        with deferred_signals():
            done = record_end(inputs, recording, outcome, seconds, tell)
    return with_advice(done, inputs)


@contextlib.contextmanager
def hold(inputs: Inputs) -> Iterator[None]:
    """Hold what a run uses of the store while it runs."""
    store = inputs.project.store
    store.run_directories.add(inputs.runs, inputs.start.source.trees)
    # A run may take days, and garbage collection may remove everything that it does not use.
    with store.lease.restrict_to(_used_entries(inputs)):
        yield


def _used_entries(inputs: Inputs) -> list[str]:
    """Return the names of the store entries that a run uses."""
    launch, directory = inputs.launch, inputs.project.directory
    spec = directory.name if directory.parent == inputs.project.store.root / "specs" else None
    names = (launch.image, *launch.layers, launch.snapshot, inputs.repository.digest, spec)
    return [name for name in names if name is not None]


def begin(inputs: Inputs) -> Recording:
    """Make the directory of a run with the record of its start."""
    options = inputs.options
    recording = records.begin(inputs.runs, inputs.run_directory.name, more=[Path(inputs.launch.reports).name])
    try:
        recording.start(inputs.start)
        for tag in options.tags:
            annotation.add(recording.directory, kind="tag", text=tag)
        for note in (*map(annotation.exception, options.exceptions), *filter(None, (options.note,))):
            annotation.add(recording.directory, kind="note", text=note)
        checkpointstate.write(recording.directory, CHECKPOINTS_BEFORE, inputs.checkpoints)
    except ReproEnvError:
        recording.discard()
        raise
    return recording


def start_command(inputs: Inputs, backend: Runner | None, recording: Recording) -> tuple[Outcome, float]:
    """Run the command; return how it ended, and the seconds that it took. `backend`: None for the runner of the options."""
    backend = backend or runner_of(inputs)
    began = time.monotonic()
    with contextlib.nullcontext() if inputs.options.output else silent((1, 2)):
        outcome = backend.run(inputs.launch, directory=recording.directory)
    return outcome, time.monotonic() - began


def runner_of(inputs: Inputs) -> Runner:
    """Return the runner of the command of a run."""
    options = inputs.options
    return imageprogram.runner(inputs.spec, options, inputs.project.store, bytecode=inputs.bytecode, hidden=secrets_of(options))


def record_end(
    inputs: Inputs, recording: Recording, outcome: Outcome, seconds: float, tell: Tell, *, processes: tuple[Process, ...] = ()
) -> FinishedRun:
    """Record the outputs and the end of a run."""
    launch, start, store = inputs.launch, inputs.start, inputs.project.store
    with tell.progress(0, "recording outputs"):
        removed: tuple[str, ...] = ()
        problems: list[str] = []
        try:
            trees = (store.layers.path(diff_id) for diff_id in launch.layers)
            removed = collect(recording.directory, inputs.source.tree, [tree for tree in trees if tree is not None])
        except (OSError, ReproEnvError) as error:
            problems.append(redact.line(f"(the outputs are not complete: {error})"))
            tell.warn(f"the outputs are not complete: {error}")
        after = checkpointstate.scan(launch.mounts, store)
        end = ended.read_end(
            launch,
            start,
            outcome,
            run_directory=recording.directory,
            seconds=seconds,
            started=recording.start_digest,
            removed=removed,
            problems=problems,
            after=after,
            processes=processes,
            store=store,
        )
        if stopped := PATIENCE.ended_by:
            end = msgspec.structs.replace(end, outcome=msgspec.structs.replace(end.outcome, interrupted=stopped))
            tell.warn(
                f"{signal_name(stopped)} came while the outputs were read: the record is not complete, and names what is missing"
            )
        failures = reports.of_run(Path(launch.reports)).failures if outcome.exit_code else ()
        with contextlib.suppress(OSError):
            remove_tree(Path(launch.reports))
        try:
            checkpointstate.write(recording.directory, CHECKPOINTS_AFTER, after)
        except ReproEnvError as error:
            tell.warn(f"the list of the checkpoint files after the run could not be written: {error}")
        try:
            recording.finish(end)
        except ReproEnvError as error:
            tell.warn(f"the run is finished, but its end could not be recorded: {error}")
            recording.close()
            if outcome.exit_code == 0:  # otherwise, the exit code of the command is more important
                raise
    return FinishedRun(recording.directory, start, end, failures=failures, stopped=stopped)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def with_advice(done: FinishedRun, inputs: Inputs) -> FinishedRun:
    """Return a run with advice, if its command failed."""
    if not done.status or not inputs.options.traits.has_own_root:
        return done
    return msgspec.structs.replace(done, advice=Advisor(inputs, inputs.project.store).lines(done.failures, done.directory))


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Let no signal end this process while a run is recorded: a second Ctrl-C must not lose the record of the run.

    Outputs that are not read two seconds after SIGINT, SIGTERM, SIGHUP or SIGQUIT are recorded by name.
    """

    def defer(number: int, frame: object) -> None:  # noqa: ARG001
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            PATIENCE.limit(number)

    with handled(sorted(FORWARDED), defer):
        try:
            yield
        finally:
            PATIENCE.restore()
