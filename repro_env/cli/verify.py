"""`repro-env verify`: run a recorded run again and compare, with the level of sameness."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption, RunsOption, again
from repro_env.model.errors import UsageError

if TYPE_CHECKING:
    from repro_env.cli.page import Page
    from repro_env.flows.projectfile import Accepted
    from repro_env.flows.verify import Verified
    from repro_env.verify.compared import File, Ignored
    from repro_env.verify.verdict import Verdict

_HELP = """\
Run a recorded run again, from its own spec, code, data and seed, and compare the outputs.

\b
  repro-env verify latest
  repro-env verify 1f2e3d4c --ignore 'metrics.json:train_runtime' --ignore 'train.log:took {} s'
  repro-env verify --accept

The levels:

\b
  bitwise           every byte of every result is equal
  equal except for  every difference has a reason, and is shown with it
  numeric           only rounding differs: tensors within a relative L2 distance of 0.01, numbers in text within 0.001
  different         anything else, and a result that is missing or new

A difference has a reason if both values were their own run's (a time between its start and its end, its run ID, directory or
host name, an ID that it drew), if a library is known to write the field, or if you say so with --ignore. Durations and speeds
differ until you accept them. The level to expect is printed before the run starts.

\b
  --ignore FILE                 leave out the file: a path, a name, a directory or a pattern
  --ignore FILE:KEY             a key of JSON at any depth, a dotted path (log_history.*.runtime), a column of CSV
  --ignore FILE:TABLE.COLUMN    a column of SQLite
  --ignore 'FILE:took {} s'     a piece of a line of text; {} stands for one word
  --ignore 'FILE:*'             every value of the file

Write a colon in FILE as `\\:`. The same texts are read from `ignore = [...]` in the table [tool.repro-env.verify] of the project's
pyproject.toml. --accept adds to it all that differs: look at it, and verify again.

All files are results. What the command printed (console) is compared and reported, and decides only if you name it with
--result. Code in the files is never run: tensors and databases are read in the sandbox.

Directories given with --checkpoints are not touched: the new run works on private copies of their content before the run. The
verdict is kept in `verified/` of the run's directory.

