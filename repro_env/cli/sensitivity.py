"""`repro-env sensitivity`: report how much the metrics of a command vary with the seed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from repro_env.api.execute import FinishedRun, execute
from repro_env.api.sensitivity import Found, over_seeds, own_seeds, parse_metric
from repro_env.cli import exec as exec_command
from repro_env.cli import submission
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import HtmlOption, read, runs_option, value
from repro_env.cli.ui.page import Page, save
from repro_env.compare.sensitivity import FEW
from repro_env.launch.engines import JobOptions
from repro_env.pages.chart import Curve
from repro_env.policy.judge import Judgement
from repro_env.runs.records import records
from repro_env.runs.records.ids import short
from repro_env.runs.start.request import RunOptions, streams_to_repeat
from repro_env.schema.errors import UsageError
from repro_env.schema.progress import Details
from repro_env.specs.argument import Opened, current_directory, open_spec
from repro_env.store.specs.lookup import runs_directory
from repro_env.store.store import Store

_SHOWN = 40
"""Metrics in a table."""


def command(
    seeds: Annotated[
        int,
        value("N", "Run the command with this number of seeds, at least 2; 10 or more are recommended.", min=2, max=10_000),
    ],
    jobs: Annotated[
        int,
        value(
            "N",
            "Make N runs at a time, after the first, without input. They share the CPUs and GPUs. Default: 1.",
            "-j",
            "--jobs",
            min=1,
            max=1024,
        ),
    ] = 1,
    metric: Annotated[
        str | None,
        value(
            "NAME[:WHICH]",
            "Report only this metric. WHICH selects a value of each run: last (default), min or max. Use FILE:NAME if several "
            "files have it. Default: the last values of all metrics.",
        ),
    ] = None,
    html: HtmlOption = None,
) -> None:
    """Run a command once for each of N seeds, and report mean, standard deviation and range of its metrics.

    \b
      repro-env sensitivity --seeds 10 train.py
      repro-env sensitivity --seeds 10 --metric val_loss:min -- train.py --epochs 3

    The seeds are consecutive, from that of --seed. Each run is recorded like a run of `repro-env exec`.

    Metrics are numbers in files that the command writes: JSON, JSON lines, CSV, TensorBoard. Seeds that the script sets
    itself do not vary, and are listed.

    If the second run has the same outputs as the first, the seed has no effect, and the others are skipped.

    Exit code 0: every run succeeded, wrote the metric and kept the policy. 1: a run did not, or no metric is in all runs. 128 + N: signal N ended
    the command.
    """


class Command(exec_command.SimilarCommand):
    excluded = ("checkpoints", "catalog", "resume", "run_id", "print", "wait")

    @staticmethod
    def run(options: Mapping[str, Any], command: Sequence[str]) -> int:
        """Run `repro-env sensitivity`. Raises `ReproEnvError`."""
        requested = read(RunOptions, options, output=True, defaults=options["defaults"]).with_command(
            command, current_directory()
        )
        job = read(JobOptions, options, count=options["seeds"])
        if not job.engine:
            submission.check_alone(job)
        metric, tell = parse_metric(options["metric"]), messages.prefixed
        opened = open_spec(options["spec"], store=Store.open(), tell=tell)
        first = requested.seed_for(opened.spec)
        requested = msgspec.structs.replace(requested, seed=first)
        finished: dict[int, FinishedRun] = {}
        if job.engine:
            if options["jobs"] > 1:
                raise UsageError(f"-j is for this machine, and cannot be used with --on {job.engine.name}", hint="leave out -j")
            finished, stopped = submission.run_seeds(opened, requested, job)
            if stopped:
                tell(f"{len(finished)} of {options['seeds']} runs are recorded")
                return 128 + stopped

        def run_once(seed: int) -> FinishedRun:
            # With --jobs, this is another process, which needs a lease on the store of its own, and streams like those of the first.
            nonlocal requested
            requested = msgspec.structs.replace(requested, seed=seed)
            result = execute(opened, command, requested, store=Store.open(), tell=Details(tell))
            if options["jobs"] > 1:
                requested = msgspec.structs.replace(requested, streams=streams_to_repeat(result.start, result.end))
            tell.detail(exec_command.ending(result))
            return result

        run, jobs = (finished.__getitem__, 0) if finished else (run_once, options["jobs"])
        result = over_seeds(first, options["seeds"], metric, run=run, jobs=jobs, tell=tell)
        words = ["repro-env", "sensitivity", "--seeds", str(options["seeds"]), "--seed", str(first), "--", *command]
        save(options["html"], f"{options['seeds']} seeds of {shlex.join(command)}", partial(show, result), [shlex.join(words)])
        if not messages.answer_in_json(result):
            page = Page()
            show(result, page)
            page.print()
        for text in remarks(result, requested.runs):
            tell(text)
        if result.stopped:
            return 128 + result.stopped
        return 0 if result.good and _is_policy_kept(opened, result, requested) else 1


def _is_policy_kept(opened: Opened, result: Found, requested: RunOptions) -> bool:
    """Judge the runs by the project's policy, and print the rules that they broke, each once."""
    runs = requested.runs or opened.runs or runs_directory(opened.directory)
    broken: dict[str, Judgement] = {}
    for run in result.runs:
        for judgement in exec_command.judge_end(opened, records.find(runs, run.id), requested):
            broken.setdefault(judgement.rule, judgement)
    exec_command.report_policy(broken.values(), messages.prefixed)
    return not any(judgement.state == "broken" for judgement in broken.values())


