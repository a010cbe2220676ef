"""Evidence: values that belong to one run and not to its result, such as its times, random ids, host name and directory.

Evidence explains a difference only if both values are the same thing, each of its own run: a time between the start and the end
of that run, the third id drawn at the same line of code, the run's directory. The shape of a value alone explains nothing.
"""

from __future__ import annotations

import base64
import binascii
import glob
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from repro_env.compare.outputs.comparison import Ignored
from repro_env.compare.outputs.timestamps import Timestamp, timestamps
from repro_env.schema.codec import Frozen
from repro_env.schema.fingerprints import digest_of_id, digest_of_name, normal_id
from repro_env.schema.run import End, Start

_HEX = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}|[0-9A-Fa-f]{8,128})(?![0-9A-Za-z])")
_BASE64 = re.compile(r"(?<![0-9A-Za-z_-])[0-9A-Za-z_-]{11,86}(?![0-9A-Za-z_=-])")
_PID = re.compile(r"(?<![0-9A-Za-z.+-])[1-9]\d{3,6}(?![0-9A-Za-z]|\.\d)")
"""Smaller PIDs, as in a PID namespace, are ignored: small numbers are often something else."""
_WORDS = tuple(re.compile(rf"[0-9A-Za-z][0-9A-Za-z{marks}-]{{1,63}}") for marks in ("_.", ".", "_", ""))
"""Names of hosts and users can have dots and underscores, and can be between them."""
_TIME = "a time within the run"
_FINEST = 1e-6
"""The smallest distance of two times, in seconds, that a float can hold."""
_SHORTEST_NAME = 3
_SHORT_ID = 8
"""How many hex digits of an id are often used alone (`uuid4().hex[:8]`)."""


class Evidence(Frozen, frozen=True, kw_only=True):
    """The values that belong to one run."""

    started: float = 0.0
    """The recorded start in seconds since 1970."""
    ended: float = 0.0
    """The recorded end in seconds since 1970."""
    zones: tuple[int, ...] = (0,)
    """UTC offsets, in seconds, in which a time without a zone is read."""
    names: tuple[tuple[str, str], ...] = ()
    """(text, its meaning), such as the run's id and the project's directory."""
    pids: tuple[int, ...] = ()
    """PIDs, in the order in which the processes started."""
    drawn: Mapping[str, str] = {}
    """Digest of an id (`schema.fingerprints`) -> the line of code that drew it, and its number there."""
    hidden: Mapping[str, str] = {}
    """Digest of a name -> its meaning."""

    def starts(self, timestamp: Timestamp) -> tuple[float | None, ...]:
        """Return the time in each zone; None for a zone in which it is not within the run, at the precision of its text."""
        return tuple(
            start if start <= self.ended and start + timestamp.length > self.started else None for start in timestamp.starts
        )


class Occurrence(Frozen, frozen=True):
    """A value of the run in a text."""

    start: int
    end: int
    what: str
    form: str = ""
    """The format of the value. Two occurrences are the same thing if `what` and `form` are equal."""
    starts: tuple[float | None, ...] = ()
    """For a time: `Evidence.starts`."""
    length: float = 0.0
    """For a time: its precision in seconds."""


class TimePair(NamedTuple):
    """The same time in both runs, read in the same zone."""

    zone: int
    length: float
    """Times that are less than this apart have no order."""
    then: float
    now: float


class Explained(Ignored, frozen=True):
    """A difference that evidence explains."""

    times: tuple[TimePair, ...] = ()
    """For a time: one for each zone in which it is within both runs."""


class OneToOne:
    """Random names of two runs. A name in one run stands for exactly one name in the other run, in all files."""

    def __init__(self) -> None:
        self._then: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def match(self, then: str, now: str) -> bool:
        """Whether neither name was matched with a different name before."""
        return self._then.setdefault(then, now) == now and self._now.setdefault(now, then) == then


def of_run(start: Start, end: End, workspace: str, names: Iterable[tuple[str, str]], zones: Iterable[int] = ()) -> Evidence:
    """Collect the evidence in a record.

    `workspace`: the directory of the project during the run. `names`: (text, its meaning) that are not in the record, such as
    random names of libraries. `zones`: UTC offsets in seconds, besides 0.
    """
    drawn: dict[str, str] = {}
    for draws in end.random_ids:
        file = draws.file.removeprefix(f"{workspace}/")
        for number, digests in enumerate(draws.ids):
            for digest in digests.split("."):
                drawn.setdefault(digest, f"a random id drawn at {file}:{draws.line}, number {number}")
    own = end.machine
    directories = [(workspace, "the project's directory")]
    if own:
        directories += [(own.temporary, "the temporary directory"), (own.home, "the home directory")]
    return Evidence(
        started=_seconds(start.started),
        ended=_seconds(end.ended),
        zones=(0, *zones),
        names=((start.id, "the run's id"), (start.id.replace("-", ""), "the run's id without dashes"), *directories, *names),
        pids=own.pids if own else (),
        drawn=drawn,
        hidden={own.host: "the host's name", own.user: "the user's name"} if own else {},
    )


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def explain(then: str, now: str, left: Evidence, right: Evidence, place: str = "") -> list[Ignored]:
    """Explain all differences between two texts at `place`. Empty if any of them has no explanation.

    A time without a zone is explained only if it is within both runs when it is read in the same zone.
    """
    old, new = occurrences(then, left), occurrences(now, right)
    if [(value.what, value.form) for value in old] != [(value.what, value.form) for value in new]:
        return []
    if _texts_between(then, old) != _texts_between(now, new):
        return []
    pairs = [
        Explained(place, then[a.start : a.end], now[b.start : b.end], a.what, "evidence", _time_pairs(a, b))
        for a, b in zip(old, new, strict=True)
    ]
    found = [pair for pair in pairs if pair.then != pair.now]
    return [] if any(pair.reason == _TIME and not pair.times for pair in found) else [*found]


