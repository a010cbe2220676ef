"""`repro-env exec`: its options, followed by the user's command, which is not parsed."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer.core import TyperCommand

from repro_env.api.execute import FinishedRun, execute
from repro_env.cli import submission
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import (
    EnvFileOption,
    EnvOption,
    NetworkOption,
    SourceOption,
    SpecOption,
    flag,
    parameters,
    parse_mounts,
    parse_path,
    parse_variables,
    runs_option,
    value,
)
from repro_env.launch.engines import NAMES
from repro_env.runs.execution.recording import signal_name
from repro_env.runs.records.ids import short
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox.gpus import parse as parse_gpus
from repro_env.sandbox.limits import parse_memory, parse_time
from repro_env.sandbox.session import hold_signal
from repro_env.schema.errors import ReproEnvError, UsageError
from repro_env.schema.messages import plural, shorten
from repro_env.schema.progress import Tell
from repro_env.schema.run import UNSEEDED, End, Ids, Limits, Mode, Ranks
from repro_env.schema.rundirectory import FILES, OUTSIDE
from repro_env.schema.runners import HELP, RunnerName
from repro_env.specs.argument import current_directory


def command(
    module: Annotated[bool, flag("-m", "Run a module, for example -m pkg.train.")] = False,
    code: Annotated[bool, flag("-c", "Run Python code, for example -c 'import torch'.")] = False,
    spec: SpecOption = None,
    data: Annotated[
        list[str] | None,
        value(
            "SRC[:DST]",
            "Mount a file or directory read-only. DST defaults to the same absolute path. Captured data is mounted without "
            "this option if it is unchanged and at the same path. With --on kubernetes, SRC is CLAIM or CLAIM/PATH. Repeatable.",
        ),
    ] = None,
    checkpoints: Annotated[
        list[str] | None,
        value("SRC[:DST]", "Mount a persistent, writable directory; created if missing. Repeatable."),
    ] = None,
    data_changed: Annotated[
        bool,
        flag(
            "--data-changed", "Run even if captured data is missing or changed. To mount changed data, also name it with --data."
        ),
    ] = False,
    seed: Annotated[
        str | None, value("N|random", "Set the master seed, 0 to 4294967295. Default: the seed that was set at capture.")
    ] = None,
    ranks: Annotated[
        Ranks,
        value(
            "each|same",
            "each (default): give each rank of a distributed run its own random streams. same: give all ranks those of rank 0.",
        ),
    ] = "each",
    determinism: Annotated[
        Mode,
        value(
            "MODE",
            "warn (default): use deterministic implementations where libraries have them, and record the operations that have none. "
            "strict: fail at such operations. off: do not change the settings of libraries.",
        ),
    ] = "warn",
    ids: Annotated[
        Ids | None,
        value(
            "system|seeded",
            "system: draw uuid4, secrets, os.urandom and the names of tempfile from the system. seeded: draw them from the seed; "
            "they are then predictable, so do not use them for secrets. Default: system, or seeded with --determinism strict.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        value("N", "Set the number of threads of numeric libraries. Default: the number recorded at capture.", min=1, max=4096),
    ] = None,
    trace: Annotated[
        bool,
        flag(
            "--trace",
            "Record the loss and a checksum of the weights for each training step (the first 10,000, then every 1,000th), "
            "and the SHA-256 of all weights every 1,000 steps.",
        ),
    ] = False,
    env: EnvOption = None,
    env_file: EnvFileOption = None,
    network: NetworkOption = False,
    source: SourceOption = None,
    frozen: Annotated[bool, flag("--frozen", "Run the captured code, not the current code.")] = False,
    runner: Annotated[
        RunnerName | None,
        value("NAME", f"{HELP}."),
    ] = None,
    gpus: Annotated[
        str | None,
        value(
            "N|all|none|0,1",
            "Use N of this machine's GPUs, all, none, or those with these indices or UUIDs. Default: all if the environment was "
            "captured with GPUs, otherwise none. With --on, request N for each node; default: none.",
        ),
    ] = None,
    cpus: Annotated[
        float | None, value("N", "Limit the run to the time of N CPUs, such as 4 or 0.5. Default: no limit.", min=0.01, max=4096)
    ] = None,
    memory: Annotated[
        str | None, value("SIZE", "Limit the memory of all processes of the run together, such as 8G. Default: no limit.")
    ] = None,
    time: Annotated[
        str | None,
        value(
            "TIME",
            "End the command after this time: a number of minutes, 90s, 1h30m, 2d, H:M:S or D-H. It gets SIGTERM, and SIGKILL after "
            "30 seconds. With --on, the job has a time limit too. Default: no limit.",
        ),
    ] = None,
    parent: Annotated[
        list[str] | None,
        value("RUN", "Record that this run starts from another run: an ID, `latest`, or the run's directory. Repeatable."),
    ] = None,
    resume: Annotated[
        str | None,
        value(
            "RUN",
            "Resume this run: its outputs are in the project when the command starts, and its seed is used. An ID, `latest`, or the "
            "run's directory.",
        ),
    ] = None,
    tag: Annotated[list[str] | None, value("TAG", "Tag the run, like `repro-env runs tag`. Repeatable.")] = None,
    note: Annotated[str, value("TEXT", "Add a note to the run, like `repro-env runs note`.")] = "",
    push: Annotated[
        str | None,
        value("REF|DIR", "Push the run to this catalog when it has ended, like `repro-env runs push`. Default: do not push it."),
    ] = None,
    runs: Annotated[
        Path | None,
        value("DIR", "Record the run in this directory. Default: runs/ next to the spec's directory.", parser=parse_path),
    ] = None,
    run_id: Annotated[
        str | None,
        value(
            "ID",
            "Use this ID for the run. Job scripts have it: the ID of a submitted run, or of the run that a requeued job resumes. "
            "Processes with the same ID share the run if RANK, LOCAL_RANK and WORLD_SIZE are set.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        value("ENGINE", f"Submit the run as a job, and do not run it on this machine. ENGINE is {' or '.join(NAMES)}."),
    ] = None,
    job: Annotated[
        list[str] | None,
        value(
            "KEY=VALUE",
            "Set what the job requests from its engine, such as partition=gpu; requires --on. `--job help` lists the settings. "
            "Repeatable.",
        ),
    ] = None,
    job_template: Annotated[
        Path | None,
        value(
            "FILE",
            "Merge this file into the job: lines of the job script, or a part of a Kubernetes Job as YAML; requires --on.",
            parser=parse_path,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        value("N", "Use N nodes, whose processes share the run; requires --on. Default: 1.", min=1, max=65536),
    ] = None,
    print_: Annotated[bool, flag("--print", "Prepare the job and print it, but do not submit it; requires --on.")] = False,
    wait: Annotated[
        bool,
        flag("--wait", "Wait for the job, print its output, and exit with the command's exit code; requires --on."),
    ] = False,
) -> None:
    """Run a command in the captured environment and record the run.

    \b
      repro-env exec train.py --lr 0.1        run a script with the image's Python
      repro-env exec -m pkg.train             run a module; -c CODE runs code
      repro-env exec torchrun train.py        run a program on the image's PATH
      repro-env exec --seed 7 -- train.py     pass options to repro-env

    The options of repro-env end at the first word that is not one of them. Everything after it is passed to the command,
    including --seed, --help and --. A script runs in a copy of your source. Files that it writes are kept in the directory
    of the run, runs/<UTC>-<script>-<id>/files. To copy them to the current directory, run `repro-env runs get latest`.

    The exit code is the command's own (128 + N if signal N ended it), or 124 if --time ended the command. Errors of repro-env start with "repro-env: error".
    """


class Command(TyperCommand):
    """A command line of options followed by the user's command, whose words are not parsed as options."""

    allow_extra_args = True
    allow_interspersed_args = False
    usage = "[OPTIONS] [--] COMMAND [ARGS]..."

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **{**settings, "options_metavar": self.usage})

    def invoke(self, ctx: Any) -> int:
        return run(ctx.params, words(ctx), self.params)


