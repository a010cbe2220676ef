"""`repro-env verify`: repeat a recorded run and compare the outputs."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from repro_env.api.verify import Verified, verify
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import (
    AllOption,
    HtmlOption,
    RunArgument,
    RunsOption,
    flag,
    parse_mounts,
    parse_source,
    runs_option,
    shared,
    value,
)
from repro_env.cli.ui.page import Page, save
from repro_env.compare.outputs import ignorefile
from repro_env.compare.outputs.comparison import File
from repro_env.compare.outputs.ignorefile import Accepted
from repro_env.compare.outputs.verdict import Verdict
from repro_env.runs.records import verdicts
from repro_env.runs.start.inputs import host_facts
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import ReproEnvError, UsageError
from repro_env.schema.messages import plural
from repro_env.schema.runners import CHOICES, RunnerName

_SHOWN = 10
"""Files of one kind, and texts for --ignore, that are shown without --all."""
_IGNORED = 50
"""Lines of ignored differences that are shown without --all."""


def command(
    run: RunArgument = "latest",
    result: Annotated[
        list[str] | None,
        value(
            "GLOB",
            "Compare these outputs (a path, a name or a pattern) strictly: accept only differences that --ignore names. Repeatable.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        value("FILE[:PLACE]", "Accept differences in this file, or in this field of it. Repeatable."),
    ] = None,
    accept: Annotated[bool, flag("--accept", "Accept all differences: add their --ignore texts to repro-env.ignore.")] = False,
    env: Annotated[list[Any] | None, shared(RunOptions, "env")] = None,
    env_file: Annotated[Path | None, shared(RunOptions, "env_file")] = None,
    data: Annotated[
        list[str] | None,
        value("SRC[:DST]", "Mount SRC at DST in place of the recorded data, or for a run on the host in addition. Repeatable."),
    ] = None,
    network: Annotated[bool, shared(RunOptions, "network")] = False,
    spec: Annotated[
        str | None,
        value(
            "SPEC",
            "Use this spec. Default: search next to the runs, in this directory and its parents, and in the store.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        value(
            "DIR",
            "Take the code from this directory, which must have the recorded files. Default: search in the store and next to the "
            "spec.",
            parser=parse_source,
        ),
    ] = None,
    runner: Annotated[
        RunnerName | None,
        value(
            "NAME",
            f"Use this runner of `repro-env exec`: {', '.join(CHOICES)}. "
            "Default: the recorded runner, but embedded for a run on the host.",
        ),
    ] = None,
    keep: Annotated[bool, flag("--keep", "Keep the new run with its outputs. Default: remove it.")] = False,
    all_: AllOption = False,
    html: HtmlOption = None,
    runs: RunsOption = None,
) -> None:
    """Repeat a recorded run with its own spec, code, data and seed, and compare the outputs.

    \b
      repro-env verify latest
      repro-env verify 1f2e3d4c --ignore 'metrics.json:train_runtime' --ignore 'train.log:took {} s'
      repro-env verify --accept

    The levels:

    \b
      bitwise           every byte of every result is equal
      equal except for  every difference has a reason, and is shown with it
      numeric           only rounding differs: tensors within a relative L2 distance of 0.01, numbers in text within 0.00001
      different         anything else, such as a result that is missing or new

    A reason is that each value belongs to its own run (a time between its start and end, its run ID, directory or host
    name, a random ID that it drew), that a known library writes the field, or that you accept it with --ignore. Durations
    and speeds count as different until you accept them, except in progress bars that the command prints.

    \b
      --ignore FILE                 ignore the file: a path, a name, a directory or a pattern
      --ignore FILE:KEY             ignore a JSON key at any depth, a dotted path (log_history.*.runtime), or a CSV column
      --ignore FILE:TABLE.COLUMN    ignore an SQLite column
      --ignore 'FILE:took {} s'     ignore a part of a line of text; {} stands for one word
      --ignore 'FILE:*'             ignore every value of the file

    In FILE, `*` does not match a slash, and `**` does. Write a colon in it as `\\:`. The file `repro-env.ignore` in the
    project has the same texts, one on each line. --accept adds them for each difference. Review them, and verify again.

    All output files are results. The printed output (console) affects the verdict only with --result. Code in tensors and
    databases is never run.

    Directories of --checkpoints are not changed: the new run gets copies of their content from before the recorded run. The
    verdict is kept in `verified/` in the run's directory.

    Exit code 0: every result has the expected level or a better one, also if the command fails in the same way in both
    runs. 1: a result has a lower level, or nothing was compared. 128 + N: signal N ended the command.
    """
    verification = verify(
        run,
        runs=runs,
        results=result or (),
        ignore=ignore or (),
        data=parse_mounts(data),
        env=dict(env or ()),
        env_file=env_file,
        network=network,
        spec=spec,
        source=source,
        runner=runner,
        keep=keep,
        output=messages.Screen.level == "verbose",
        tell=messages.prefixed,
    )
    accepted = _accept(verification) if accept else None
    add = functools.partial(_add, verification, accepted)
    save(html, f"verification of run {verification.run.short}", add, [f"repro-env verify {verification.run.short}"])
    if not messages.answer_in_json(
        {**facts(verification), "accepted": [added.text for added in accepted.added] if accepted else []}
    ):
        page = Page(most=None if all_ or accept else _SHOWN)
        add(page)
        page.print()
    _keep(verification, complete=all_)
    if verification.directory is None and verification.verdict.files and not verification.verdict.same:
        messages.say("the outputs of the new run were removed; use --keep to keep them")
    if not messages.Screen.json:
        messages.say(f"next: repro-env runs {next_command(verification)}{runs_option(runs)}")
    raise typer.Exit(128 + verification.stopped if verification.stopped else 0 if verification.verdict.same else 1)


def _add(verification: Verified, accepted: Accepted | None, page: Page) -> None:
    show(page, verification)
    if accepted is not None:
        _show_accepted(page, accepted)


def _accept(result: Verified) -> Accepted | None:
    if result.verdict.same:
        return None
    if result.project is None:
        raise UsageError("nothing was compared, so --accept has no effect", hint=result.verdict.sentence)
    return ignorefile.accept(result.project, result.verdict.files, result.problem)


def _keep(result: Verified, *, complete: bool) -> None:
    """Write the verdict to the directory of the run. If that fails, print a warning."""
    if result.verdict.level is None:
        return
    page = Page(most=None if complete else _SHOWN)
    show(page, result)
    try:
        messages.say.detail(f"the verdict is kept in {verdicts.write(result.run.directory, facts(result), page.lines)}")
    except ReproEnvError as error:
        messages.say.warn(f"note: the verdict was not kept: {error}")


def next_command(result: Verified) -> str:
    """The next command, without `repro-env runs`."""
    if result.directory is None:
        return f"show {result.run.short}"
    return f"compare {result.run.short} {result.directory.name.rpartition('-')[2]}"


def facts(result: Verified) -> dict[str, object]:
    """The object that `--json` prints and that is kept with the run. Its keys are stable."""
    verdict = result.verdict
    results = [file for file in verdict.files if file.kind == "result"]
    return {
        "run": result.run.start.id,
        "directory": str(result.run.directory),
        "same": verdict.same,
        "level": verdict.level,
        "promised": verdict.promise.level,
        "promise": verdict.promise.sentence,
        "sentence": verdict.sentence,
        "failed": bool(verdict.failure),
        "ignored": sum(file.ignored_count for file in results),
        "reasons": dict(_reasons(results)),
        "accept": offered(verdict),
        "first_step": verdict.first,
        "causes": list(verdict.causes),
        "files": list(verdict.files),
        "host": list(host_facts()),
        "kept": None if result.directory is None else str(result.directory),
    }


def show(page: Page, result: Verified) -> None:
    verdict = result.verdict
    word, _, about = verdict.sentence.partition(": ")
    page.verdict(word, about, "red" if not verdict.same else "bold" if verdict.failure else "green")
    page.row("run", f"{result.run.short} ({result.run.directory})", indent=0)
    page.row("expected", verdict.promise.sentence.partition(" ")[2], indent=0)
    if result.directory is not None:
        page.row("new run", str(result.directory), indent=0)
    page.row("first step", verdict.first, indent=0)
    if verdict.causes and not (verdict.same and verdict.level == "bitwise"):
        page.heading("settings that differ")
        page.table([(cause,) for cause in verdict.causes])
    _ignored(page, [file for file in verdict.files if file.kind != "console" or page.complete])
    _files(page, "results", [file for file in verdict.files if file.kind == "result"])
    _files(page, "console (does not affect the verdict)", [file for file in verdict.files if file.kind == "console"])
    texts = [] if verdict.same else offered(verdict)
    if texts:
        page.heading("to accept the differences", "use these options, or verify --accept for all of them")
        page.table([(f"--ignore {shlex.quote(text)}",) for text in texts])


def offered(verdict: Verdict) -> list[str]:
    """The texts for --ignore that accept the differences of results, sorted.

    A file without texts for its places is accepted as a whole. It is not left out if no result would remain to be compared.
    """
    results = [file for file in verdict.files if file.kind == "result"]
    differing = [file for file in results if not file.equal]
    whole = {file.accept_file for file in differing if not file.accept}
    out = {text for text in whole if not text.endswith(":*")}
    if len(out) == len(results):
        whole -= out
    return sorted((whole | {accept.text for file in differing for accept in file.accept}) - {""})


def _reasons(files: Iterable[File]) -> list[tuple[str, int]]:
    """The reasons for ignored differences with their counts, the largest count first."""
    counts = Counter(ignored.reason for file in files for ignored in file.ignored)
    more = sum(file.ignored_count - len(file.ignored) for file in files)
    return [*sorted(counts.items(), key=lambda item: (-item[1], item[0])), *([("not listed", more)] if more else [])]


def _ignored(page: Page, files: Sequence[File]) -> None:
    """Add the ignored differences to the page, by file, with their reasons."""
    excluded = [file for file in files if file.left_out]
    count = sum(file.ignored_count for file in files)
    if not count and not excluded:
        return
    parts = [f"{number:,} {reason}" for reason, number in _reasons(files)]
    parts += [plural(len(excluded), "complete file")] if excluded else []
    page.heading("ignored", ", ".join(parts))
    lines: list[tuple[int, str]] = []
    for file in files:
        if file.left_out:
            lines.append((2, f"{file.name}  the complete file: {file.why}"))
        elif file.ignored:
            lines.append((2, file.path if file.path == file.now else f"{file.path} -> {file.now}"))
            for ignored in file.ignored:
                place = f"{ignored.place}: " if ignored.place else ""
                lines.append((6, f"{place}{ignored.then} -> {ignored.now} ({ignored.reason})"))
    for indent, line in lines if page.complete else lines[:_IGNORED]:
        page.text(line, indent=indent)
    page.count(0 if page.complete else len(lines) - _IGNORED)


def _files(page: Page, title: str, files: Sequence[File]) -> None:
    if not files:
        return
    differing = [file for file in files if not file.equal]
    page.heading(title, f"{len(files) - len(differing):,} of {len(files):,} the same")
    for file in differing if page.complete else differing[:_SHOWN]:
        page.text(f"{file.name}  {file.level or 'not compared'}" + (f": {file.why}" if file.why else ""))
        for line in file.shown if file.kind == "result" or page.complete else ():
            page.text(line, indent=6)
    page.count(0 if page.complete else len(differing) - _SHOWN)


def _show_accepted(page: Page, accepted: Accepted) -> None:
    if accepted.refused:
        page.heading("nothing was accepted", "these differences cannot be accepted by field")
        page.table([(line,) for line in accepted.refused])
        return
    page.heading("accepted", f"{len(accepted.added):,} lines were written to {accepted.path}; run verify again")
    page.table([(added.text, f"{added.then} -> {added.now}") for added in accepted.added])
