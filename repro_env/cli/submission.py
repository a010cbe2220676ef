"""`repro-env exec --on ENGINE`: the job, and its end with --wait."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from repro_env.api import execute, jobs, submit
from repro_env.api.execute import FinishedRun
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import runs_option
from repro_env.launch.slurm import Resources, Slurm
from repro_env.runs.lineage.parents import directory_of
from repro_env.runs.records import records
from repro_env.runs.records.ids import short
from repro_env.runs.start.launcher import no_network
from repro_env.runs.start.report import announce
from repro_env.runs.start.request import job_of
from repro_env.sandbox.limits import parse_time
from repro_env.schema.errors import RunError, UsageError
from repro_env.schema.progress import Details, Tell
from repro_env.specs.argument import Opened, open_spec
from repro_env.store.specs.lookup import runs_directory
from repro_env.store.store import Store

_SLURM = ("partition", "account", "tasks_per_node", "requeue", "slurm_arg")
_KUBERNETES = ("namespace", "gpu_product", "registry_secret", "shared")
OPTIONS = ("on", "time", "print_", "wait", "nodes", *_SLURM, *_KUBERNETES)
"""The options of `exec` for a run that is submitted. The run on the node has `requeue` of them."""
_GPU_ARGUMENTS = ("--gres=gpu", "--gpus-per-")
_DECIDED = ("spec", "runs", "run_id", "seed", "env", "env_file", "gpus", "module", "code")
"""Options of `exec` on the node that `api.submit` adds, or that have another meaning there."""
_DECIDED_IN_POD = ("data", "checkpoints", "source", "frozen", "runner", "network", "push")
_NOT_IN_POD = ("resume", "parent")
"""Options that name runs of this machine."""


def run(options: Mapping[str, Any], command: Sequence[str], arguments: dict[str, Any], params: Sequence[Any]) -> int:
    """Submit the run. `arguments`: of `execute`; `params`: the options of `exec`. Returns the exit code. Raises `ReproEnvError`."""
    tell, store = messages.prefixed, Store.open()
    planned = _plan(options, command, arguments, params, count=1, store=store)
    if options["print_"]:
        messages.result(planned.script.rstrip("\n"))
        tell("this is the job; nothing was submitted")
        return 0
    if not options["wait"]:  # otherwise the output of the job has the same lines
        # The directory has the time of the start in its name.
        without_directory = msgspec.structs.replace(planned.inputs.options, keeps_record=False)
        announce(msgspec.structs.replace(planned.inputs, options=without_directory), tell)
    submitted = submit.submit(planned, store=store, tell=tell)
    run_id = short(submitted.id)
    tell(f"run {run_id} was submitted as job {submitted.job}")
    if not options["wait"]:
        messages.answer_in_json({"run": submitted.id, "job": submitted.job, "directory": str(submitted.directory)})
        more = runs_option(options["runs"])
        stop = jobs.engine_of(submitted, os.environ).stop(submitted.job)
        tell(f"next: repro-env runs show {run_id}{more} (its state), repro-env runs logs {run_id}{more}, {stop}")
        return 0
    waited = jobs.wait(submitted, jobs.engine_of(submitted, os.environ), write=_write, tell=tell)
    last = waited.submitted.runs[-1] if waited.submitted.runs else None
    if last is None or last.end is None:
        what = "the job ended" if waited.state.phase == "ended" else f"job {submitted.job} is not waited for any longer,"
        tell.warn(f"{what} without the record of the end of a run: {waited.state.text}")
        if waited.state.hint:
            tell.warn(f"hint: {waited.state.hint}")
    messages.answer_in_json({"run": last, "job": submitted.job, "state": waited.state})
    return waited.exit_code


def run_seeds(
    options: Mapping[str, Any], command: Sequence[str], arguments: dict[str, Any], params: Sequence[Any], *, count: int
) -> tuple[dict[int, FinishedRun], int]:
    """Run a command with `count` consecutive seeds as one array job, and wait for all runs.

    Returns the finished runs by seed, and the signal with which the user stopped them, or 0. Raises `ReproEnvError`.
    """
    tell, store = messages.prefixed, Store.open()
    if options["on"] != "slurm":
        raise UsageError(
            f"`sensitivity` does not support --on {options['on']}", hint="use --on slurm, or submit one run for each seed"
        )
    if (largest := Slurm(Path(), os.environ).largest_array()) and count > largest:
        what = f"--seeds {count} is more than the {largest} tasks that an array job of this cluster can have (MaxArraySize)"
        raise UsageError(what, hint="run the command several times, each with other values of --seed and --seeds")
    planned = _plan(options, command, arguments, params, count=count, store=store)
    announce(planned.inputs, Details(tell))
    submitted = submit.submit(planned, store=store, tell=tell)
    tell(f"{count} runs were submitted as the array job {submitted.job}")
    waited = jobs.wait(
        submitted,
        jobs.engine_of(submitted, os.environ),
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
            hint = f"its messages: repro-env runs logs {short(start.id)}{runs_option(options['runs'])}"
            raise RunError(f"the run of seed {start.seed} has no record of its end: {waited.state.text}", hint=hint)
    return finished, waited.stopped


def _plan(
    options: Mapping[str, Any],
    command: Sequence[str],
    arguments: dict[str, Any],
    params: Sequence[Any],
    *,
    count: int,
    store: Store,
) -> submit.Planned:
    tell, engine = messages.prefixed, options["on"]
    for name in _SLURM if engine == "kubernetes" else _KUBERNETES:
        if options[name]:
            raise _requires(name)
    opened = open_spec(arguments.pop("spec"), store=store, tell=tell)
    if engine == "kubernetes":
        return _plan_pod(options, command, arguments, params, opened, store=store)
    gpus = check_gpus(arguments.pop("gpus"), options["slurm_arg"] or ())
    made = execute.options_of(command, **arguments)
    runs = made.runs or opened.runs or runs_directory(opened.directory)
    # `latest` may be another run when the job starts.
    parents = [str(directory_of(word, runs, made.here)) for word in options["parent"] or ()]
    resume = options["resume"] and str(directory_of(options["resume"], runs, made.here))
    tasks = (options["nodes"] or 1) * (options["tasks_per_node"] or 1)
    if tasks > 1 and count > 1:
        raise UsageError("runs with several seeds have one process each", hint="leave out --nodes and --tasks-per-node")
    if (options["nodes"] or 1) > 1 and not made.network:
        raise no_network(f"{options['nodes']} machines")
    shown = "all" if gpus and tasks > 1 else gpus or "none"  # Slurm tells the tasks which of them are theirs
    words = ("--gpus", str(shown), *node_words({**options, "parent": parents, "resume": resume}, params))
    resources = Resources(
        partition=options["partition"],
        account=options["account"],
        time=slurm_time(options["time"]),
        cpus=math.ceil(made.limits.cpus),
        memory=made.limits.memory,
        gpus=gpus if isinstance(gpus, int) else 0,
        nodes=options["nodes"] or 1,
        tasks_per_node=options["tasks_per_node"] or 1,
        requeue=options["requeue"],
        arguments=tuple(options["slurm_arg"] or ()),
    )
    return submit.plan(made, opened, words, resources, count=count, store=store, tell=tell)


def _plan_pod(
    options: Mapping[str, Any],
    command: Sequence[str],
    arguments: dict[str, Any],
    params: Sequence[Any],
    opened: Opened,
    *,
    store: Store,
) -> submit.Planned:
    from repro_env.launch import kubernetes  # slow to import

    tell, gpus = messages.prefixed, arguments.pop("gpus") or 0
    if not isinstance(gpus, int):
        hint = "give a number, and their model with --gpu-product"
        raise UsageError(f"--gpus {gpus} does not say how many GPUs the job gets", hint=hint)
    for name in _NOT_IN_POD:
        if options[name]:
            what = f"--on kubernetes does not support --{name}, because pods do not have the runs of this machine"
            raise UsageError(what, hint=f"leave out --{name}")
    kinds: tuple[Literal["data", "checkpoints"], ...] = ("data", "checkpoints")
    claims = [kubernetes.parse_claim(kind, *pair) for kind in kinds for pair in arguments.pop(kind)]
    nodes = options["nodes"] or 1
    shared = kubernetes.parse_shared(options["shared"], nodes)
    made = execute.options_of(command, **arguments)
    passed = {**options, **dict.fromkeys(_DECIDED_IN_POD)}
    time = ("--time", f"{made.limits.seconds}s") if made.limits.seconds else ()
    words = ("--gpus", str(gpus or "none"), *time, *node_words(passed, params))
    resources = kubernetes.Resources(
        namespace=options["namespace"] or kubernetes.current_namespace(os.environ),
        nodes=nodes,
        gpus=gpus,
        gpu_product=options["gpu_product"],
        cpus=made.limits.cpus,
        memory=made.limits.memory,
        seconds=made.limits.seconds,
        registry_secret=options["registry_secret"],
    )
    return submit.plan_pod(made, opened, words, resources, claims, shared, catalog=options["push"], store=store, tell=tell)


def check_gpus(request: int | str | None, arguments: Sequence[str]) -> int | str:
    """The number of GPUs that the job requests; or `all` if options of sbatch do. Without a request, the run gets none.

    Raises `UsageError` for GPUs by name, because Slurm chooses them.
    """
    is_requested = any(argument.startswith(_GPU_ARGUMENTS) for argument in arguments)
    if request is None:
        return "all" if is_requested else 0
    if isinstance(request, int) or (request == "all" and is_requested):
        return request
    hint = "give a number, for example --gpus 1, or request them as the cluster names them: --slurm-arg=--gres=gpu:a100:2"
    raise UsageError(f"--gpus {request} does not say how many GPUs the job gets", hint=hint)


def slurm_time(text: str | None) -> str | None:
    """A value of --time as sbatch reads it, which has no units: `1h30m` is `90`. Seconds are rounded up to minutes."""
    return text if text is None or not text[-1:].isalpha() else str(-(-parse_time(text) // 60))


def check_alone(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for an option that a run on this machine cannot have."""
    for name in OPTIONS:
        if options[name] and name != "time" and not (name == "requeue" and job_of(os.environ)):
            raise _requires(name)


def _requires(name: str) -> UsageError:
    option = name.rstrip("_").replace("_", "-")
    engine = "slurm" if name in _SLURM else "kubernetes" if name in _KUBERNETES else "slurm or --on kubernetes"
    return UsageError(f"--{option} requires --on {engine}", hint=f"add it, or leave out --{option}")


def is_complete(options: Mapping[str, Any], tell: Tell) -> bool:
    """Whether the last attempt of the job of this process has completed the run. Waits for its end. Raises `ReproEnvError`."""
    job = job_of(os.environ)
    if job is None or job.engine != "slurm" or options["run_id"] is None or options["runs"] is None:
        return False
    last = jobs.last_attempt(options["runs"], options["run_id"], job, tell)
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


def node_words(options: Mapping[str, Any], params: Sequence[Any]) -> Iterator[str]:
    """Yield the options of `exec` on the node, as words. `params`: those that the parser of `exec` knows."""
    for param in params:
        value = options.get(param.name)
        if (
            (param.name in (*OPTIONS, *_DECIDED) and param.name != "requeue")
            or value in (None, False, "", [], ())
            or value == param.default
        ):
            continue
        if param.is_flag:
            yield param.opts[0]
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            yield from (param.opts[0], str(item))
