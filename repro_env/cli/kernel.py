"""`repro-env kernel`: run the kernels of notebooks in the captured environment."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from repro_env.api import kernel as use_case
from repro_env.api.execute import FinishedRun
from repro_env.cli import app
from repro_env.cli.exec import SimilarCommand, report_end
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import SpecArgument, parse_path, read, value
from repro_env.launch.engines import JobOptions
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import UsageError
from repro_env.schema.options import options_of
from repro_env.schema.runners import DEFAULT, TRAITS
from repro_env.specs.argument import current_directory, open_spec
from repro_env.store.store import Store

group = typer.Typer(no_args_is_help=True)


@group.command()
def install(
    spec: SpecArgument = None,
    name: Annotated[
        str, value("NAME", "Use this name for the kernel spec. Default: repro-env- and the name of the project's directory.")
    ] = "",
    prefix: Annotated[
        Path | None,
        value(
            "DIR",
            "Install in share/jupyter of this environment. Default: the user's data directory of Jupyter.",
            parser=parse_path,
        ),
    ] = None,
    options: Annotated[
        str,
        value(
            "WORDS",
            "Start the kernel with these options of `repro-env exec`, quoted as in a shell, for example --options='--seed 7 --data /data'.",
        ),
    ] = "",
) -> None:
    """Install a kernel spec for Jupyter: the kernel of a notebook then runs in the captured environment.

    \b
      repro-env kernel install
      repro-env kernel install --options='--seed 7 --data /data/images'

    The environment must contain ipykernel. Jupyter may be installed anywhere. Each kernel is a run, as that of `repro-env exec`: it has a copy of the project and no network, and is recorded when it ends.
    """
    store = Store.open()
    opened = open_spec(spec, store=store, tell=messages.say)
    location = str(opened.directory) if spec is None else str(path) if (path := current_directory() / spec).exists() else spec
    words = _words(options)
    result = use_case.install(
        opened, name, spec=location, words=words, prefix=prefix, environ=os.environ, store=store, tell=messages.say
    )
    if messages.answer_in_json(result):
        return
    messages.result(str(result.directory))
    messages.say(
        f'next: choose the kernel "{result.display_name}" in Jupyter (to remove it: jupyter kernelspec remove {result.name})'
    )


def _words(text: str) -> Sequence[str]:
    """The words of --options. Raises `UsageError` if they are not options of a kernel."""
    hint = "give only options, for example: --options='--seed 7'"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--options cannot be split into words: {error}", hint=f"check the quotes of: {text}") from None
    with contextlib.suppress(typer.Exit):  # --help was given
        context = app.parse("exec", [*words, "--", "kernel"])
        if unsupported := [param.opts[0] for param in context.command.params if _is_excluded(param, context)]:
            raise UsageError(f"a kernel does not support the option {unsupported[0]} of `exec`", hint="leave it out")
        if values := [name for name, value in context.params["env"] or () if value is not None]:
            what = f"the kernel spec would contain the value of {values[0]}, and every user can read it"
            raise UsageError(what, hint=f"pass the value in Jupyter's environment: --env {values[0]}")
        if context.args == ["kernel"]:
            return words
    raise UsageError(f'--options contains more than options (got "{text}")', hint=hint)


def _is_excluded(param: Any, context: Any) -> bool:
    """Whether an option was given that kernels do not have."""
    given = context.get_parameter_source(param.name).name == "COMMANDLINE"
    return given and (param.name in Start.excluded or (param.name == "runner" and TRAITS[context.params["runner"]].is_live))


class Start(SimilarCommand):
    usage = "[OPTIONS]"
    has_answer = False
    excluded = ("module", "code", "run_id", *options_of(JobOptions))

    @staticmethod
    def run(options: Mapping[str, Any], command: Sequence[str]) -> int:
        """Run the kernel. Returns its exit code. Raises `ReproEnvError`."""
        if command:
            raise UsageError("`kernel start` does not accept a command", hint=f"use `repro-env exec {command[0]}`")
        if TRAITS[options["runner"] or DEFAULT].is_live:
            raise UsageError("`kernel start` does not support --runner host", hint="use the environment's own kernel")
        store = Store.open()
        requested = read(RunOptions, options, output=True, defaults=options["defaults"])
        opened = open_spec(options["spec"], store=store, tell=messages.prefixed)

        def report(result: FinishedRun) -> int:
            report_end(result, messages.prefixed, runs=requested.runs)
            return result.status

        return use_case.start(opened, options["connection"], requested, report, store=store, tell=messages.prefixed)


@group.command(cls=Start)
def start(
    connection: Annotated[Path, value("FILE", "Use this connection file of Jupyter.", parser=parse_path)],
) -> None:
    """Run a kernel and record the run. Jupyter calls this command.

    It listens at the TCP ports of the connection file, and relays what comes to the kernel, which has no network.
    """
