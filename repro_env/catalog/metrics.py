"""Numbers in what a run wrote: JSON, JSON lines, CSV and TensorBoard event files among its outputs.

No file is trusted to be what its name says, and each costs a bounded amount of work. What is not read whole is named:
a number that is missing here was not looked for, or says why.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from repro_env.catalog import events
from repro_env.catalog.outputs import place
from repro_env.io.files import open_regular
from repro_env.model import redact
from repro_env.model.run import Metric, Number, Output

LARGEST = 8 << 20
"""Bytes of a file that is read; of an event file, of its small records."""
_BYTES = 64 << 20
"""Of all files of a run."""
_FILES = 2000
SERIES = 200
"""Series of one file: one with more is a table of something else (a vocabulary, an index)."""
_ALL_SERIES = 5000
_LONGEST = 200
"""Characters of a name."""
_EVENTS = "events.out.tfevents."
_SETTINGS = re.compile(
    r"(?:.*config|.*args|h?params|.*metadata|manifest|.*schema|package(?:-lock)?|.*\.index|vocab|tokenizer.*|.*tokens|.*tokens?_map)\.json",
    re.IGNORECASE,
)
"""Names of JSON files whose numbers are no results: settings, and what belongs to a model."""
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE | re.ASCII)


class Collected(msgspec.Struct, frozen=True):
    metrics: tuple[Metric, ...] = ()
    """Sorted by file and name."""
    unread: tuple[str, ...] = ()
    """`<path> (why)`: files that were not read, or not to their end; sorted by path."""


class _UnreadError(Exception):
    """Why a file is not read further. What was found in it before counts."""


class _NoMetricsError(Exception):
    """Why a file is not read at all: what was found in it is something else."""


class _Series:
    """Numbers of one name, as they come."""

    def __init__(self) -> None:
        self.count = 0
        self.last = math.nan
        self.least = math.inf
        self.most = -math.inf
        self.known = False
        """One of them was a number."""

    def add(self, value: float) -> None:
        self.count += 1
        self.last = value
        if not math.isnan(value):
            self.known = True
            self.least = min(self.least, value)
            self.most = max(self.most, value)


class _Found:
    """Series of one file, by name."""

    def __init__(self) -> None:
        self.series: dict[str, _Series] = {}

    def add(self, name: str, value: float) -> None:
        one = self.series.get(name)
        if one is None:
            if len(self.series) >= SERIES:
                raise _NoMetricsError(f"over {SERIES} names of numbers")
            if len(name) > _LONGEST:
                raise _NoMetricsError(f"a name of over {_LONGEST} characters")
            one = self.series[name] = _Series()
        one.add(value)


_Reader = Callable[[BinaryIO, str, _Found], None]
"""Takes an open file, its name, and where the numbers go. Raises `_UnreadError`, `_NoMetricsError`."""


def collect(files: Path, outputs: Sequence[Output]) -> Collected:
    """The series in a run's files. Never raises for what is in them."""
    metrics: list[Metric] = []
    unread: list[str] = []
    looked = size = 0
    for output in outputs:
        reader = _reader(output.path)
        if reader is None:
            continue
        looked += 1
        size += min(output.size, LARGEST)
        found = _Found()
        try:
            if looked > _FILES or size > _BYTES or len(metrics) >= _ALL_SERIES:
                raise _NoMetricsError("not looked at: enough was read of other files")
            _read(place(files, output.path), reader, found)
        except _NoMetricsError as error:
            unread.append(redact.line(f"{output.path} ({error})"))
            continue
        except _UnreadError as error:
            unread.append(redact.line(f"{output.path} ({error})"))
        metrics += _metrics(output.path, found)
    return Collected(tuple(sorted(metrics, key=lambda one: (one.file, one.name))), tuple(unread))


def number(value: float) -> Number:
    """As a record holds it."""
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else "inf" if value > 0 else "-inf"


