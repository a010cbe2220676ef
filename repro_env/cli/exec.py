"""`repro-env exec`: its options, followed by the user's command, which is not parsed."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from repro_env.api.execute import FinishedRun, execute, has_policy
from repro_env.cli.ui import messages
from repro_env.cli.ui.defaults import ConfiguredCommand
from repro_env.cli.ui.options import SpecOption, flag, options, parameters, read, runs_option
from repro_env.launch.engine import PodEngine
from repro_env.launch.engines import JobOptions
from repro_env.runs.execution.recording import signal_name
from repro_env.runs.records import records
from repro_env.runs.records.ids import short
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox.session import hold_signal
from repro_env.schema.errors import ReproEnvError, UsageError
from repro_env.schema.messages import plural, shorten
from repro_env.schema.progress import Tell
from repro_env.schema.run import UNSEEDED, End
from repro_env.schema.rundirectory import FILES, OUTSIDE
from repro_env.specs.argument import Opened, current_directory, open_spec
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.policy.judge import Judgement


def command(
    module: Annotated[bool, flag("-m", "Run a module, for example -m pkg.train.")] = False,
    code: Annotated[bool, flag("-c", "Run Python code, for example -c 'import torch'.")] = False,
    spec: SpecOption = None,
) -> None:
    """Run a command in the captured environment and record the run.

    \b
      repro-env exec train.py --lr 0.1        run a script with the image's Python
      repro-env exec -m pkg.train             run a module; -c CODE runs code
      repro-env exec torchrun train.py        run a program on the image's PATH
      repro-env exec --seed 7 -- train.py     pass options to repro-env

    Everything from the first word that is not an option of repro-env is passed to the command, also --seed, --help and --. A script runs in a copy of your source. `repro-env runs get latest` copies the files that it wrote to the current
    directory.

    The exit code is the command's own (128 + N if signal N ended it), or 124 if --time ended the command. It is 1 if the
    command succeeded and the run breaks the project's policy. Errors of repro-env start with "repro-env: error".
    """


class Command(ConfiguredCommand):
    """A command line of options followed by the user's command, whose words are not parsed as options."""

    allow_extra_args = True
    allow_interspersed_args = False
    usage = "[OPTIONS] [--] COMMAND [ARGS]..."

    def __init__(self, name: str | None, *, params: list[Any], **settings: Any) -> None:
        shared = [*options(RunOptions), *options(JobOptions)]
        super().__init__(name, params=[*params, *shared], **{**settings, "options_metavar": self.usage})

    def invoke(self, ctx: Any) -> int:
        return run(ctx.params, words(ctx))


class SimilarCommand(Command):
    """A command that has the options of `exec`, except `excluded`, in addition to its own."""

    excluded: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str | None, *, params: list[Any], **settings: Any) -> None:
        super().__init__(name, params=[*params, *parameters(command)], **settings)
        self.hidden_options: list[Any] = [option for option in self.params if option.name in self.excluded]
        for option in self.hidden_options:
            option.hidden = True

    def invoke(self, ctx: Any) -> int:
        for option in self.hidden_options:
            if ctx.params[option.name]:
                raise UsageError(f"`{self.name}` does not support the option {option.opts[0]} of `exec`", hint="leave it out")
        return self.run(ctx.params, words(ctx))

    @staticmethod
    def run(options: Mapping[str, Any], command: Sequence[str]) -> int:
        """Run the command. Returns the exit code."""
        raise NotImplementedError


def words(context: Any) -> tuple[str, ...]:
    """The words of the user's command in a context of the parser."""
    return (*["-m"] * context.params["module"], *["-c"] * context.params["code"], *context.args)


def run(typed: Mapping[str, Any], command: Sequence[str]) -> int:
    """Run `repro-env exec`. Returns the exit code of the user's command. Raises `ReproEnvError`."""
    tell, job, requeue = messages.prefixed, read(JobOptions, typed), None
    if job.engine and "help" in job.settings:
        return _explain(job)
    requested = read(RunOptions, typed, output=True, defaults=typed["defaults"]).with_command(command, current_directory())
    if job.catalog is not None and not isinstance(job.engine, PodEngine):  # a pod pushes the run with a login of its own
        from repro_env.api.runsshare import check_catalog  # slow to import

        check_catalog(job.catalog)
    if job.engine:
        from repro_env.cli import submission  # slow to import

        return submission.run(typed["spec"], requested, job)
    if requested.run_id is not None or job != JobOptions(catalog=job.catalog):
        from repro_env.cli import submission

        if submission.check_alone(job):
            hold_signal(signal.SIGUSR1)
            requeue = submission.requeue
        if submission.is_complete(requested, tell):
            return 0
    store = Store.open()
    opened = open_spec(typed["spec"], store=store, tell=tell)
    result = execute(opened, command, requested, store=store, tell=tell)
    if not result.is_last:  # another process reports the end of the run
        if result.status:
            tell(f"this process: {_outcome(result.end)}")
        return result.status
    report_end(result, tell, runs=requested.runs)
    judgements = judge_end(opened, result.directory, requested)
    report_policy(judgements, tell)
    messages.answer_in_json(result.end, policy=judgements)
    if job.catalog is not None:
        _push(result, job.catalog, tell)
    if requeue:
        requeue(result, tell)
    return result.status or int(any(judgement.state == "broken" for judgement in judgements))


def judge_end(opened: Opened, directory: Path, requested: RunOptions) -> list[Judgement]:
    """The rules of the project's policy that the run broke in what is known only after it, also those with an exception."""
    if not has_policy(requested, opened):
        return []
    from repro_env.api import policy  # slow to import

    found = policy.find(opened, source=requested.source, runs=directory.parent)
    if found is None:
        return []
    judged = policy.judge(found, records.read(directory), ("end",))
    return [judgement for judgement in judged.judgements if judgement.text]


def report_policy(judgements: Iterable[Judgement], tell: Tell) -> None:
    """Print the rules that were broken."""
    for judgement in judgements:
        tell.warn(f"policy: {judgement.rule}: {judgement.text}{f' (exception: {judgement.reason})' * bool(judgement.reason)}")


def _explain(job: JobOptions) -> int:
    """Print the settings of the engine (`--job help`). Returns the exit code."""
    from repro_env.cli.ui import page
    from repro_env.launch import settings

    rows = settings.explain(job.engine)
    if not messages.answer_in_json(dict(rows)):
        page.table(rows).print()
    return 0


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
    if remarks := seed_remarks(end):
        tell("; ".join(remarks))
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


def seed_remarks(end: End) -> list[str]:
    """Notes on random generators without a seed, and on operations that are not deterministic."""
    remarks = []
    # Generators that libraries create are only recorded.
    if generators := [entry for entry in end.auto_seeded if "-packages/" not in entry]:
        number = plural(len(generators), "unseeded random generator")
        remarks.append(f"seeded automatically: {number} ({'first: ' * (len(generators) > 1)}{generators[0]})")
    if programs := [item for item in end.system_randomness if item.what.startswith(UNSEEDED)]:
        places = [f"{item.what.removeprefix(UNSEEDED)} at {item.file}:{item.line}" for item in programs]
        remarks.append(f"not seeded: {shorten(places, 1)}")
    if end.operations:
        most_first = sorted(end.operations, key=lambda operation: -operation.count)
        places = [f"{item.what}, {item.count} times at {item.file}:{item.line}" for item in most_first]
        remarks.append(f"not deterministic: {shorten(places, 1)}")
    return remarks
