"""The command `repro-env verify`: run a recorded run again from the same start, and compare the outputs.

The record and the outputs of the first run are not changed: the new run has its own directory, and private copies of what was in
the `--checkpoints`. If something that it needs is missing, nothing is run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.api import execute
from repro_env.api.arguments import absolute
from repro_env.api.execute import FinishedRun
from repro_env.api.runs import find_runs_directory
from repro_env.compare.outputs import ignorefile
from repro_env.compare.outputs import results as outputs
from repro_env.compare.outputs import verdict as judging
from repro_env.compare.outputs.ignore import parse
from repro_env.compare.outputs.inspector import CompareTensors, tensor_comparer
from repro_env.compare.outputs.results import Globs
from repro_env.compare.outputs.verdict import Promise, Repetition, Verdict
from repro_env.runs.execution import streams
from repro_env.runs.execution.recording import signal_name
from repro_env.runs.records import records
from repro_env.runs.records.records import Run
from repro_env.runs.start import repeat
from repro_env.runs.start.inputs import host_facts
from repro_env.runs.start.origin import Project
from repro_env.runs.start.repeat import Repeat
from repro_env.runs.start.request import Pairs, RunOptions, read_env_file
from repro_env.sandbox import plan
from repro_env.sandbox.runner import Runner
from repro_env.schema.environment import Environ, values_of
from repro_env.schema.messages import shorten
from repro_env.schema.progress import SILENT, Details, Tell
from repro_env.schema.run import End
from repro_env.schema.runners import DEFAULT, RunnerName
from repro_env.specs.argument import Opened, current_directory, open_spec
from repro_env.store.store import Store

_NAMED = 3
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    run: FinishedRun | Path | str = "latest",
    *,
    runs: Path | str | None = None,
    results: Sequence[str] = (),
    ignore: Sequence[str] = (),
    data: Pairs = (),
    env: Mapping[str, str | None] | None = None,
    env_file: Path | str | None = None,
    network: bool = False,
    spec: str | None = None,
    source: Path | str | None = None,
    runner: RunnerName | None = None,
    keep: bool = False,
    output: bool = False,
    environ: Mapping[str, str] | None = None,
    store: Store | None = None,
    tell: Tell = SILENT,
    backend: Runner | None = None,
    look: CompareTensors | None = None,
) -> Verified:
    """Run a recorded run again, and compare the outputs. The options are those of `repro-env verify`.

    `run`: what `execute` returned, the directory of a run, an ID, or "latest". `source`: the directory that has the code of the run.
    `data`: new paths of recorded data, or unrecorded data that a run on the host read. `network`: the new run gets the network if
    the recorded run had it. `runner`: None for the recorded one, and for the image if that is the host. `output`: show what the
    command prints. `backend` runs the command in the image, and `look` compares tensor files there; tests replace both.

    Raises `RecordError` if the run cannot be verified, `SpecError` and `SourceError` if its spec or code is missing,
    `UsageError` if it needs values of variables, and the errors of `execute` before a run starts.
    """
    here, store = current_directory(), store or Store.open()
    directory = run if isinstance(run, Path) else None if isinstance(run, str) else run.directory
    searched = find_runs_directory(absolute(runs), here) if directory is None else directory.absolute().parent
    first = records.read(records.find(searched, str(run) if directory is None else directory.name))
    end = repeat.end_of(first)
    left = outputs.side(first.directory, end, repeat.checkpoint_mounts(first))
    globs = Globs(results=tuple(results), ignored=tuple(map(parse, ignore)))
    globs.check(end, left.digests)
    found_spec = repeat.find_spec(first, here=here, store=store) if spec is None else open_spec(spec, here, store, tell)
    options = RunOptions(
        data=data,
        env={**dict(read_env_file(absolute(env_file))), **(env or {})},
        network=network,
        source=None if source is None else Path(source).resolve(),
        runner=runner or (first.start.runner if first.start.traits.is_isolated else DEFAULT),
        note=f"verifies {first.short}" if keep else "",
        keeps_record=keep,
        output=output,
        here=here,
        environ=Environ(os.environ if environ is None else environ),
    )
    again = repeat.of(first, Project(found_spec.spec, found_spec.directory, searched, store), options)
    project = ignorefile.project(searched, found_spec.directory)
    globs = msgspec.structs.replace(globs, ignored=(*globs.ignored, *ignorefile.ignores(project)))
    promise = judging.predict(first.start, end, _here(again))
    kinds = outputs.kinds(left, globs)
    if "result" not in kinds:
        problem = f"{judging.nothing(kinds)}. The command was not run again"
        return Verified(run=first, verdict=judging.verdict((), promise, problem=problem))
    tell(promise.sentence)
    problems = repeat.data_problems(first, again.data, store, tell)
    with store.temp.directory() as temporary:
        with tell.progress(0, "copying checkpoints"):
            mounts, changed = repeat.copy_checkpoints(first, temporary / "checkpoints")
        if problems or changed:
            return Verified(run=first, verdict=_cannot_start(first, problems, changed, promise))
        options = msgspec.structs.replace(
            again.options,
            checkpoints=tuple((mount.source, mount.target) for mount in mounts),
            runs=searched if keep else temporary / "runs",
        )
        label = f"running again (the first run took {end.seconds:.0f} s)"
        with streams.stdout_to_stderr(), contextlib.nullcontext() if output else tell.progress(0, label):
            opened = Opened(again.spec, found_spec.directory)
            done = execute.run(options, opened, again, store=store, tell=Details(tell), backend=backend)
        kept = done.directory if keep else None
        outcome = done.end.outcome
        if number := outcome.signal or outcome.interrupted:
            memory = ", out of memory" if outcome.out_of_memory else ""
            found = judging.verdict((), promise, problem=f"the new run was ended by {signal_name(number)}{memory}")
            stopped = number if number in _STOPS else 0
            return Verified(run=first, verdict=found, directory=kept, stopped=stopped)
        if problem := _missing_files_problem(first, end, done):
            return Verified(run=first, verdict=judging.verdict((), promise, problem=problem), directory=kept)
        right = outputs.side(done.directory, done.end, mounts)
        for file in globs.unmatched(left, right):
            tell(f"--ignore {file} does not match an output of the two runs")
        with tell.progress(0, f"comparing with {first.directory.name}"):
            found = judging.verdict(
                outputs.compare(left, right, globs, look or tensor_comparer(again.spec, options, store)),
                promise,
                problem=_exit(end, done.end),
                failure=_failure(end, done.end),
                causes=judging.causes(end.settings, done.end.settings),
                first=outputs.first_step(first.directory, done.directory),
            )
        return Verified(run=first, verdict=found, directory=kept, project=project, problem=_exit(end, done.end))


def _here(again: Repeat) -> Repetition:
    from repro_env.environment.machine import host as machine

    options, recorded = again.options, again.run.start
    return Repetition(
        host=host_facts(),
        threads=values_of(plan.threads(again.spec, options.determinism, options.threads)),
        devices=machine.host().gpus if options.gpus != 0 else (),
        given=recorded.env_names,
        runner=options.runner,
        unrecorded=tuple(sorted(again.data.keys() - {fact.target for fact in recorded.data})),
        missing=tuple(path for path in recorded.source.ignored if path not in again.start.source.ignored),
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
    problem = f"the new run cannot start from the same files: {shorten([*data, *checkpoints], _NAMED, '; ')} ({'; '.join(hints)})"
    return judging.verdict((), promise, problem=problem)


def _missing_files_problem(run: Run, end: End, done: FinishedRun) -> str:
    """Return why a failure of the new run may come from missing files, which the first run could read on the host; or ""."""
    failed = _exit(end, done.end)
    if not failed or run.start.traits.is_isolated or not done.end.outcome.exit_code:
        return ""
    host = " or use --runner host" if done.start.traits.is_isolated else ""
    return (
        f"{failed}; the recorded run was on the host, where it could read every file: "
        f"name the files that it read with --data{',' if host else ''}{host}"
    )


def _failure(then: End, now: End) -> str:
    """Return how the command failed in both runs; or ""."""
    if not then.outcome.status or not now.outcome.status or _exit(then, now):
        return ""
    how = "its time limit" if now.outcome.timed_out else f"exit code {now.outcome.exit_code}"
    return f"the command failed in both runs ({how})"


def _exit(then: End, now: End) -> str:
    if then.outcome.exit_code == now.outcome.exit_code:
        return ""
    return f"the command ended with exit code {now.outcome.exit_code} and not {then.outcome.exit_code}; -v prints its output"
