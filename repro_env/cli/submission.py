"""`repro-env exec --on ENGINE`: the job, and its end with --wait."""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from repro_env.api import jobs, submit
from repro_env.api.execute import FinishedRun
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import runs_option
from repro_env.launch import engines, settings
from repro_env.launch.engines import JobOptions
from repro_env.runs.records import records
from repro_env.runs.records.ids import short
from repro_env.runs.start.report import announce
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import RunError, UsageError
from repro_env.schema.options import options_of
from repro_env.schema.progress import Details, Tell
from repro_env.specs.argument import Opened, open_spec
from repro_env.store.store import Store


def run(spec: str | None, requested: RunOptions, job: JobOptions) -> int:
    """Submit the run. Returns the exit code. Raises `ReproEnvError`."""
    tell, store = messages.prefixed, Store.open()
    planned = submit.plan(requested, open_spec(spec, store=store, tell=tell), job, store=store, tell=tell)
    if job.print:
        submitted = submit.submit(planned, prints=True, store=store, tell=tell)
        messages.result(planned.script.rstrip("\n"))
        tell(f"this is the job of run {short(submitted.id)}; its files are prepared, and it is not submitted")
        if given := planned.inputs.start.env_names:
            tell(f"the job needs the values of these variables, which were not printed: {', '.join(given)}")
        return 0
    if not job.wait:  # otherwise the output of the job has the same lines
        # The directory has the time of the start in its name.
        without_directory = msgspec.structs.replace(planned.inputs.options, keeps_record=False)
        announce(msgspec.structs.replace(planned.inputs, options=without_directory), tell)
    submitted = submit.submit(planned, store=store, tell=tell)
    run_id = short(submitted.id)
    tell(f"run {run_id} was submitted as job {submitted.job}")
    if not job.wait:
        messages.answer_in_json({"run": submitted.id, "job": submitted.job, "directory": str(submitted.directory)})
        more = runs_option(requested.runs)
        stop = jobs.client_of(submitted, os.environ).stop(submitted.job)
        tell(f"next: repro-env runs show {run_id}{more} (its state), repro-env runs logs {run_id}{more}, {stop}")
        return 0
    waited = jobs.wait(submitted, jobs.client_of(submitted, os.environ), write=_write, tell=tell)
    last = waited.submitted.runs[-1] if waited.submitted.runs else None
    if last is None or last.end is None:
        what = "the job ended" if waited.state.phase == "ended" else f"job {submitted.job} is not waited for any longer,"
        tell.warn(f"{what} without the record of the end of a run: {waited.state.text}")
        if waited.state.hint:
            tell.warn(f"hint: {waited.state.hint}")
    messages.answer_in_json({"run": last, "job": submitted.job, "state": waited.state})
    return waited.exit_code


def run_seeds(opened: Opened, requested: RunOptions, job: JobOptions) -> tuple[dict[int, FinishedRun], int]:
    """Run a command with `job.count` consecutive seeds as one array job, and wait for all runs.

    Returns the finished runs by seed, and the signal with which the user stopped them, or 0. Raises `ReproEnvError`.
    """
    tell, store = messages.prefixed, Store.open()
    job.engine.check_count(job.count, os.environ)
    planned = submit.plan(requested, opened, job, store=store, tell=tell)
    announce(planned.inputs, Details(tell))
    submitted = submit.submit(planned, store=store, tell=tell)
    tell(f"{job.count} runs were submitted as the array job {submitted.job}")
    waited = jobs.wait(
        submitted,
        jobs.client_of(submitted, os.environ),
        write=lambda *_: None,
        tell=tell,
        others=[start.id for start in planned.starts[1:]],
    )
    finished: dict[int, FinishedRun] = {}
    recorded = records.listing(planned.inputs.runs)[0]
    for start in planned.starts:
        attempts = records.attempts(recorded, start.id)
        if attempts and (end := attempts[-1].end) is not None:
            finished[start.seed] = FinishedRun(attempts[-1].directory, attempts[-1].start, end)
        elif not waited.stopped:
            hint = f"its messages: repro-env runs logs {short(start.id)}{runs_option(requested.runs)}"
            raise RunError(f"the run of seed {start.seed} has no record of its end: {waited.state.text}", hint=hint)
    return finished, waited.stopped


def check_alone(job: JobOptions) -> bool:
    """Return whether this process queues its job again. Raises `UsageError` for an option that a run on this machine cannot have."""
    current = engines.job_of(os.environ) if job.settings else None
    for name, (field, _) in options_of(JobOptions).items():
        if getattr(job, name) != field.default and name != "catalog" and not (name == "settings" and current is not None):
            hint = f"add --on {' or --on '.join(engines.NAMES)}, or leave out --{field.encode_name}"
            raise UsageError(f"--{field.encode_name} requires --on", hint=hint)
    return current is not None and settings.parse(engines.get(current.engine), job.settings).requeues


def is_complete(requested: RunOptions, tell: Tell) -> bool:
    """Whether the last attempt of the job of this process has completed the run. Waits for its end. Raises `ReproEnvError`."""
    job = engines.job_of(os.environ)
    if job is None or requested.run_id is None or requested.runs is None:
        return False
    last = jobs.last_attempt(requested.runs, requested.run_id, job, tell)
    if last is None or last.end is None or last.end.outcome.exit_code:
        return False
    tell(f"the last attempt, run {last.short}, has completed; nothing is left to do")
    return True


def requeue(result: FinishedRun, tell: Tell) -> None:
    """Queue the job of this process again if its time limit interrupted the run before it was complete. Raises `EngineError`."""
    outcome = result.end.outcome
    if outcome.interrupted == signal.SIGUSR1 and outcome.exit_code:
        jobs.requeue_interrupted(records.read(result.directory), tell)


def _write(stdout: bytes, stderr: bytes) -> None:
    for stream, data in ((sys.stdout, stdout), (sys.stderr, stderr)):
        if data and stream is not None:
            stream.flush()
            stream.buffer.write(data)
            stream.buffer.flush()
