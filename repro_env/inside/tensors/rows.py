"""Which values of a database's rows say when, or by which random name, and nothing of results.

A database of any program: a text that is a moment, and nothing else. The store of MLflow (mlflow/store/db_migrations): also its
own columns of times, the random names of its runs, and paths that have them.
"""

import re
from typing import Dict, Sequence, Tuple

from .leaves import Place

_MOMENT = re.compile(r"(?:19|20)\d\d-[01]\d-[0-3]\d[ T][0-2]\d:[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
_MLFLOW = (("key alembic_version", "entry 0", "key version_num"), ("key experiments", "entry 0", "key experiment_id"))
_TIMES = re.compile(
    r"timestamp|(?:start|end|deleted|creation|created|last_updated?|update|updated)_time|(?:created|last_updated|creation|start|end)_(?:at|timestamp)(?:_ms)?|timestamp_ms"
)
_EPOCH = range(10**12, 10**13)
"""Milliseconds, from 2001 to 2286."""
_NAMES = (("key runs", "key name"), ("key logged_models", "key name"))
_ID = re.compile(r"(?:\w+_)?(?:uu)?id")
_RANDOM = re.compile(r"(?:[a-z]{1,2}-)?(?:[0-9a-f]{32}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})")
Values = Dict[Place, object]


def quiet(
    place: Place, then: object, now: object, values: "Tuple[Values, Values]", masks: "Sequence[Tuple[re.Pattern[str], str]]"
) -> bool:
    """Of two values that differ. `values`: all of both sides. `masks`: what takes random names and moments out of a path."""
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
        return all(str(side.get((table, row, "key key"))).startswith("mlflow.") for side in values)
    if _ID.fullmatch(column[4:]):
        return _RANDOM.fullmatch(then) is not None and _RANDOM.fullmatch(now) is not None
    # A number that is no path may be a seed, and 32 digits a checksum of data.
    return "/" in then and "/" in now and _without(then, masks) == _without(now, masks)


def _without(text: str, masks: "Sequence[Tuple[re.Pattern[str], str]]") -> str:
    for pattern, replacement in masks:
        text = pattern.sub(replacement, text)
    return text