Exit code 0: every result has the expected level. 1: some have not, or nothing was compared. 128 + N: ended by signal N.
"""
_SHOWN = 10
"""Files of one kind, and texts of --ignore, unless all are asked for."""
_IGNORED = 50
"""Lines of ignored differences, unless all are asked for."""


def add(app: typer.Typer) -> None:
    app.command(name="verify", help=_HELP, short_help=commands.COMMANDS["verify"])(command)


def command(
    run: Annotated[str, typer.Argument(help="A short id, the beginning of one, or `latest`.", metavar="RUN")] = "latest",
    result: Annotated[
        list[str] | None,
        typer.Option(
            help="Let these outputs decide too, for example stdout.log: a path, a name or a pattern. Repeatable.",
            metavar="GLOB",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Accept differences in this file, or at this place in it. Repeatable.", metavar="FILE[:PLACE]"),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Write the --ignore texts for all that differs to pyproject.toml.")
    ] = False,
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
    from repro_env.cli.page import Page
    from repro_env.flows.results import Globs
    from repro_env.flows.verify import Wanted, verify
    from repro_env.store.store import Store
    from repro_env.verify.ignore import parse

    if source is not None and not source.is_dir():
        raise UsageError("is not a directory", where=f"--source {source}", hint="name the directory that has the code of the run")
    wanted = Wanted(
        word=run,
        here=Path.cwd(),
        environ=dict(os.environ),
        runs=None if runs is None else runs.absolute(),
        spec=spec,
        source=None if source is None else source.resolve(),
        globs=Globs(results=tuple(result or ()), ignored=tuple(parse(text) for text in ignore or ())),
        env=tuple(variable(text) for text in env or ()),
        env_file=None if env_file is None else env_file.absolute(),
        data=tuple(mount(text, "--data") for text in data or ()),
        network=network,
        runner=None if runner is None else runner_of(runner),
        keep=keep,
        output=say.Screen.level == "verbose",
    )
    done = verify(wanted, store=Store.open(), tell=Marked())
    accepted = _accept(done) if accept else None
    if json:
        say.json_result({**facts(done), "accepted": [] if accepted is None else list(accepted.texts)})
    else:
        page = Page.of_stdout(most=None if all_ or accept else _SHOWN)
        show(page, done)
        if accepted is not None:
            _show_accepted(page, accepted, done.verdict)
        page.print()
    _keep(done, whole=all_)
    if done.folder is None and done.verdict.files and not done.verdict.same:
        say.say("the outputs of the new run were removed; --keep keeps them")
    if not json:
        say.say(f"next: repro-env runs {after(done)}{again(runs)}")
    raise typer.Exit(128 + done.stopped if done.stopped else 0 if done.verdict.same else 1)


def _accept(done: Verified) -> Accepted | None:
    from repro_env.flows import projectfile

    if done.verdict.same:
        return None
    if done.project is None:
        raise UsageError("nothing was compared, so nothing can be accepted", where="--accept", hint=done.verdict.sentence)
    return projectfile.accept(done.project, done.verdict.files, done.problem)


def _keep(done: Verified, *, whole: bool) -> None:
    """Keep the verdict beside the run. The verdict stands where that fails."""
    from repro_env.catalog import verified
    from repro_env.cli.page import Page
    from repro_env.model.errors import ReproEnvError

    if done.verdict.level is None:
        return
    page = Page(most=None if whole else _SHOWN)
    show(page, done)
    try:
        say.say.detail(f"the verdict is kept in {verified.write(done.run.folder, facts(done), page.lines)}")
    except ReproEnvError as error:
        say.say.warn(f"note: the verdict was not kept: {error}")


def after(done: Verified) -> str:
    """What to do next, after `repro-env runs`."""
    if done.folder is None:
        return f"show {done.run.short}"
    return f"compare {done.run.short} {done.folder.name.rpartition('-')[2]}"


def facts(done: Verified) -> dict[str, object]:
    """The object that `--json` prints and that is kept beside the run; its keys are a contract."""
    found = done.verdict
    results = [file for file in found.files if file.kind == "result"]
    return {
        "run": done.run.start.id,
        "folder": str(done.run.folder),
        "same": found.same,
        "level": found.level,
        "promised": found.promise.level,
        "promise": found.promise.sentence,
        "sentence": found.sentence,
        "ignored": sum(file.ignored_count for file in results),
        "reasons": dict(_reasons(results)),
        "accept": _texts(found),
        "first_step": found.first,
        "causes": list(found.causes),
        "files": list(found.files),
        "kept": None if done.folder is None else str(done.folder),
    }


def show(page: Page, done: Verified) -> None:
    found = done.verdict
    word, _, about = found.sentence.partition(": ")
    page.verdict(word, about, "green" if found.same else "red")
    page.row("run", f"{done.run.short} ({done.run.folder})", indent=0)
    page.row("expected", found.promise.sentence.partition(" ")[2], indent=0)
    if done.folder is not None:
        page.row("new run", str(done.folder), indent=0)
    page.row("first step", found.first, indent=0)
    if found.causes and not (found.same and found.level == "bitwise"):
        page.heading("what was in force in one run alone")
        page.table([(cause,) for cause in found.causes], "--all shows them")
    _ignored(page, [file for file in found.files if file.kind != "console" or page.whole])
    _files(page, "results", [file for file in found.files if file.kind == "result"])
    _files(page, "console, which decides nothing", [file for file in found.files if file.kind == "console"])
    texts = [] if found.same else _texts(found)
    if texts:
        page.heading("to accept what differs", "with these options, or all of them with verify --accept")
        page.table([(f"--ignore {shlex.quote(text)}",) for text in texts], "--accept writes them to pyproject.toml")


def _texts(found: Verdict) -> list[str]:
    """The texts of --ignore that accept what differs in results, sorted."""
    return sorted({text for file in found.files if file.kind == "result" for text in file.accept})


def _reasons(files: Iterable[File]) -> list[tuple[str, int]]:
    """Reasons for which differences were ignored, and how often, most often first."""
    counts = Counter(ignored.reason for file in files for ignored in file.ignored)
    more = sum(file.ignored_count - len(file.ignored) for file in files)
    return [*sorted(counts.items(), key=lambda item: (-item[1], item[0])), *([("not listed", more)] if more else [])]


def _ignored(page: Page, files: Sequence[File]) -> None:
    """Every difference that does not count, by file, with its reason; the number for each reason in any case."""
    whole = [file for file in files if file.kind == "ignored"]
    count = sum(file.ignored_count for file in files)
    if not count and not whole:
        return
    parts = [f"{number:,} {reason}" for reason, number in _reasons(files)]
    parts += [f"{len(whole):,} whole file{'s' * (len(whole) != 1)}"] if whole else []
    page.heading("ignored", ", ".join(parts))
    lines: list[tuple[int, str]] = []
    for file in files:
        if file.kind == "ignored":
            lines.append((2, f"{file.path or file.now}  the whole file: {file.why}"))
        elif file.ignored:
            lines.append((2, file.path if file.path == file.now else f"{file.path} -> {file.now}"))
            lines += [(6, f"{_place(ignored)}{ignored.then} -> {ignored.now} ({ignored.reason})") for ignored in file.ignored]
    most = len(lines) if page.whole else _IGNORED
    for indent, line in lines[:most]:
        page.text(line, indent=indent)
    if len(lines) > most:
        page.text(f"and {len(lines) - most:,} more lines (--all shows them)")


def _place(ignored: Ignored) -> str:
    return f"{ignored.place}: " if ignored.place else ""


def _files(page: Page, title: str, files: Sequence[File]) -> None:
    if not files:
        return
    differing = [file for file in files if file.level not in ("bitwise", "equal except for")]
    page.heading(title, f"{len(files) - len(differing):,} of {len(files):,} the same")
    for file in differing if page.whole else differing[:_SHOWN]:
        page.text(f"{file.path or file.now}  {file.level or 'not compared'}" + (f": {file.why}" if file.why else ""))
        # What was printed is news only where it was asked for: with --result it is a result.
        for line in file.shown if file.kind == "result" or page.whole else ():
            page.text(line, indent=6)
    if len(differing) > _SHOWN and not page.whole:
        page.text(f"and {len(differing) - _SHOWN:,} more (--all shows them)")


def _show_accepted(page: Page, accepted: Accepted, found: Verdict) -> None:
    from repro_env.verify.ignore import example

    if accepted.refused:
        page.heading("nothing was accepted", "these differences are in no field that can be named")
        page.table([(line,) for line in accepted.refused], "--all shows them")
        return
    page.heading("accepted", f"{len(accepted.texts):,} lines were written to {accepted.path}; run verify again")
    rows = []
    for text in accepted.texts:
        values = (example(text, file.shown) for file in found.files if text in file.accept)
        then, now = next(filter(None, values), ("", ""))
        rows.append((text, f"{then} -> {now}" if then or now else "(its values are not among the lines above)"))
    page.table(rows, "--all shows them")