class SimilarCommand(Command):
    """A command that has the options of `exec`, except `excluded`, in addition to its own."""

    excluded: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str | None, *, params: list[Any], **settings: Any) -> None:
        shared = parameters(command)
        for option in shared:
            option.hidden = option.name in self.excluded
        super().__init__(name, params=[*params, *shared], **settings)

    def invoke(self, ctx: Any) -> int:
        for name in self.excluded:
            if ctx.params[name]:
                raise UsageError(f"`{self.name}` does not support the option --{name} of `exec`", hint="leave it out")
        return self.run(ctx.params, words(ctx))

    @staticmethod
    def run(options: Mapping[str, Any], command: Sequence[str]) -> int:
        """Run the command. Returns the exit code."""
        raise NotImplementedError


def words(context: Any) -> tuple[str, ...]:
    """The words of the user's command in a context of the parser."""
    return (*["-m"] * context.params["module"], *["-c"] * context.params["code"], *context.args)


def run(options: Mapping[str, Any], command: Sequence[str], params: Sequence[Any]) -> int:
    """Run `repro-env exec`. `params`: its options. Returns the exit code of the user's command. Raises `ReproEnvError`."""
    tell, catalog = messages.prefixed, options["push"]
    if options["on"] is not None and "help" in (options["job"] or ()):
        return submission.explain(options["on"])
    requested = options_of(options).with_command(command, current_directory())
    if catalog is not None and not submission.pushes(options["on"]):
        from repro_env.api.runsshare import check_catalog  # slow to import

        check_catalog(catalog)
    if options["on"] is not None:
        return submission.run(options, requested, params)
    requeues = submission.check_alone(options)
    if requeues:
        hold_signal(signal.SIGUSR1)
    if submission.is_complete(options, tell):
        return 0
    result = execute(options["spec"], command, requested, tell=tell)
    if not result.is_last:  # another process reports the end of the run
        if result.status:
            tell(f"this process: {_outcome(result.end)}")
        return result.status
    report_end(result, tell, runs=options["runs"])
    messages.answer_in_json(result.end)
    if catalog is not None:
        _push(result, catalog, tell)
    if requeues:
        submission.requeue(result, tell)
    return result.status


