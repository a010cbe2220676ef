"""Find the differences between two files by their format, which their name and first bytes show."""

from __future__ import annotations

import csv
import io
import itertools
import re
import struct
import zlib
from collections.abc import Iterator, Sequence

from repro_env.compare.outputs import jsonvalues, progress, tensorboard
from repro_env.compare.outputs.comparison import PACKED, Change, PairNames, Reader, Reading

LARGEST = 64 << 20
"""The largest file that is read, in bytes."""
_CONTROL = re.compile("[\0-\x07\x0e-\x1a\x1c-\x1f]")
"""Characters that text files do not have; progress bars have backspaces. A file with one of them is binary even if it is valid UTF-8."""
_GZIP = b"\x1f\x8b"
_JSON = (".json", ".jsonl", ".ndjson", ".ipynb")
_TABLES = (".csv", ".tsv")
_MOST = 500
"""The most differences that are listed. A file with more differs as a whole."""
_TEXT = re.compile(rb"[\x20-\x7e]+")
_AROUND = 100
"""How many bytes on each side of a difference are searched for text."""
_APART = 8
"""The fewest equal bytes between two differences. With fewer, they count as one difference."""
_BLOCK = 1 << 16
_TIMES = range(10**9, 2 * 10**9)
"""Seconds since 1970, from 2001 to 2033."""


def read(path: str, left: bytes, right: bytes, pair_names: PairNames) -> Reading:
    """Return at least one difference: `PACKED` if no value differs. Other formats are read as text, or as bytes if not text."""
    name = path.rpartition("/")[2].lower()
    if name.startswith("events.out.tfevents") and (changes := tensorboard.changes(left, right)) is not None:
        return _reading("events", changes)
    if left[:2] == right[:2] == _GZIP and (found := _gzip(path, left, right, pair_names)) is not None:
        return found
    try:
        then, now = left.decode(), right.decode()
    except UnicodeDecodeError:
        return Reading("binary", _changes_of_bytes(left, right))
    if _CONTROL.search(then) or _CONTROL.search(now):
        return Reading("binary", _changes_of_bytes(left, right))
    if name.endswith(_JSON) and (changes := jsonvalues.changes(path, then, now, pair_names)) is not None:
        return _reading("json", changes)
    if name.endswith(_TABLES) and (changes := _changes_of_table(path, then, now)) is not None:
        return _reading("table", changes)
    changes = progress.changes(then, now)
    return Reading("text", _changes_of_text(then, now) if changes is None else changes)


def _reading(by: Reader, changes: Sequence[Change]) -> Reading:
    return Reading(by, changes or [PACKED])


def _gzip(path: str, left: bytes, right: bytes, pair_names: PairNames) -> Reading | None:
    """Compare the times in the headers (RFC 1952) and the content; None if the content cannot be read."""
    then, now = _decompressed(left), _decompressed(right)
    if then is None or now is None or then[:2] == _GZIP:  # a gzip file can contain itself
        return None
    old_time, new_time = (str(struct.unpack_from("<I", data, 4)[0]) for data in (left, right))
    place = "(time in the gzip header)"
    times = [Change(place=place, then=old_time, now=new_time, time=True)] if old_time != new_time else []
    if left[8:] == right[8:] and left[:4] == right[:4]:
        return Reading("binary", times)
    if then == now:
        return Reading("binary", [*times, PACKED])
    name = re.sub(r"(?i)\.gz\Z", "", re.sub(r"(?i)\.svgz\Z", ".svg", path))
    content = read(name, then, now, pair_names)
    return Reading(content.by, [*times, *content.changes])


def _decompressed(data: bytes) -> bytes | None:
    """Return the content of a gzip file; None if it is damaged, larger than `LARGEST`, or followed by other data."""
    decompressor = zlib.decompressobj(31)
    try:
        content = decompressor.decompress(data, LARGEST)
    except zlib.error:
        return None
    return content if decompressor.eof and not decompressor.unused_data else None


def _changes_of_text(left: str, right: str) -> list[Change]:
    """Return the lines that differ, with their numbers. Only a line feed ends a line; a carriage return is content."""
    pairs = itertools.zip_longest(left.split("\n"), right.split("\n"))
    return [
        Change(place="", at=f"line {number}", then=then, now=now) for number, (then, now) in enumerate(pairs, 1) if then != now
    ]


