"""Curves of the metrics of runs, from the values in their output files."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from repro_env.cli.ui.page import Page
from repro_env.compare.runs import MetricPair
from repro_env.io.files import sha256_of
from repro_env.pages.chart import Curve
from repro_env.runs.records import metrics
from repro_env.runs.records.records import Run
from repro_env.schema.errors import RecordError, UsageError
from repro_env.schema.run import Metric
from repro_env.schema.rundirectory import locate

_MOST = 24
"""Curves in a page: a page of all would be too large to send."""


class _Values:
    """The values of a run, of which each file is read once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._files: dict[str, dict[str, list[float]]] = {}

    def of(self, metric: Metric | None) -> list[float]:
        """The values of a metric; empty if the file has changed since the run."""
        if metric is None:
            return []
        if metric.file not in self._files:
            self._files[metric.file] = metrics.values(self._run.files, metric.file) if self._is_recorded(metric.file) else {}
        return self._files[metric.file].get(metric.name, [])

    def _is_recorded(self, path: str) -> bool:
        """Whether an output still has the bytes of the record."""
        recorded = {output.path: output.sha256 for output in (self._run.end.outputs if self._run.end else ())}
        with contextlib.suppress(OSError):
            place = locate(self._run.files, path)
            return f"sha256:{sha256_of(place, below=self._run.directory)}" == recorded.get(path)
        return False


def of_run(page: Page, run: Run) -> None:
    """Add a curve for each metric with several values."""
    values = _Values(run)
    found = [] if run.end is None else [metric for metric in run.end.metrics if metric.count > 1]
    _add(page, ((metric, [Curve(metric.name, values.of(metric))], None) for metric in found), len(found))


def of_two(page: Page, left: Run, right: Run, pairs: Sequence[MetricPair]) -> None:
    """Add the curves of two runs for each metric that differs, with the first value that does."""
    values = _Values(left), _Values(right)
    differing = [
        pair for pair in pairs if not pair.same and pair.left and pair.right and max(pair.left.count, pair.right.count) > 1
    ]

    def drawn() -> Iterable[tuple[Metric, list[Curve], int | None]]:
        for pair in differing:
            if pair.left is not None:
                a, b = values[0].of(pair.left), values[1].of(pair.right)
                first = next((index for index, (x, y) in enumerate(zip_longest(a, b)) if not _equal(x, y)), None)
                yield pair.left, [Curve(f"A ({left.short})", a), Curve(f"B ({right.short})", b)], first

    _add(page, drawn(), len(differing))


def of_metric(name: str, runs: Sequence[Run]) -> list[Curve]:
    """Return the values of a metric in each run. Raises `RecordError` if a run does not have it, or its file has changed."""
    drawn = []
    for run in runs:
        found = [
            metric for metric in (run.end.metrics if run.end else ()) if name in (metric.name, f"{metric.file}:{metric.name}")
        ]
        if len(found) > 1:
            hint = f"name one of them: {', '.join(f'{metric.file}:{metric.name}' for metric in found)}"
            raise UsageError(f"run {run.short} has this metric in {len(found)} files", where=name, hint=hint)
        values = _Values(run).of(found[0]) if found else []
        if not values:
            why = "its file is not here, or has changed since the run" if found else "the run has no metric of this name"
            raise RecordError(why, where=f"{run.short}: {name}", hint=f"repro-env runs show {run.short} lists its metrics")
        drawn.append(Curve(run.short, values))
    return drawn


def _equal(left: float | None, right: float | None) -> bool:
    return left == right or (left is not None and right is not None and math.isnan(left) and math.isnan(right))


def _add(page: Page, charts: Iterable[tuple[Metric, list[Curve], int | None]], count: int) -> None:
    for number, (metric, curves, mark) in enumerate(charts):
        if number == _MOST:
            page.text(f"and {count - _MOST:,} more metrics without a curve")
            break
        if any(curve.values for curve in curves):
            first = "" if mark is None else f", different from value {mark + 1:,} on"
            page.chart(f"{metric.name} ({metric.file}){first}", curves, mark)
        else:
            page.text(f"{metric.name}: {metric.file} is not here, or has changed since the run")
