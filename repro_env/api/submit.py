"""The command `repro-env exec --on`: submit a run to a scheduler.

Everything that `exec` checks is checked before the job is submitted. The image, the code and the spec are in the store and next to
the runs from then on, so a job that waits for days runs what was submitted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

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
from repro_env.specs.argument import Opened
from repro_env.store.specs import archive
from repro_env.store.store import Store


def plan(
    options: RunOptions, opened: Opened, words: Sequence[str], resources: Resources, *, store: Store, tell: Tell
) -> tuple[Inputs, str]:
    """Check a run that is to be submitted. Return what it starts from, and the job script.

    `words`: the options of `exec` on the node. Those that this function decides are added. Raises as `execute.run`.
    """
    if options.runner != "embedded":
        raise UsageError(f"--on slurm does not support --runner {options.runner}", hint="leave out --runner")
    inputs = execute.prepare(options, opened, compiles=False, is_here=False, store=store, tell=tell)
    start = inputs.start
    spec = archive.directory_of(inputs.runs, start.spec_file or "")
    decided = ["--run-id", start.id, "--spec", str(spec), "--runs", str(inputs.runs), "--seed", str(start.seed)]
    decided += [word for name in start.given for word in ("--env", name)]
    tool = [str(path)] if (path := Path(sys.executable).with_name("repro-env")).is_file() else [sys.executable, "-m", "repro_env"]
    files = submissions.directory_of(inputs.runs, start.id)
    job = slurm.Job(
        run_id=start.id,
        name=f"{records.script_of(start.command)}-{ids.short(start.id)}",
        command=(*tool, "exec", *words, *decided, "--", *options.command),
        directory=str(options.here),
        files=str(files),
        store=str(store.root),
        needed=(tool[0], str(store.root), str(files), str(spec)),
    )
    return inputs, slurm.render(job, resources)


def submit(inputs: Inputs, manifest: str, *, store: Store) -> Submitted:
    """Submit a run. Raises `EngineError`, `RecordError`, `DiskError`; nothing is left behind then."""
    options = inputs.options
    store.run_directories.add(inputs.runs, inputs.start.source.trees)
    directory = submissions.write(inputs.runs, Submission(engine="slurm", start=inputs.start))
    try:
        job = Slurm(directory, {**options.environ, **values_of(variables_of(options))}).submit(manifest)
    except BaseException:
        submissions.remove(directory)
        raise
    submissions.write_job(directory, job)
    return Submitted(directory, Submission(engine="slurm", start=inputs.start), job)
