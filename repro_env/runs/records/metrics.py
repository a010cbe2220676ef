"""Collect the numbers in the outputs of a run: JSON, JSON Lines, CSV and TensorBoard event files.

A file may not be what its name says, and the work for each file is limited. Files that are not read to their end are
listed with the reason.
"""

from __future__ import annotations

import contextlib
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

from repro_env.io.files import open_regular
from repro_env.runs.records import tensorboard
from repro_env.schema import redact
from repro_env.schema.patterns import lazy
from repro_env.schema.run import Metric, Number, Output
from repro_env.schema.rundirectory import locate

LARGEST = 8 << 20
"""The largest file that is read, in bytes; for an event file, the size of its small records."""
_BYTES = 64 << 20
"""The size limit for all files of a run together."""
_FILES = 2000
SERIES = 200
"""The most series in a file. A file with more has other data, such as a vocabulary or an index."""
_ALL_SERIES = 5000
_LONGEST = 200
"""The longest name, in characters."""
_EVENTS = "events.out.tfevents."
_SETTINGS = lazy(
    r"(?:.*config|.*args|h?params|.*metadata|manifest|.*schema|package(?:-lock)?|.*\.index|vocab|tokenizer.*|.*tokens|.*tokens?_map)\.json",
    re.IGNORECASE,
)
"""The names of JSON files with numbers that are not results: settings and parts of a model."""
_NUMBER = lazy(r"[+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE | re.ASCII)


class Collected(msgspec.Struct, frozen=True):
    metrics: tuple[Metric, ...] = ()
    """Sorted by file and name."""
    unparsed: tuple[str, ...] = ()
    """`<path> (why)`, for files that were not read, or not to their end; sorted by path."""


class _UnreadError(Exception):
    """The reason why reading a file stopped. The numbers that were found before it count."""


class _Series:
    """Statistics of the numbers with one name."""

    def __init__(self, values: list[float] | None) -> None:
        self.values = values
        """All values, if they are wanted."""
        self.count = 0
        self.last = math.nan
        self.least = math.inf
        self.most = -math.inf
        self.has_number = False
        """Whether a value was not NaN."""

    def add(self, value: float) -> None:
        if self.values is not None:
            self.values.append(value)
        self.count += 1
        self.last = value
        if not math.isnan(value):
            self.has_number = True
            self.least = min(self.least, value)
            self.most = max(self.most, value)


class _Found:
    """The series in one file, by name."""

    def __init__(self, *, keeps_values: bool = False) -> None:
        self.series: dict[str, _Series] = {}
        self._keeps_values = keeps_values

    def add(self, name: str, value: float) -> None:
        series = self.series.get(name)
        if series is None:
            if len(self.series) >= SERIES:
                raise self.reject(f"more than {SERIES} names of numbers")
            if len(name) > _LONGEST:
                raise self.reject(f"a name has more than {_LONGEST} characters")
            series = self.series[name] = _Series([] if self._keeps_values else None)
        series.add(value)

    def reject(self, why: str) -> _UnreadError:
        """Drop all series, because the file has other data than metrics."""
        self.series.clear()
        return _UnreadError(why)


_Reader = Callable[[BinaryIO, str, _Found], None]
"""Adds the numbers of an open file to the series. The second argument is the name of the file.

Raises `_UnreadError`."""


def collect(files: Path, outputs: Sequence[Output]) -> Collected:
    """Collect the series in the outputs of a run. Does not raise errors about their content."""
    metrics: list[Metric] = []
    unparsed: list[str] = []
    count = size = 0
    for output in outputs:
        reader = _reader(output.path)
        if reader is None:
            continue
        count += 1
        size += min(output.size, LARGEST)
        found = _Found()
        try:
            if count > _FILES or size > _BYTES or len(metrics) >= _ALL_SERIES:
                raise _UnreadError("not read: the limit for all files of a run is reached")
            _read(locate(files, output.path), reader, found)
        except _UnreadError as error:
            unparsed.append(redact.line(f"{output.path} ({error})"))
        metrics += _metrics(output.path, found)
    return Collected(tuple(sorted(metrics, key=lambda metric: (metric.file, metric.name))), tuple(unparsed))


def values(files: Path, path: str) -> dict[str, list[float]]:
    """Return all values of each series in an output, as far as it can be read now. No symlink is followed below the run."""
    found, reader = _Found(keeps_values=True), _reader(path)
    if reader is not None:
        with contextlib.suppress(_UnreadError):
            _read(locate(files, path), reader, found, below=files.parent)
    series: dict[str, list[float]] = {}
    for name, item in found.series.items():
        series.setdefault(redact.line(name), item.values or [])
    return series


def number(value: float) -> Number:
    """Convert a number to its form in a record."""
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else "inf" if value > 0 else "-inf"


def _reader(path: str) -> _Reader | None:
    name = path.rpartition("/")[2]
    if name.startswith(_EVENTS):
        return _events
    extension = name.rpartition(".")[2].lower()
    if extension == "json":
        return None if _SETTINGS.fullmatch(name) else _json
    return {"jsonl": _json_lines, "ndjson": _json_lines, "csv": _table, "tsv": _table}.get(extension)


def _read(path: Path, reader: _Reader, found: _Found, *, below: Path | None = None) -> None:
    try:
        # A child process that outlived the run may replace the file.
        with os.fdopen(open_regular(path, below=below), "rb") as file:
            reader(file, path.name, found)
    except OSError as error:
        raise _UnreadError(str(error.strerror)) from None
    except (RecursionError, MemoryError):
        raise found.reject("nested too deeply") from None


def _metrics(path: str, found: _Found) -> Iterable[Metric]:
    metrics: dict[str, Metric] = {}
    for name, series in found.series.items():
        least, most = (series.least, series.most) if series.has_number else (math.nan, math.nan)
        printable = redact.line(name)
        metrics.setdefault(
            printable,
            Metric(
                name=printable,
                file=path,
                count=series.count,
                last=number(series.last),
                least=number(least),
                most=number(most),
            ),
        )
    return metrics.values()


def _read_all(file: BinaryIO) -> bytes:
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise _UnreadError(f"larger than {LARGEST:,} bytes")
    return data


def _json(file: BinaryIO, name: str, found: _Found) -> None:
    try:
        value = _parse(_read_all(file))
    except ValueError:
        raise _UnreadError("not valid JSON") from None
    # A number or a list of numbers without a name is named after the file.
    _add_numbers(value, "" if isinstance(value, dict) or _has_names(value) else name.rpartition(".")[0], found)


def _has_names(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _json_lines(file: BinaryIO, name: str, found: _Found) -> None:  # noqa: ARG001
    bad = 0
    for line_number, line in enumerate(_read_all(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = _parse(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            _add_numbers(value, "", found)
        elif not found.series:
            raise _UnreadError(f"line {line_number} is not a JSON object")
        else:
            bad = bad or line_number
    if bad:
        raise _UnreadError(f"line {bad} is not a JSON object and was skipped")


def _parse(data: bytes) -> object:
    """Parse JSON, also with NaN and Infinity, which Python writes. Raises `ValueError`."""
    value: object = json.loads(data.decode("utf-8-sig"), parse_int=float)
    return value


def _add_numbers(value: object, name: str, found: _Found) -> None:
    """Add all numbers in a JSON value. The items of a list belong to the same series, or to one series for each key."""
    if isinstance(value, float):
        found.add(name, value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _add_numbers(item, f"{name}.{key}" if name else key, found)
    elif isinstance(value, list):
        for item in value:
            _add_numbers(item, name, found)


def _table(file: BinaryIO, name: str, found: _Found) -> None:
    """Add the columns of a table with a header row. A column is a series if each cell is a number or empty."""
    text = _read_all(file).decode("utf-8-sig", errors="replace")
    header = text.partition("\n")[0]
    delimiter = "\t" if name.lower().endswith(".tsv") else max(",;\t", key=header.count)
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        columns = [cell.strip() for cell in next(rows, [])]
        if any(_NUMBER.fullmatch(cell) for cell in columns):
            raise _UnreadError("the first row has numbers instead of names")
        duplicate = next((cell for cell in columns if cell and columns.count(cell) > 1), "") if len(columns) <= SERIES else ""
        if duplicate:
            raise _UnreadError(f"two columns have the name {duplicate}")
        text_columns: set[str] = set()
        for row in rows:
            for column, cell in zip(columns, row, strict=False):
                cell = cell.strip()
                if not cell or not column or column in text_columns:
                    continue
                if _NUMBER.fullmatch(cell):
                    found.add(column, float(cell))
                else:
                    text_columns.add(column)
                    found.series.pop(column, None)
    except csv.Error as error:
        raise _UnreadError(f"not a valid table: {error}") from None


def _events(file: BinaryIO, name: str, found: _Found) -> None:  # noqa: ARG001
    try:
        for tag, value in tensorboard.scalars(file, LARGEST):
            found.add(tag or "(no tag)", value)
    except tensorboard.DamagedError as error:
        raise _UnreadError(str(error)) from None
