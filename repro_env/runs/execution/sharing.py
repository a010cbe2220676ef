"""Run a command as one of several processes that share a run (`runs.records.processes`)."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from repro_env.io.signals import handled
from repro_env.runs.execution.recording import (
    FinishedRun,
    begin,
    deferred_signals,
    hold,
    record_end,
    runner_of,
    start_command,
    with_advice,
)
from repro_env.runs.records import end as ended
from repro_env.runs.records import records, reports
from repro_env.runs.records.processes import Gathering, Place
from repro_env.runs.records.records import Recording
from repro_env.runs.start import launcher
from repro_env.runs.start.inputs import Inputs
from repro_env.runs.start.origin import Join, Origin
from repro_env.runs.start.report import announce
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.runners import runner_class
from repro_env.schema.progress import Tell
from repro_env.schema.run import End, Member, Outcome, Process


def run(
    member: Member,
    gathering: Gathering,
    prepare: Callable[[Origin | None], Inputs],
    options: RunOptions,
    *,
    backend: Runner | None,
    tell: Tell,
) -> FinishedRun:
    """Run the command of this process, and record the run as the last process. The first one makes it with `prepare(None)`.

    Raises what `prepare` and the runner raise, and `RunError` if another process does not come.
    """
    with gathering:
        directory, inputs = gathering.current(), None
        if directory is None:
            inputs = prepare(None)
            recording = begin(inputs)
            try:
                runner_of(inputs).prepare(inputs.launch, recording.directory)
                gathering.announce(recording.directory)
            except BaseException:
                recording.discard()
                raise
        else:
            recording = Recording(directory, -1)
        place = Place(recording.directory, member)
    try:
        if inputs is None:
            first = records.read(recording.directory)
            recording.start_digest = first.start_digest
            inputs = prepare(Join(run_id=first.id, start=first.start, directory=first.directory))
        devices = inputs.launch.gpus.facts
        process = Process(rank=member.rank, local_rank=member.local_rank, node=member.node, exit_code=None, devices=devices)
        with _ended_by_sigterm():
            nodes = list(dict.fromkeys(process.node for process in place.wait(process, gathering)))
        if len(nodes) > 1 and not options.network:
            raise launcher.no_network(f"{len(nodes)} machines ({', '.join(nodes)})")
        if inputs.origin.records_start:
            announce(inputs, tell)
            where = f" on {len(nodes)} machines" if len(nodes) > 1 else ""
            tell(f"{member.size} processes{where} share the project directory: if two write the same file, the last one counts")
        with hold(inputs):
            outcome, seconds = start_command(inputs, backend, recording)
    except BaseException:
        if _is_last(place, gathering):
            if not place.has_started:
                recording.discard()
            elif inputs is not None:
                _record_end_of_all(inputs, recording, place, tell)
        place.close()
        recording.close()
        raise
    failures = reports.read(Path(inputs.launch.reports) / member.reports_file).failures if outcome.exit_code else ()
    process = msgspec.structs.replace(process, exit_code=outcome.exit_code, signal=outcome.signal, seconds=round(seconds, 3))
    with deferred_signals():
        if _is_last(place, gathering, process, outcome):
            done = _record_end_of_all(inputs, recording, place, tell)
        else:
            end = End(
                schema="repro-env/run-end/1", id=inputs.start.id, ended=ended.timestamp(datetime.now(timezone.utc)),
                seconds=process.seconds, outcome=outcome, outputs=(), special_files=(), removed=(), auto_seeded=(),
            )  # fmt: skip
            done = FinishedRun(recording.directory, inputs.start, end, is_last=False)
        place.close()
        recording.close()
    return with_advice(msgspec.structs.replace(done, own=outcome, failures=failures), inputs)


def _is_last(place: Place, gathering: Gathering, process: Process | None = None, outcome: Outcome | None = None) -> bool:
    """Leave a run, as in `Place.leave`. The last process has all its files in the directory of the run."""
    is_last = place.leave(gathering, process, outcome)
    if is_last:
        start = records.read(place.directory).start
        runner_class(start.runner).restore(place.directory, start.id, start.source.path)
    return is_last


def _record_end_of_all(inputs: Inputs, recording: Recording, place: Place, tell: Tell) -> FinishedRun:
    """Record the end of a run that processes shared, as the last of them."""
    processes, outcome = place.parts()
    seconds = max(process.seconds for process in processes)
    done = record_end(inputs, recording, outcome, seconds, tell, processes=processes)
    place.tidy()
    return done


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process with its clean-up, while no command runs. The first process of a container would ignore it."""

    def end(number: int, frame: object) -> None:  # noqa: ARG001
        raise SystemExit(128 + number)

    with handled([signal.SIGTERM], end):
        yield