def show(result: Found, page: Page) -> None:
    """Add a table of the metrics, the value for each seed if there is only one metric, and what is not in the table."""
    rows, lines = [], []
    for metric in result.metrics[:_SHOWN]:
        if spread := metric.spread:
            deviation = "all equal" if spread.equal else _number(spread.deviation)
            extent = f"{_number(spread.least)} to {_number(spread.most)}"
            rows.append((metric.metric, str(len(spread.values)), _number(spread.mean), deviation, extent))
            if left_out := ", ".join(f"seed {value.seed} ({value.value})" for value in spread.left_out):
                lines.append(f"{metric.metric}: not finite, and not part of these statistics: {left_out}")
        else:
            lines.append(f"{metric.metric}: fewer than two seeds have a number")
        if metric.missing:
            lines.append(f"{metric.metric}: not in the run of seed {', '.join(map(str, metric.missing[:_SHOWN]))}")
    if rows:
        page.table(rows, header=(f"METRIC ({result.metrics[0].which})", "SEEDS", "MEAN", "DEVIATION", "RANGE"), indent=0)
    entries: Sequence[object] = result.metrics
    if len(result.metrics) == 1 and (spread := result.metrics[0].spread) and not spread.equal:
        entries = spread.values
        page.text("")
        page.table([(f"seed {value.seed}", _number(value.value)) for value in spread.values[:_SHOWN]])
    if len(entries) > _SHOWN:
        page.text(f"and {len(entries) - _SHOWN} more (--json lists them)")
    for line in lines:
        page.text(line, indent=0)
    for metric in result.metrics[:_SHOWN] if page.is_file else ():
        if metric.spread is not None and not metric.spread.equal:
            page.chart(f"{metric.metric}, seed by seed", [Curve(metric.metric, [each.value for each in metric.spread.values])])


def _number(value: float) -> str:
    return f"{value:.6g}"


def remarks(result: Found, runs: Path | None = None) -> list[str]:
    """The lines on stderr after the last run. `runs`: the value of --runs."""
    failed = [run for run in result.runs if run.exit_code]
    lines = []
    if failed:
        listed = ", ".join(f"seed {run.seed} (exit {run.exit_code}, run {short(run.id)})" for run in failed[:_SHOWN])
        lines.append(f"failed runs, which are not in the numbers above: {listed}")
    if len(result.runs) < result.requested:
        lines.append(f"{len(result.runs)} of {result.requested} seeds were run")
    if len(result.runs) - len(failed) < FEW and not result.no_effect:
        lines.append(f"fewer than {FEW} seeds do not show the range of a metric")
    if result.no_effect:
        lines.append("all outputs are identical: the master seed has no effect on them")
    if result.seeded:
        lines.append("the same in all runs" + own_seeds(result.seeded))
    if result.runs:
        lines.append(f"next: repro-env runs show {short(result.runs[-1].id)}{runs_option(runs)}")
    return lines