def _changes_of_table(path: str, left: str, right: str) -> list[Change] | None:
    """Return the cells that differ, and `PACKED` if quotes or line ends differ. None if the headers or numbers of rows differ."""
    delimiter = "\t" if path.lower().endswith(".tsv") else ","
    comments: list[Change] = []
    if left.startswith("#{") and right.startswith("#{"):  # a line of JSON, as in monitor.csv of stable-baselines3
        (then, _, left), (now, _, right) = left.partition("\n"), right.partition("\n")
        comments = _changes_of_text(then, now)
    try:
        old, new = (list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)) for text in (left, right))
    except csv.Error:
        return None
    columns = old[0] if old else []
    if len(old) != len(new) or len(old) < 2 or columns != new[0] or len(set(columns)) != len(columns):
        return None
    if any(len(row) != len(columns) for row in (*old, *new)):
        return None
    found = comments + [
        Change(place=column or "(no name)", at=f"line {number}", then=then, now=now)
        for number, (old_row, new_row) in enumerate(zip(old[1:], new[1:], strict=True), 2)
        for column, then, now in zip(columns, old_row, new_row, strict=True)
        if then != now
    ]
    return [*found, PACKED] if not found or any(left.count(sign) != right.count(sign) for sign in '"\r\n') else found


def _changes_of_bytes(left: bytes, right: bytes) -> list[Change]:
    """Return the differences between two files of the same size; a single change for files of different sizes."""
    if len(left) != len(right):
        return [Change(place="(size)", then=f"{len(left):,} bytes", now=f"{len(right):,} bytes")]
    ranges = list(itertools.islice(_different_ranges(left, right), _MOST + 1))
    if len(ranges) > _MOST:
        return [Change(place="(bytes)", then=f"{len(left):,} bytes", now=f"as many bytes, with more than {_MOST} differences")]
    if 2 * sum(end - start for start, end in ranges) > len(left):  # no position in such a file is the same the next time
        return [Change(place="(bytes)", then=f"{len(left):,} bytes", now="as many bytes, of which more than half differ")]
    return [_change_of_bytes(left, right, start, end) for start, end in ranges]


def _change_of_bytes(left: bytes, right: bytes, start: int, end: int) -> Change:
    texts = [_text_around(data, start, end) for data in (left, right)]
    if all(texts):
        first, last = min(text.start() for text in texts if text), max(text.end() for text in texts if text)
        then, now = (data[first:last].decode("latin-1") for data in (left, right))
    else:
        then, now = _seconds(left, right, start, end) or (
            f"0x{data[start : min(end, start + 32)].hex()}" for data in (left, right)
        )
    return Change(place=f"(byte {start})", then=then, now=now)


def _seconds(left: bytes, right: bytes, start: int, end: int) -> tuple[str, str] | None:
    """Return the little-endian numbers of four bytes that contain a difference, if both can be seconds since 1970.

    The headers of HDF5 have such times. They are evidence only if they are within their runs.
    """
    for at in range(start, max(start - 4, -1), -1):
        numbers = [int.from_bytes(data[at : at + 4], "little") for data in (left, right)]
        if end <= at + 4 and all(number in _TIMES for number in numbers):
            return str(numbers[0]), str(numbers[1])
    return None


def _different_ranges(left: bytes, right: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each difference."""
    start = end = -_APART
    for position in _different_bytes(left, right):
        if position - end >= _APART:
            if end > 0:
                yield start, end
            start = position
        end = position + 1
    if end > 0:
        yield start, end


def _different_bytes(left: bytes, right: bytes) -> Iterator[int]:
    for block in range(0, len(left), _BLOCK):
        old, new = left[block : block + _BLOCK], right[block : block + _BLOCK]
        if old != new:
            yield from (block + offset for offset, (then, now) in enumerate(zip(old, new, strict=True)) if then != now)


def _text_around(data: bytes, start: int, end: int) -> re.Match[bytes] | None:
    """Find the text that contains the bytes from `start` to `end`; None if they are not all text."""
    for match in _TEXT.finditer(data, max(0, start - _AROUND), min(len(data), end + _AROUND)):
        if match.start() <= start and match.end() >= end:
            return match
    return None