def _time_pairs(then: Occurrence, now: Occurrence) -> tuple[TimePair, ...]:
    length = max(then.length, now.length, _FINEST) * 0.99  # floats are not exact
    pairs = enumerate(zip(then.starts, now.starts, strict=True))
    return tuple(TimePair(zone, length, old, new) for zone, (old, new) in pairs if old is not None and new is not None)


def out_of_order(differences: Sequence[Sequence[Ignored]]) -> set[int]:
    """Return the numbers of the differences with a time that is before another time in one run, and after it in the other."""
    times = [
        (time, number)
        for number, reasons in enumerate(differences)
        for reason in reasons
        for time in (reason.times if isinstance(reason, Explained) else ())
    ]
    found: set[int] = set()
    for zone, length in {(time.zone, time.length) for time, _ in times}:
        known = [(time.then, time.now, number) for time, number in times if time.zone == zone and time.length <= length]
        found.update(_overtaken(known, length), _overtaken([(now, then, number) for then, now, number in known], length))
    return found


def _overtaken(times: list[tuple[float, float, int]], length: float) -> Iterator[int]:
    """Yield the number of each time that is after another one by its first value, and before it by its second."""
    times, passed, latest = sorted(times), 0, -math.inf
    for first, second, number in times:
        while times[passed][0] + length <= first:
            latest, passed = max(latest, times[passed][1]), passed + 1
        if latest - second >= length:
            yield number


def mask(text: str, evidence: Evidence) -> str:
    """Replace each value of the run with its meaning, so that texts that differ only in such values become equal."""
    values = occurrences(text, evidence)
    masks = [f"\0{value.what} {value.form}\0" for value in values]
    return "".join(part for pair in zip(_texts_between(text, values), [*masks, ""], strict=True) for part in pair)


def pattern(path: str, evidence: Evidence) -> str:
    """Return a pattern for the path in other runs: each value of this run is a `*` in each of its directories."""
    values = occurrences(path, evidence)
    stars = [re.sub(r"[^/]+", "*", path[value.start : value.end]) for value in values]
    texts = map(glob.escape, _texts_between(path, values))
    return "".join(part for pair in zip(texts, [*stars, ""], strict=True) for part in pair)


def occurrences(text: str, evidence: Evidence) -> list[Occurrence]:
    """Return the values of the run in a text, in order. If values overlap, the one that starts first counts, then the longest."""
    found: list[Occurrence] = []
    for value in sorted(_all(text, evidence), key=lambda value: (value.start, -value.end)):
        if not found or value.start >= found[-1].end:
            found.append(value)
    return found


def _texts_between(text: str, values: list[Occurrence]) -> list[str]:
    starts = [0, *(value.end for value in values)]
    ends = [*(value.start for value in values), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _all(text: str, evidence: Evidence) -> Iterator[Occurrence]:
    yield from _names(text, evidence)
    yield from _times(text, evidence)
    if evidence.drawn:
        yield from _ids(text, evidence)
    for pattern in _WORDS if evidence.hidden else ():
        for match in pattern.finditer(text):
            if what := evidence.hidden.get(digest_of_name(match[0])):
                yield Occurrence(*match.span(), what)
    for match in _PID.finditer(text) if evidence.pids else ():
        if int(match[0]) in evidence.pids:
            yield Occurrence(*match.span(), f"PID of process {evidence.pids.index(int(match[0]))}")


def _names(text: str, evidence: Evidence) -> Iterator[Occurrence]:
    for name, what in evidence.names:
        if len(name) >= _SHORTEST_NAME and name in text:
            for match in re.finditer(rf"(?<![0-9A-Za-z]){re.escape(name)}(?![0-9A-Za-z])", text):
                yield Occurrence(*match.span(), what)


def _times(text: str, evidence: Evidence) -> Iterator[Occurrence]:
    year = datetime.fromtimestamp(evidence.started, timezone.utc).year
    for timestamp in timestamps(text, evidence.zones, year):
        starts = evidence.starts(timestamp)
        if starts.count(None) < len(starts):
            yield Occurrence(timestamp.start, timestamp.end, _TIME, timestamp.form, starts, timestamp.length)


def _ids(text: str, evidence: Evidence) -> Iterator[Occurrence]:
    for match in _HEX.finditer(text):
        if what := _drawn(_digests_of_hex(match[0]), evidence):
            form = f"dashes {'-' in match[0]}, upper case {match[0].upper() == match[0]}"
            yield Occurrence(*match.span(), what, form)
    for match in _BASE64.finditer(text):
        if what := _drawn(_digests_of_base64(match[0]), evidence):
            yield Occurrence(*match.span(), what, "base64")


def _drawn(digests: Iterable[str], evidence: Evidence) -> str:
    return next((evidence.drawn[digest] for digest in digests if digest in evidence.drawn), "")


def _digests_of_hex(text: str) -> Iterator[str]:
    digits = text.replace("-", "").lower()
    if len(digits) == _SHORT_ID:
        yield digest_of_id(digits)
    else:
        yield digest_of_id(normal_id(digits))
        if len(digits) == 32 and digits[12] == "1":  # the record has the digest of an unchanged UUID of version 1
            yield digest_of_id(digits)


def _digests_of_base64(text: str) -> Iterator[str]:
    try:
        yield digest_of_id(normal_id(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()))
    except (ValueError, binascii.Error):
        return