def _push(result: FinishedRun, catalog: str, tell: Tell) -> None:
    """Push a run. Raises `ReproEnvError` if it cannot be pushed; after a failed command, the error is only printed."""
    from repro_env.api.runsshare import push_runs
    from repro_env.cli.runsshare import report_push

    try:
        pushed = push_runs(catalog, [result.directory.name], runs=result.directory.parent, tell=tell)
        for failure in pushed.failed:
            raise failure.why
    except ReproEnvError as error:
        tell.warn(f"the run was recorded in {result.directory}, but could not be pushed to {catalog}")
        if result.end.outcome.exit_code == 0:  # otherwise, the exit code of the command is more important
            raise
        messages.error(error)
    else:
        report_push(pushed, tell)


def options_of(typed: Mapping[str, Any]) -> RunOptions:
    """The options of a run, as typed. Raises `UsageError`."""
    parsed = {
        "gpus": typed["gpus"] and parse_gpus(typed["gpus"]),
        "limits": Limits(
            cpus=typed["cpus"] or 0,
            memory=parse_memory(typed["memory"]) if typed["memory"] is not None else 0,
            seconds=parse_time(typed["time"]) if typed["time"] is not None else 0,
        ),
        "data": parse_mounts(typed["data"]),
        "checkpoints": parse_mounts(typed["checkpoints"], "--checkpoints"),
        "seed": _parse_seed(typed["seed"]),
        "env": parse_variables(typed["env"]),
        "parents": typed["parent"],
        "tags": typed["tag"],
    }
    given = {name: value for name, value in {**typed, **parsed}.items() if value is not None}
    return RunOptions(output=True, **{name: given[name] for name in RunOptions.__struct_fields__ if name in given})


