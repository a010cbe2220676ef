"""The command `repro-env exec --on`: submit a run to a scheduler.

Everything that `exec` checks is checked before the job is submitted. The image, the code and the spec are in the store and next to
the runs from then on, so a job that waits for days runs what was submitted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.api import execute
from repro_env.launch import slurm
from repro_env.launch.slurm import Resources, Slurm
from repro_env.runs.records import ids, records, submissions
from repro_env.runs.records.submissions import Submission, Submitted
from repro_env.runs.start.inputs import Inputs
from repro_env.runs.start.request import RunOptions, variables_of
from repro_env.schema.environment import values_of
from repro_env.schema.errors import UsageError
from repro_env.schema.progress import Tell
from repro_env.schema.run import Start
from repro_env.specs.argument import Opened
from repro_env.store.specs import archive
from repro_env.store.store import Store


class Planned(msgspec.Struct, frozen=True):
    """Runs that are to be submitted as one job."""

    inputs: Inputs
    starts: tuple[Start, ...]
    """What each run starts from. They differ in the ID and the seed."""
    script: str


def plan(
    options: RunOptions, opened: Opened, words: Sequence[str], resources: Resources, *, count: int = 1, store: Store, tell: Tell
) -> Planned:
    """Check runs that are to be submitted: one, or `count` with consecutive seeds, as the tasks of an array job.

    `words`: the options of `exec` on the node. Those that this function decides are added. Raises as `execute.run`.
    """
    if options.runner != "embedded":
        raise UsageError(f"--on slurm does not support --runner {options.runner}", hint="leave out --runner")
    inputs = execute.prepare(options, opened, compiles=False, is_here=False, store=store, tell=tell)
    start = inputs.start
    others = (msgspec.structs.replace(start, id=ids.new(), seed=(start.seed + number) % 2**32) for number in range(1, count))
    starts = (start, *others)
    spec = archive.directory_of(inputs.runs, start.spec_file or "")
    decided = ["--spec", str(spec), "--runs", str(inputs.runs)]
    decided += [word for name in start.given for word in ("--env", name)]
    tool = [str(path)] if (path := Path(sys.executable).with_name("repro-env")).is_file() else [sys.executable, "-m", "repro_env"]
    files = submissions.directory_of(inputs.runs, start.id)
    job = slurm.Job(
        runs=tuple((start.id, start.seed) for start in starts),
        name=f"{records.script_of(start.command)}-{ids.short(start.id)}",
        command=(*tool, "exec", *words, *decided),
        words=options.command,
        directory=str(options.here),
        jobs=str(files.parent),
        store=str(store.root),
        needed=(tool[0], str(store.root), str(files), str(spec)),
    )
    return Planned(inputs, starts, slurm.render(job, resources))


def submit(planned: Planned, *, store: Store) -> Submitted:
    """Submit the job of planned runs; return the first of them, whose job is the complete one.

    Raises `EngineError`, `RecordError`, `DiskError`; nothing is left behind then.
    """
    inputs, options = planned.inputs, planned.inputs.options
    store.run_directories.add(inputs.runs, inputs.start.source.trees)
    written: list[Path] = []
    try:
        written.extend(submissions.write(inputs.runs, Submission(engine="slurm", start=start)) for start in planned.starts)
        job = Slurm(written[0], {**options.environ, **values_of(variables_of(options))}).submit(planned.script)
    except BaseException:
        for directory in written:
            submissions.remove(directory)
        raise
    for number, directory in enumerate(written):
        submissions.write_job(directory, f"{job}_{number}" if len(written) > 1 else job)
    return Submitted(written[0], Submission(engine="slurm", start=planned.starts[0]), job)
