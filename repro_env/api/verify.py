"""The command `repro-env verify`: run a recorded run again from the same start, and compare the outputs.

The record and the outputs of the first run are not changed: the new run has its own directory, and private copies of what was in
the `--checkpoints`. If something that it needs is missing, nothing is run.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.api.execute import FinishedRun, execute, host_facts
from repro_env.api.runs import find_runs_directory
from repro_env.compare import rerun
from repro_env.compare.outputs import ignorefile, results
from repro_env.compare.outputs import verdict as judging
from repro_env.compare.outputs.comparison import first_few
from repro_env.compare.outputs.inspector import CompareTensors, tensor_comparer
from repro_env.compare.outputs.results import Globs
from repro_env.compare.outputs.verdict import Promise, Repetition, Verdict
from repro_env.runs.execution import streams
from repro_env.runs.records import records
from repro_env.runs.records.records import Run
from repro_env.runs.start import snapshot
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import plan
from repro_env.sandbox.runner import Runner
from repro_env.schema.environment import values_of
from repro_env.schema.progress import Details, Tell
from repro_env.schema.run import End, RunnerName
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

_NAMED = 3
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, parsed."""

    word: str
    """The name of the run, as typed."""
    here: Path
    environ: Mapping[str, str]
    runs: Path | None = None
    spec: str | None = None
    source: Path | None = None
    """The directory that has the code of the run, if the user names one."""
    globs: Globs = Globs()
    """The options; the file repro-env.ignore adds to them."""
    env: tuple[tuple[str, str | None], ...] = ()
    env_file: Path | None = None
    data: tuple[tuple[str, str], ...] = ()
    """(SRC, DST) as typed: new paths of recorded data, or unrecorded data that a run on the host read. DST may be empty."""
    network: bool = False
    """Whether the new run gets the network if the recorded run had it."""
    runner: RunnerName | None = None
    """The runner of the new run; None for the recorded one, and for the image if that is the host."""
    keep: bool = False
    output: bool = False
    """Show what the command prints."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    run: Run
    verdict: Verdict
    directory: Path | None = None
    """The directory of the new run, with `keep`."""
    stopped: int = 0
    """The signal with which the user ended the new run; 0 for none."""
    project: Path | None = None
    """The directory whose repro-env.ignore is used; None if no outputs were compared."""
    problem: str = ""
    """A difference of the runs that is not in an output: the exit code."""


def verify(
    wanted: VerifyRequest,
    *,
    store: Store,
    tell: Tell,
    backend: Runner | None = None,
    look: CompareTensors | None = None,
) -> Verified:
    """Run a recorded run again, and compare the outputs.

    `backend` runs the command in the image, and `look` compares tensor files there; tests replace both.

    Raises `RecordError` if the run cannot be verified, `SpecError` and `SourceError` if its spec or code is missing,
    `UsageError` if it needs values of variables, and the errors of `execute` before a run starts.
    """
    runs = find_runs_directory(wanted.runs, wanted.here)
    run = records.read(records.find(runs, wanted.word))
    end = rerun.end_of(run)
    run, unrecorded = rerun.relocate_data(run, wanted.data, wanted.here)
    left = results.side(run.directory, end, rerun.checkpoint_mounts(run))
    wanted.globs.check(end, left.digests)
    spec, directory = rerun.spec_of(run, wanted.spec, here=wanted.here, runs=runs, store=store, tell=tell)
    rerun.check_given(run, wanted.env, wanted.env_file, network=wanted.network)
    project = ignorefile.project(run.directory.parent, directory)
    globs = msgspec.structs.replace(wanted.globs, ignored=(*wanted.globs.ignored, *ignorefile.ignores(project)))
    spec = rerun.restore_source(run, spec, directory, here=wanted.here, runs=runs, store=store, given=wanted.source)
    note = f"verifies {run.short}" if wanted.keep else ""
    options = rerun.request(run, wanted.env, wanted.env_file, wanted.environ, note=note, runner=wanted.runner)
    start = msgspec.structs.replace(run.start, source=snapshot.drop_missing(run.start.source, store))
    options = msgspec.structs.replace(options, data=(*options.data, *unrecorded), recorded=start)
    promise = judging.predict(run.start, end, _here(run, spec, options, [target for _, target in unrecorded]))
    kinds = results.kinds(left, globs)
    if "result" not in kinds:
        problem = f"{judging.nothing(kinds)}. The command was not run again"
        return Verified(run=run, verdict=judging.verdict((), promise, problem=problem))
    tell(promise.sentence)
    problems = rerun.data_problems(run, store, tell)
    with store.temp.directory() as temporary:
        with tell.progress(0, "copying checkpoints"):
            mounts, changed = rerun.copy_checkpoints(run, temporary / "checkpoints")
        if problems or changed:
            return Verified(run=run, verdict=_cannot_start(run, problems, changed, promise))
        options = msgspec.structs.replace(
            options,
            checkpoints=tuple((mount.source, mount.target) for mount in mounts),
            runs=run.directory.parent if wanted.keep else temporary / "runs",
            keeps_record=wanted.keep,
            output=wanted.output,
        )
        label = f"running again (the first run took {end.seconds:.0f} s)"
        with streams.stdout_to_stderr(), contextlib.nullcontext() if wanted.output else tell.progress(0, label):
            done = execute(options, rerun.expect_data(spec, run), directory, store=store, tell=Details(tell), backend=backend)
        kept = done.directory if wanted.keep else None
        outcome = done.end.outcome
        if outcome.signal:
            memory = ", out of memory" if outcome.out_of_memory else ""
            found = judging.verdict((), promise, problem=f"the new run was ended by {_name(outcome.signal)}{memory}")
            stopped = outcome.signal if outcome.signal in _STOPS else 0
            return Verified(run=run, verdict=found, directory=kept, stopped=stopped)
        if problem := _missing_files_problem(run, end, done):
            return Verified(run=run, verdict=judging.verdict((), promise, problem=problem), directory=kept)
        right = results.side(done.directory, done.end, mounts)
        for file in wanted.globs.unmatched(left, right):
            tell(f"--ignore {file} does not match an output of the two runs")
        with tell.progress(0, f"comparing with {run.directory.name}"):
            found = judging.verdict(
                results.compare(left, right, globs, look or tensor_comparer(spec, options, store)),
                promise,
                problem=_exit(end, done.end),
                causes=judging.causes(end.effective, done.end.effective),
                first=results.first_step(run.directory, done.directory),
            )
        return Verified(run=run, verdict=found, directory=kept, project=project, problem=_exit(end, done.end))


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _here(run: Run, spec: Spec, options: RunOptions, unrecorded: Sequence[str]) -> Repetition:
    from repro_env.environment.machine import host as machine

    then, now = run.start.source, (options.recorded or run.start).source
    return Repetition(
        host=host_facts(),
        threads=values_of(plan.threads(spec, options.determinism, options.threads)),
        devices=machine.host().gpus if options.gpus else (),
        given=tuple(variable.name for variable in run.start.given),
        runner=options.runner,
        unrecorded=tuple(unrecorded),
        missing=tuple(path for path in then.ignored if path not in now.ignored),
    )


def _cannot_start(run: Run, data: Sequence[str], checkpoints: Sequence[str], promise: Promise) -> Verdict:
    """Return the verdict if data or checkpoints changed since the run, with hints."""
    hints = ["restore it, or name a copy of it: verify --data SRC:DST"] if data else []
    if checkpoints:
        target = next(fact.target for fact in run.start.data if fact.kind == "checkpoints")
        hints.append(
            "restore these checkpoints from a backup; to verify a run that resumes from another run, let it read the old "
            f"checkpoints with --data and write to a new directory: exec --data OLD --checkpoints NEW:{target}"
        )
    problem = (
        f"the new run cannot start from the same files: {first_few([*data, *checkpoints], _NAMED, '; ')} ({'; '.join(hints)})"
    )
    return judging.verdict((), promise, problem=problem)


def _missing_files_problem(run: Run, end: End, done: FinishedRun) -> str:
    """Return why a failure of the new run may come from missing files, which the first run could read on the host; or ""."""
    failed = _exit(end, done.end)
    if not failed or run.start.runner != "host" or not done.end.outcome.exit_code:
        return ""
    host = "" if done.start.runner == "host" else " or use --runner host"
    return (
        f"{failed}; the recorded run was on the host, where it could read every file: "
        f"name the files that it read with --data{',' if host else ''}{host}"
    )


def _exit(then: End, now: End) -> str:
    if then.outcome.exit_code == now.outcome.exit_code:
        return ""
    return f"the command ended with exit code {now.outcome.exit_code} and not {then.outcome.exit_code}; -v prints its output"
