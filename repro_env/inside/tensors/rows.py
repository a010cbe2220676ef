"""Which values of a database's rows say when, or by which random name, and nothing of results.

A database of any program: a text that is a moment, and nothing else. The store of MLflow (mlflow/store/db_migrations): also its
own columns of times, the random names of its runs, and paths that have them.
"""

import re
from typing import Dict, Sequence, Tuple

from .leaves import Place
from .names import without

_MOMENT = re.compile(r"(?:19|20)\d\d-[01]\d-[0-3]\d[ T][0-2]\d:[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
_MLFLOW = (("key alembic_version", "entry 0", "key version_num"), ("key experiments", "entry 0", "key experiment_id"))
_TIMES = re.compile(
    r"timestamp|(?:metric_)?timestamp_ms|(?:start|end|deleted|creation|created|last_updated?|update|updated)_time"
    r"|(?:created|last_updated|creation|start|end)_(?:at|timestamp)(?:_ms)?"
)
_EPOCH = range(10**12, 10**13)
"""Milliseconds, from 2001 to 2286."""
_NAMES = (("key runs", "key name"), ("key logged_models", "key name"))
_ID = re.compile(r"(?:\w+_)?(?:uu)?id")
_RANDOM = re.compile(r"(?:[a-z]{1,2}-)?(?:[0-9a-f]{32}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})")
_PART = re.compile(r"(?<![0-9A-Za-z])(?:[0-9a-f]{32}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})(?![0-9A-Za-z])")
_NOTE = "mlflow.note.content"
"""What the user wrote about a run, under a name of MLflow's."""
Values = Dict[Place, object]


class Names:
    """Random names of one side, and which of the other side's each of them is."""

    def __init__(self) -> None:
        self._there = {}  # type: Dict[str, str]
        self._here = {}  # type: Dict[str, str]

    def same(self, then: str, now: str) -> bool:
        """Whether nothing that was said before gives one of them to another."""
        ones, others = _PART.findall(then), _PART.findall(now)
        return len(ones) == len(others) and all(
            self._there.setdefault(one, other) == other and self._here.setdefault(other, one) == one
            for one, other in zip(ones, others)  # noqa: B905
        )


def quiet(
    place: Place,
    then: object,
    now: object,
    values: "Tuple[Values, Values]",
    masks: "Sequence[Tuple[re.Pattern[str], str]]",
    names: Names,
) -> "bool | None":
    """Of two values that differ; None where they name another run, whatever else they say.

    `values`: all of both sides. `masks`: what takes random names and moments out of a path. `names`: one for all values of
    two files, which belong to the same run on both sides, or to none.
    """
    if isinstance(then, str) and isinstance(now, str) and _MOMENT.fullmatch(then) and _MOMENT.fullmatch(now):
        return True
    if len(place) != 3 or any(one not in side for one in _MLFLOW for side in values):
        return False
    table, row, column = place
    if isinstance(then, int) and isinstance(now, int):
        return _TIMES.fullmatch(column[4:]) is not None and then in _EPOCH and now in _EPOCH
    if not isinstance(then, str) or not isinstance(now, str):
        return False
    if (table, column) in _NAMES:
        return True
    if table == "key tags" and column == "key value":
        keys = [str(side.get((table, row, "key key"))) for side in values]
        return all(key.startswith("mlflow.") and key != _NOTE for key in keys)
    if _ID.fullmatch(column[4:]):
        return (names.same(then, now) or None) if _RANDOM.fullmatch(then) and _RANDOM.fullmatch(now) else False
    # A number that is no path may be a seed, and 32 digits a checksum of data.
    alike = without(then, masks) == without(now, masks)
    return (names.same(then, now) or None) if alike else False
