"""`repro-env runs compare`: compare two recorded runs."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli.ui import curves, differences, messages
from repro_env.cli.ui.options import AllOption, HtmlOption, RunsOption, argument, runs_option
from repro_env.cli.ui.page import Page, save

if TYPE_CHECKING:
    from repro_env.api.runscompare import Compared
    from repro_env.compare.outputs.comparison import File
    from repro_env.compare.runs import MetricPair, Outputs
    from repro_env.compare.traces import divergence
    from repro_env.runs.records.records import Run
    from repro_env.schema.run import Metric

_SHOWN = 15
"""Entries of a list that are shown without --all."""
_RUN = "The short ID of a run, the beginning of its ID, `latest`, or its directory."


def command(
    left: Annotated[str, argument("A", _RUN)],
    right: Annotated[str, argument("B", _RUN)],
    all_: AllOption = False,
    html: HtmlOption = None,
    runs: RunsOption = None,
) -> None:
    """Compare two recorded runs. Command, config, seeds, settings, code, data, environment, metrics and outputs are compared.

    Nothing is run. Outputs are compared by the digests in the records, and paired by path, or by what explains another path
    in `verify`. Of files that differ, the first differences are shown, but not those of tensors.

    Exit code 0: the outputs are identical, or neither run has outputs and both printed the same. 1: they differ.
    """
    from repro_env.api.runscompare import compare_runs

    comparison = compare_runs(left, right, runs=runs)
    show = functools.partial(_show, comparison)
    words = ["repro-env", "runs", "compare", comparison.left.short, comparison.right.short]
    save(html, f"runs {comparison.left.short} and {comparison.right.short}", show, [shlex.join(words) + runs_option(runs)])
    if not messages.answer_in_json(comparison):
        page = Page(most=None if all_ else _SHOWN)
        show(page)
        page.print()
    raise typer.Exit(0 if comparison.same else 1)


def _show(comparison: Compared, page: Page) -> None:
    for label, run, tags in zip("AB", (comparison.left, comparison.right), comparison.tags, strict=True):
        page.row(label, _title(run, tags), indent=0)
        if page.is_file:
            page.row(f"{label}, spec", run.start.spec, indent=0)
            page.row(f"{label}, image ID", run.start.image, indent=0)
    if comparison.same:
        page.verdict("same", _summary(comparison.outputs, comparison.console), "green")
    else:
        page.verdict("different", _summary(comparison.outputs, comparison.console), "red")
    differences.show(page, comparison.differences, comparison.not_compared)
    _lines(page, comparison.code)
    _metrics(page, comparison)
    _steps(page, comparison.steps)
    _outputs(page, comparison.outputs, comparison.files)
    _console(page, comparison.console)


def _title(run: Run, tags: tuple[str, ...]) -> str:
    seconds = "" if run.end is None else f", {run.end.seconds:.1f} s"
    about = f"{run.start.started[:19].replace('T', ' ')}{seconds}"
    return f"{run.short} ({about}{''.join(f', {tag}' for tag in tags)})  {run.start.command_line}"


def _summary(outputs: Outputs, console: Sequence[File]) -> str:
    if not (outputs.pairs or outputs.missing or outputs.new or outputs.unread):
        printed = "they printed the same" if all(file.equal for file in console) else "they did not print the same"
        return f"neither run has outputs; {printed}" if console else "neither run has outputs"
    same = sum(pair.same for pair in outputs.pairs)
    parts = [f"{same:,} of {len(outputs.pairs):,} common outputs are identical"]
    parts += [f"{len(outputs.missing):,} only in A"] if outputs.missing else []
    parts += [f"{len(outputs.new):,} only in B"] if outputs.new else []
    parts += [f"{len(outputs.unread):,} not read"] if outputs.unread else []
    return ", ".join(parts)


def _console(page: Page, console: Sequence[File]) -> None:
    differing = [file for file in console if not file.equal]
    if differing:
        page.heading("console output")
    for file in differing:
        page.text(f"{file.name}  {file.why}")
        for line in file.shown:
            page.text(line, indent=6)


def _metrics(page: Page, comparison: Compared) -> None:
    metrics = comparison.metrics
    if not metrics:
        return
    same = sum(metric.same for metric in metrics)
    page.heading("metrics", f"{same:,} of {len(metrics):,} the same; last values, with the number of values")
    rows = [
        (metric.name, _last(metric.left), _last(metric.right), "same" if metric.same else _change(metric), metric.file)
        for metric in metrics
        if page.complete or not metric.same
    ]
    if rows:
        page.table(rows, header=("NAME", "A", "B", "B - A", "FILE"))
    if page.is_file:
        curves.of_two(page, comparison.left, comparison.right, metrics)


def _last(metric: Metric | None) -> str:
    from repro_env.cli.ui.runpage import number

    return "-" if metric is None else f"{number(metric.last)} ({metric.count:,})"


def _change(metric: MetricPair) -> str:
    """The difference of the last values with six digits, or a note if it cannot be computed or is 0."""
    if metric.left is None or metric.right is None:
        return ""
    if metric.change is None:
        return "not a number"
    return f"{metric.change:+.6g}" if metric.change else "+0, earlier values differ"


def _steps(page: Page, steps: divergence.Comparison | None) -> None:
    if steps is None:
        return
    from repro_env.compare.traces.divergence import sentence

    page.heading("training steps", f"compared the losses of {steps.losses:,} and the weights of {steps.digests:,}")
    rows = [(f"~ {sentence(step)}",) for step in steps.first] + [(f"? {line}",) for line in steps.missing]
    page.table(rows or [("= no step differs" if steps.equal else "? nothing was compared",)])


def _outputs(page: Page, outputs: Outputs, files: Sequence[File]) -> None:
    pairs = [pair for pair in outputs.pairs if not pair.same]
    why = {file.path: file.why or (file.level or "") for file in files}
    rows: list[tuple[str, ...]] = [
        ("~", pair.left if pair.left == pair.right else f"{pair.left} -> {pair.right}", why.get(pair.left, "")) for pair in pairs
    ]
    rows += [("-", path) for path in outputs.missing]
    rows += [("+", path) for path in outputs.new]
    rows += [("?", line) for line in outputs.unread]
    if rows:
        page.heading("outputs")
        page.table(rows)
    _lines(page, files)


def _lines(page: Page, files: Sequence[File]) -> None:
    for file in files[: None if page.complete else _SHOWN]:
        if file.shown:
            page.heading(file.name, "what differs first: - A, + B")
            page.table([(line,) for line in file.shown])