def _reader(path: str) -> _Reader | None:
    name = path.rpartition("/")[2]
    if name.startswith(_EVENTS):
        return _events
    ending = name.rpartition(".")[2].lower()
    if ending == "json":
        return None if _SETTINGS.fullmatch(name) else _json
    return {"jsonl": _json_lines, "ndjson": _json_lines, "csv": _table, "tsv": _table}.get(ending)


def _read(path: Path, reader: _Reader, found: _Found) -> None:
    try:
        # A child that outlived the run may put something else there.
        with os.fdopen(open_regular(path), "rb") as file:
            reader(file, path.name, found)
    except OSError as error:
        raise _UnreadError(str(error.strerror)) from None
    except (RecursionError, MemoryError):
        raise _NoMetricsError("nested too deep") from None


def _metrics(path: str, found: _Found) -> Iterable[Metric]:
    made: dict[str, Metric] = {}
    for name, one in found.series.items():
        least, most = (one.least, one.most) if one.known else (math.nan, math.nan)
        shown = redact.line(name)
        made.setdefault(
            shown,
            Metric(name=shown, file=path, count=one.count, last=number(one.last), least=number(least), most=number(most)),
        )
    return made.values()


def _whole(file: BinaryIO) -> bytes:
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise _NoMetricsError(f"over {LARGEST:,} bytes")
    return data


def _json(file: BinaryIO, name: str, found: _Found) -> None:
    try:
        value = _parsed(_whole(file))
    except ValueError:
        raise _NoMetricsError("no JSON") from None
    # A number, or a row of them, without any name: the file's.
    _numbers(value, "" if isinstance(value, dict) or _has_names(value) else name.rpartition(".")[0], found)


def _has_names(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


def _json_lines(file: BinaryIO, name: str, found: _Found) -> None:  # noqa: ARG001
    bad = 0
    for count, line in enumerate(_whole(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = _parsed(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            _numbers(value, "", found)
        elif not found.series:
            raise _NoMetricsError(f"line {count} is no JSON object")
        else:
            bad = bad or count
    if bad:
        raise _UnreadError(f"line {bad} is no JSON object, it was left out")


def _parsed(data: bytes) -> object:
    """JSON as Python writes it: NaN and Infinity too. Raises `ValueError`."""
    value: object = json.loads(data.decode("utf-8-sig"), parse_int=float)
    return value


def _numbers(value: object, name: str, found: _Found) -> None:
    """A row of numbers is a series, by the name of the row; a row of objects is a series for each of their names."""
    if isinstance(value, float):
        found.add(name, value)
    elif isinstance(value, dict):
        for key, one in value.items():
            _numbers(one, f"{name}.{key}" if name else key, found)
    elif isinstance(value, list):
        for one in value:
            _numbers(one, name, found)


def _table(file: BinaryIO, name: str, found: _Found) -> None:
    """A first row of names, then rows of values. A column is a series when each of its cells is a number or empty."""
    text = _whole(file).decode("utf-8-sig", errors="replace")
    first = text.partition("\n")[0]
    mark = "\t" if name.lower().endswith(".tsv") else max(",;\t", key=first.count)
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
        names = [cell.strip() for cell in next(rows, [])]
        if any(_NUMBER.fullmatch(cell) for cell in names):
            raise _NoMetricsError("its first row holds numbers, and no names")
        twice = next((cell for cell in names if cell and names.count(cell) > 1), "") if len(names) <= SERIES else ""
        if twice:
            raise _NoMetricsError(f"two columns named {twice}")
        words: set[str] = set()
        for row in rows:
            for column, cell in zip(names, row, strict=False):
                cell = cell.strip()
                if not cell or not column or column in words:
                    continue
                if _NUMBER.fullmatch(cell):
                    found.add(column, float(cell))
                else:
                    words.add(column)
                    found.series.pop(column, None)
    except csv.Error as error:
        raise _UnreadError(f"no table: {error}") from None


def _events(file: BinaryIO, name: str, found: _Found) -> None:  # noqa: ARG001
    try:
        for tag, value in events.scalars(file, LARGEST):
            found.add(tag or "(no tag)", value)
    except events.DamagedError as error:
        raise _UnreadError(str(error)) from None
