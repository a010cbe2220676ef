"""A bound of a metric, such as `>= 0.95`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from repro_env.schema.run import End, Number

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_BOUND = re.compile(r"\s*(<=|>=|!=|<|>|==?)\s*([^<>=\s]+)\s*")


class Bound(NamedTuple):
    comparison: str
    limit: float

    def holds(self, value: Number | None) -> bool:
        """Whether there is a value, and it is as required. NaN never is."""
        number = math.nan if value is None else float(value)
        return not math.isnan(number) and COMPARISONS[self.comparison](number, self.limit)


def parse(text: str) -> Bound | None:
    """Return the bound; None if the text is none."""
    match = _BOUND.fullmatch(text)
    try:
        return Bound(match[1].replace("==", "="), float(match[2])) if match else None
    except ValueError:
        return None


def last_values(end: End | None) -> dict[str, Number]:
    """Return the last value of each metric by its name, and by `FILE:NAME`. Of several files with one name, the first by path counts."""
    metrics = end.metrics if end is not None else ()
    return {name: metric.last for metric in reversed(metrics) for name in (metric.name, f"{metric.file}:{metric.name}")}
