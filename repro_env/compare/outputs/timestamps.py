"""Find the times in a text: a date with at least hours and minutes, or seconds since 1970.

A date or a time of day alone and a duration are not found, because they are often results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import NamedTuple

_FRACTION = r"(?:\.(?P<fraction>\d{1,9})|_(?P<millionths>\d{6})|,(?P<thousandths>\d{3})(?=[ \t\])|:]))?"
"""A comma is accepted only as in Python's logging. Elsewhere the digits may be the next column."""
_ZONE = r"(?P<zone> ?(?:Z|UTC|GMT)(?![A-Za-z])| ?[+-](?:0\d|1[0-4])[:']?[0-5]\d'?)?"
_YEAR, _MONTH, _DAY = r"(?P<year>(?:19|20)\d\d)", r"(?P<month>0[1-9]|1[0-2])", r"(?P<day>0[1-9]|[12]\d|3[01])"
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NAMED = rf"(?P<name>{'|'.join(_NAMES)})[a-z]{{0,6}}"
_WEEKDAY = r"(?<![0-9A-Za-z])(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? )?"
_START = r"(?<![0-9A-Za-z.])"
_END = r"(?![0-9]|[:.][0-9]| ?(?:[AaPp][Mm]|[ECMPA][SD]T|CES?T|EES?T|WES?T|BST|IST|JST|HST|MSK|SGT|AE[SD]T)(?![A-Za-z]))"
"""No match before the name of another zone, AM or PM, because the time is then unknown."""


def _clock(colon: str) -> str:
    """Return the pattern of a time of day: hours and minutes, with optional seconds, fraction and zone."""
    second = rf"(?:(?P=colon)(?P<second>[0-5]\d){_FRACTION})?"
    return rf"(?P<hour>[01]\d|2[0-3])(?P<colon>{colon})(?P<minute>[0-5]\d){second}{_ZONE}"


_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        # 2026-03-04T09:15:02.125Z, 2026-03-04 09:15:02,125, 2026-03-04/09-15-02 (Hydra), 2026-03-04@09:15:02 (Keras), 2026/03/04 09:15
        rf"{_START}{_YEAR}(?P<dash>[-/.]){_MONTH}(?P=dash){_DAY}(?:[T/_@-]| {{1,2}}){_clock('[:.-]')}{_END}",
        # 20260304T091502Z, 20260304-091502, 20260304_091502, 20260304091502, D:20260304091502+00'00' (PDF)
        rf"(?:{_START}|(?<=D:)){_YEAR}{_MONTH}{_DAY}[T_-]?{_clock('')}{_END}",
        # Wed Mar  4 09:15:02 2026, Mar 04 2026 09:15:02, Mar04_09-15-02 (TensorBoard's directories have no year)
        rf"{_WEEKDAY}{_NAMED} {{0,2}}(?P<day>\d{{1,2}})(?:,? (?P<early>20\d\d))?[ _,]{{1,2}}{_clock('[:-]')}(?: (?P<year>20\d\d))?{_END}",
        # 04/Mar/2026:09:15:02 +0000, Wed, 04 Mar 2026 09:15:02 GMT
        rf"{_WEEKDAY}(?P<day>\d{{1,2}})[ /-]{_NAMED}[ /-](?P<year>20\d\d)[ :]{{1,2}}{_clock(':')}{_END}",
        # 03/04/2026 09:15:02, month first as transformers logs it
        rf"(?<![0-9/]){_MONTH}/{_DAY}/{_YEAR},? {_clock(':')}{_END}",
    )
)
_EPOCH = re.compile(
    r"(?<![0-9A-Za-z+-])(?<![0-9]\.)(?P<whole>1\d{9}|1\d{12}|1\d{15}|1\d{18})(?P<part>\.\d{1,9})?(?![0-9A-Za-z]|\.\d)"
)
"""Seconds, milliseconds, microseconds or nanoseconds, from 2001 to 2033."""


class Timestamp(NamedTuple):
    start: int
    end: int
    """The position in the text."""
    starts: tuple[float, ...]
    """Seconds since 1970, read in each zone. They differ only for a time without a zone."""
    length: float
    """The precision of the text, in seconds."""
    form: str
    """The format of the text."""


def timestamps(text: str, zones: tuple[int, ...], year: int) -> Iterator[Timestamp]:
    """Yield all times in a text. `zones`: UTC offsets in seconds for times without a zone. `year`: for times without a year."""
    for number, pattern in enumerate(_PATTERNS):
        for match in pattern.finditer(text):
            starts, length = _read(match, zones, year)
            if starts:
                marks = re.sub(r"[0-9]+|[A-Za-z]{3,}", "", match[0])
                yield Timestamp(*match.span(), starts, length, f"{number} {marks} {match['zone'] or ''}")
    for match in _EPOCH.finditer(text):
        whole, part = match["whole"], match["part"] or ""
        scale = 10 ** (len(whole) - 10)
        length = (10.0 ** -(len(part) - 1) if part else 1.0) / scale
        yield Timestamp(*match.span(), (float(whole + part) / scale,) * len(zones), length, f"{len(whole)} {bool(part)}")


def _read(match: re.Match[str], zones: tuple[int, ...], year: int) -> tuple[tuple[float, ...], float]:
    """Return `starts` and `length` of a time; no starts if the date does not exist."""
    parts = match.groupdict()
    month = _NAMES.index(parts["name"]) + 1 if parts.get("name") else int(parts["month"])
    fraction = parts.get("fraction") or parts.get("millionths") or parts.get("thousandths") or ""
    try:
        utc = datetime(
            int(parts.get("year") or parts.get("early") or year),
            month,
            int(parts["day"]),
            int(parts.get("hour") or 0),
            int(parts.get("minute") or 0),
            int(parts.get("second") or 0),
            int(fraction[:6].ljust(6, "0")) if fraction else 0,
            tzinfo=timezone.utc,
        ).timestamp()
    except ValueError:
        return (), 0.0
    length = 60.0
    if parts.get("second"):
        length = 10.0 ** -len(fraction)
    zone = (parts.get("zone") or "").strip()
    if zone[:1] in ("+", "-"):
        digits = zone[1:].replace(":", "").replace("'", "")
        offset = 3600 * int(digits[:2]) + 60 * int(digits[2:])
        return (utc - (offset if zone[0] == "+" else -offset),) * len(zones), length
    return tuple(utc if zone else utc - offset for offset in zones), length
