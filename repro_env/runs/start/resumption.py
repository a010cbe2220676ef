"""Find the run that a new run resumes: the run of `--resume`, or the last attempt of a job that was queued again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import times_of, walk
from repro_env.oci.entry import escape
from repro_env.runs.lineage import parents
from repro_env.runs.records import ids, records
from repro_env.runs.records.records import Run
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import workspace
from repro_env.sandbox.runners import runner_class
from repro_env.schema.errors import RecordError, SpecError, UsageError
from repro_env.schema.run import Parent, SourceFact
from repro_env.schema.rundirectory import OUTSIDE
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def find(options: RunOptions, spec: Spec, runs: Path) -> tuple[str, Run | None]:
    """Return the id of the new run, and the run to resume, or None for a run that starts anew.

    A run with the id of `--run-id` exists if the job was queued again after it. Then its last attempt is resumed, under a new id.
    Raises `UsageError` for an invalid id, `RecordError` if the run does not exist or is running, and `SpecError` if it has another
    spec.
    """
    if options.run_id is not None and not _ID.fullmatch(options.run_id):
        hint = f"leave it out, or take a new one: {ids.new()}"
        raise UsageError(
            "this is not the id of a run, which is a UUID of version 7", where=f"--run-id {options.run_id}", hint=hint
        )
    run_id, run = options.run_id or ids.new(), None
    if options.run_id is not None:
        run = next(reversed(records.attempts(records.listing(runs)[0], options.run_id)), None)
    if run is not None:
        run_id = ids.new()
    elif options.resume is not None:
        run = records.read(parents.directory_of(options.resume, runs, options.here))
    if run is None:
        return run_id, None
    if run.state == "running":
        hint = "wait until it ends, or stop it first"
        raise RecordError("this run is still running, so it cannot be resumed", where=run.directory.name, hint=hint)
    if run.start.spec != spec.digest:
        hint = f"name the spec of the run with --spec {runs}/specs/…, or start a new run without --resume"
        raise SpecError(f"the run to resume has another spec ({run.start.spec[:19]}…)", where=run.directory.name, hint=hint)
    return run_id, run


def restore(run: Run, store: Store) -> None:
    """Remove everything but outputs from the files of a run that was interrupted before it could do so itself."""
    if run.state != "interrupted":
        return
    source = run.start.source
    tree = store.layers.path(source.tree_in_run)
    if tree is not None:
        with contextlib.suppress(OSError):
            runner_class(run.start.runner).restore(run.directory, run.id, source.path)
            workspace.collect(run.directory, tree, [])


def require_outputs(run: Run, store: Store) -> None:
    """Make the outputs of a run ready for the run that resumes it. Raises `RecordError` if they cannot be separated from its code."""
    restore(run, store)
    if not workspace.is_collected(run.directory):
        raise RecordError(
            "the outputs of this killed run cannot be separated from its code, which is not in the store any more",
            where=str(run.files),
            hint="copy the outputs into the project, and start a new run",
        )


def with_times(source: SourceFact, run: Run) -> SourceFact:
    """Return the source of a run that resumes `run`, with the times of its outputs."""
    directories = (("", run.files), ("/", run.files.with_name(OUTSIDE)))
    outputs = ((prefix, times_of(walk(directory))) for prefix, directory in directories if directory.is_dir())
    times = {escape(prefix + path): time for prefix, found in outputs for path, time in found.items()}
    return msgspec.structs.replace(source, times={**source.times, **times})


def parent_of(run: Run) -> Parent:
    """Return the resumed run as a parent of the run that resumes it."""
    return Parent(id=run.id, record=run.end_digest or None, how="outputs")


def chain(run: Run, runs: Sequence[Run]) -> list[Run]:
    """Return a run and those that it resumed, one after the other, oldest first. `runs`: those in its directory. Pure."""
    by_id, found = {item.id: item for item in runs}, [run]
    while (earlier := by_id.get(found[0].start.resume_of or "")) is not None and earlier not in found:
        found.insert(0, earlier)
    return found


def count_without_progress(attempts: Sequence[Run], number: int) -> int:
    """Return how many of the last attempts of a job a signal interrupted before they changed an output or a checkpoint. Pure.

    `attempts`: oldest first, the first may be of an earlier job. One that was killed, or interrupted by another signal, is not counted: it may have had no time.
    """
    jobs = [run.start.job and run.start.job.id for run in attempts]
    count, before = 0, frozenset[tuple[str, str]]()
    for job, start, end in ((job, run.start, run.end) for job, run in zip(jobs, attempts, strict=True)):
        if end is None:
            continue
        after = frozenset((output.path, output.sha256) for output in end.outputs)
        if after != before or start.checkpoints_before != end.checkpoints_after:
            count = 0
        elif end.outcome.interrupted == number and job == jobs[-1]:
            count += 1
        before = after
    return count
