"""`repro-env verify`: run a recorded run again and compare, with the level of sameness."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption, RunsOption, again
from repro_env.model.errors import UsageError

if TYPE_CHECKING:
    from repro_env.cli.page import Page
    from repro_env.flows.verify import Verified
    from repro_env.verify.outputs import File
    from repro_env.verify.verdict import Verdict

_HELP = """\
Run a recorded run again, from its own spec, code, data and seed, and compare the outputs.

\b
  repro-env verify latest
  repro-env verify 1f2e3d4c --result 'metrics/*' --ignore '*.png'

The levels: bitwise (every bit of every result), numeric (rounding: tensors within a relative L2 distance of 0.01, numbers
in text within 0.001), different. Statistical is never claimed from one run. The level to expect on this machine is printed
before the run starts. What the command prints is shown with --verbose only. A run that left no results is not run again.

Outputs are results, logs (*.log, TensorBoard's event files ...) or volatile (W&B's own files, profiles ...). Only results
decide; logs are compared and reported. In text, dates, times, durations, hosts, PIDs and random names are ignored unless the
file is named with --result; what was ignored is reported. Files of tensors (.safetensors, .pt, .pth, .ckpt, .npz, .npy, .pkl,
joblib's) are compared tensor by tensor, SQLite databases (MLflow's and Optuna's among them) row by row, in the sandbox; no
code in them is run.

Directories given with --checkpoints are not touched: the new run works on private copies of their content before the run.

Exit code 0: every result has the expected level. 1: some have not, or nothing was compared. 128 + N: ended by signal N.
"""
_SHOWN = 10
"""Files of one kind, unless all are asked for."""


def add(app: typer.Typer) -> None:
    app.command(name="verify", help=_HELP, short_help=commands.COMMANDS["verify"])(command)


def command(
    run: Annotated[str, typer.Argument(help="A short id, the beginning of one, or `latest`.", metavar="RUN")] = "latest",
    result: Annotated[
        list[str] | None,
        typer.Option(help="Outputs to compare exactly as results: a path, a name, a directory or a pattern.", metavar="GLOB"),
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Outputs to leave out of the verdict.", metavar="GLOB")] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="Give a variable of the run again; records hold no values.", metavar="NAME[=VALUE]")
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option("--env-file", help="Set variables from lines of NAME=VALUE.", metavar="FILE", show_default=False),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Name where data of the run are now, or data that a run on the host did not record. Repeatable.",
            metavar="SRC[:DST]",
        ),
    ] = None,
    network: Annotated[bool, typer.Option("--network", help="Give the run the network again.")] = False,
    spec: Annotated[
        str | None,
        typer.Option(
            help="The spec of the run. Default: search beside the runs, from here upwards, in the store, in git.",
            metavar="SPEC",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Where the code of the run is now: a directory that has the recorded files, or a clone whose history has them. "
            "Other code is refused. Default: search in the store, beside the spec and in git.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option(
            help="Run it with embedded, docker or host (the live environment, in a private copy of the source). "
            "Default: the recorded runner; the image for a run on the host.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the new run.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Show every file.")] = False,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.cli.exec import Marked, mount, runner_of, variable
    from repro_env.flows.results import Globs
    from repro_env.flows.verify import Wanted, verify
    from repro_env.store.store import Store

    if source is not None and not source.is_dir():
        raise UsageError("is not a directory", where=f"--source {source}", hint="name the directory that has the code of the run")
    wanted = Wanted(
        word=run,
        here=Path.cwd(),
        environ=dict(os.environ),
        runs=None if runs is None else runs.absolute(),
        spec=spec,
        source=None if source is None else source.resolve(),
        globs=Globs(results=tuple(result or ()), ignored=tuple(ignore or ())),
        env=tuple(variable(text) for text in env or ()),
        env_file=None if env_file is None else env_file.absolute(),
        data=tuple(mount(text, "--data") for text in data or ()),
        network=network,
        runner=None if runner is None else runner_of(runner),
        keep=keep,
        output=say.Screen.level == "verbose",
    )
    done = verify(wanted, store=Store.open(), tell=Marked())
    if json:
        say.json_result(facts(done))
    else:
        from repro_env.cli.page import Page

        page = Page.of_stdout(most=None if all_ else _SHOWN)
        show(page, done)
        page.print()
    if done.folder is None and done.verdict.files and not done.verdict.same:
        say.say("the outputs of the new run were removed; --keep keeps them")
    if not json:
        say.say(f"next: repro-env runs {after(done)}{again(runs)}")
    raise typer.Exit(128 + done.stopped if done.stopped else 0 if done.verdict.same else 1)


def after(done: Verified) -> str:
    """What to do next, after `repro-env runs`."""
    if done.folder is None:
        return f"show {done.run.short}"
    return f"compare {done.run.short} {done.folder.name.rpartition('-')[2]}"


def facts(done: Verified) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    found = done.verdict
    return {
        "run": done.run.start.id,
        "folder": str(done.run.folder),
        "same": found.same,
        "level": found.level,
        "promised": found.promise.level,
        "promise": found.promise.sentence,
        "sentence": found.sentence,
        "first_step": found.first,
        "causes": list(found.causes),
        "files": list(found.files),
        "kept": None if done.folder is None else str(done.folder),
    }


def show(page: Page, done: Verified) -> None:
    found = done.verdict
    page.row("run", f"{done.run.short} ({done.run.folder})", indent=0)
    page.row("expected", found.promise.sentence.partition(" ")[2], indent=0)
    if done.folder is not None:
        page.row("new run", str(done.folder), indent=0)
    word, _, about = found.sentence.partition(": ")
    page.verdict(word, about, "green" if found.same else "red")
    page.row("first step", found.first, indent=0)
    if found.causes and not (found.same and found.level == "bitwise"):
        page.heading("what was in force in one run alone")
        page.table([(one,) for one in found.causes], "--all shows them")
    _files(page, found)


def _files(page: Page, found: Verdict) -> None:
    for title, kind in (("results", "result"), ("logs", "log"), ("volatile, which do not count", "volatile")):
        mine = [one for one in found.files if one.kind == kind]
        if not mine:
            continue
        moved = [one for one in mine if _moved(one)]
        equal = [one for one in mine if one.level == "bitwise" and not one.apart] + ([] if page.whole else moved)
        good = sum(one.level == "bitwise" for one in mine)
        page.heading(
            title, f"{good:,} of {len(mine):,} the same" if kind != "volatile" else f"{len(mine):,} file{'s' * (len(mine) != 1)}"
        )
        shown = [] if kind == "volatile" else [one for one in mine if one not in equal]
        # Lines of a log, such as widths of progress bars, are news only where results differ too.
        brief = kind == "log" and found.same and not page.whole
        for one in shown if page.whole else shown[:_SHOWN]:
            _file(page, one, brief=brief)
        if len(shown) > _SHOWN and not page.whole:
            page.text(f"and {len(shown) - _SHOWN:,} more (--all shows them)")
        if kind != "volatile" and moved and not page.whole:
            one = moved[0]
            page.text(f"{len(moved):,} bitwise under another path, as {one.path} -> {one.now} (--all shows them)")


def _moved(one: File) -> bool:
    """Whether nothing about it is another but its path."""
    from repro_env.verify.compared import renamed

    return one.level == "bitwise" and one.path != one.now and one.apart == renamed(one.path, one.now)


def _file(page: Page, one: File, *, brief: bool) -> None:
    level = one.level or "not compared"
    brief = brief and bool(one.shown)
    page.text(f"{one.path or one.now}  {level}" + (f": {one.why}" if one.why else "") + " (--all shows them)" * brief)
    if brief:
        return
    for line in one.shown:
        page.text(line, indent=6)
    for line in one.apart if page.whole else one.apart[:3]:
        page.text(f"apart: {line}", indent=6)
    if len(one.apart) > 3 and not page.whole:
        page.text(f"apart: and {len(one.apart) - 3:,} more", indent=6)