def _parse_seed(text: str | None) -> Any:
    if text is None or text == "random":
        return text
    if not (text.isascii() and text.isdigit() and int(text) < 2**32):
        message = f'--seed must be an integer between 0 and 4294967295, or "random" (got "{text}")'
        raise UsageError(message, hint="for example: --seed 7")
    return int(text)


def report_end(result: FinishedRun, tell: Tell, *, runs: Path | None = None) -> None:
    """Report how a run ended: two lines, a warning for everything that may be lost, and details. `runs`: the value of --runs."""
    end = result.end
    tell(ending(result))
    for text in result.advice:
        tell(f"hint: {text}")
    if outside := [output for output in end.outputs if output.path.startswith("/")]:
        size = messages.size(sum(output.size for output in outside))
        tell(f"written outside the project: {plural(len(outside), 'file')} ({size}), kept in {result.directory / OUTSIDE}")
    if end.outputs:
        largest = sorted(end.outputs, key=lambda output: (-output.size, output.path))[:3]
        tell.detail("largest outputs: " + ", ".join(f"{output.path} ({messages.size(output.size)})" for output in largest))
    if skipped := [entry for entry in end.special_files if " -> " not in entry]:
        tell.warn(f"in the run's directory, but not in its record: {shorten(skipped, 1)}")
    if result.start.trace and not end.trace:
        tell.warn("nothing was traced: no step of a torch optimizer was detected")
    if notes := seed_notes(end):
        tell("; ".join(notes))
    tell.detail(f"record: {result.directory}")
    run_id = short(end.id)
    tell.detail(f"next: repro-env runs {f'get {run_id} --to DIR' if end.outputs else f'show {run_id}'}{runs_option(runs)}")


def ending(result: FinishedRun) -> str:
    """How the command ended, and where its outputs are."""
    end, text = result.end, _outcome(result.end)
    inside = [output for output in end.outputs if not output.path.startswith("/")]
    if not end.outputs:
        return f"{text}; no outputs"
    if not inside:
        return text
    size = messages.size(sum(output.size for output in inside))
    return f"{text}; {plural(len(inside), 'output')} ({size}) in {result.directory / FILES}"


def _outcome(end: End) -> str:
    outcome = end.outcome
    if outcome.signal:
        text = f"ended by {signal_name(outcome.signal)}" + (", out of memory" if outcome.out_of_memory else "")
    else:
        text = "finished" if not outcome.exit_code else f"exit code {outcome.exit_code}"
        text = f"interrupted by {signal_name(outcome.interrupted)}, {text}" if outcome.interrupted else text
        text += ", a process ran out of memory" if outcome.out_of_memory else ""
    if outcome.timed_out:
        text = f"ended by the time limit (--time; {text})"
    return f"{text} after {end.seconds:.1f} s"


def seed_notes(end: End) -> list[str]:
    """Notes on random generators without a seed, and on operations that are not deterministic."""
    notes = []
    # Generators that libraries create are only recorded.
    if generators := [entry for entry in end.auto_seeded if "-packages/" not in entry]:
        number = plural(len(generators), "unseeded random generator")
        notes.append(f"seeded automatically: {number} ({'first: ' * (len(generators) > 1)}{generators[0]})")
    if programs := [item for item in end.system_randomness if item.what.startswith(UNSEEDED)]:
        places = [f"{item.what.removeprefix(UNSEEDED)} at {item.file}:{item.line}" for item in programs]
        notes.append(f"not seeded: {shorten(places, 1)}")
    if end.operations:
        most_first = sorted(end.operations, key=lambda operation: -operation.count)
        places = [f"{item.what}, {item.count} times at {item.file}:{item.line}" for item in most_first]
        notes.append(f"not deterministic: {shorten(places, 1)}")
    return notes
