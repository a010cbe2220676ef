"""What two runs can be shown to have had each for itself: their times, ids, names and places. A difference in these is no other result.

A value is explained only where on both sides it is the same thing of its own run: a point in time between the start and the end
of that run, the third id that was drawn at the same line of code, the run's directory. What merely looks like a time, an id or a
name is none.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from repro_env.model.codec import Frozen
from repro_env.verify.moments import Moment, dates, moments

_HEX = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}|[0-9A-Fa-f]{8,128})(?![0-9A-Za-z])")
_BASE64 = re.compile(r"(?<![0-9A-Za-z_-])[0-9A-Za-z_-]{11,86}(?![0-9A-Za-z_=-])")
_NUMBER = re.compile(r"(?<![0-9A-Za-z.+-])[1-9]\d{3,6}(?![0-9A-Za-z]|\.\d)")
"""A process number: smaller ones, as in a namespace of their own, are too often something else."""
_SHORTEST = 3
"""Characters of a name that is looked for in text."""
_SHORT = 8
"""Hexadecimal digits of an id that are often used alone (`uuid4().hex[:8]`)."""


class Evidence(Frozen, frozen=True, kw_only=True):
    """What one run had for itself."""

    started: float = 0.0
    ended: float = 0.0
    """Seconds since 1970, as recorded."""
    zones: tuple[int, ...] = (0,)
    """Seconds east of Greenwich of a time that is written without a zone."""
    names: tuple[tuple[str, str], ...] = ()
    """(text, what it is): `run id`, `host name` ..."""
    pids: tuple[int, ...] = ()
    """Process numbers, in the order in which the processes started."""
    drawn: Mapping[str, str] = {}
    """Digest of an id (`digest`) -> which one it is: where it was drawn, and as which there."""

    def holds(self, moment: Moment) -> bool:
        """Whether a point in time lies within the run, as exactly as it is written."""
        return any(at <= self.ended and at + moment.length > self.started for at in moment.earliest)


class Own(Frozen, frozen=True):
    """Something of a run's own in a text."""

    start: int
    end: int
    what: str
    """The same on both sides for the same thing."""


class Explained(Frozen, frozen=True):
    then: str
    now: str
    reason: str


class Pairing:
    """Random names of one side, and which of the other's each of them is, over all files of two runs."""

    def __init__(self) -> None:
        self._there: dict[str, str] = {}
        self._here: dict[str, str] = {}

    def same(self, then: str, now: str) -> bool:
        """Whether nothing that was said before gives one of them to another."""
        return self._there.setdefault(then, now) == now and self._here.setdefault(now, then) == then


def normal(value: bytes) -> str:
    """The one form of an id that was drawn: hexadecimal digits, those of 16 bytes as `uuid4` writes them."""
    if len(value) == 16:
        made = bytearray(value)
        made[6] = made[6] & 0x0F | 0x40
        made[8] = made[8] & 0x3F | 0x80
        value = bytes(made)
    return value.hex()


def digest(text: str) -> str:
    """Of an id in its normal form, or of its first digits: what the hooks note (`inside/seeds/_repro_env_entropy.py`)."""
    return hashlib.sha256(b"repro-env id\0" + text.encode()).hexdigest()[:16]


def explained(then: str, now: str, left: Evidence, right: Evidence, *, name: bool = False) -> tuple[Explained, ...]:
    """The things of the runs' own in which alone two texts differ; empty where they differ in anything else.

    `name`: of a file, where a date alone is a point in time too.
    """
    one, other = own(then, left, name=name), own(now, right, name=name)
    if not one or len(one) != len(other) or _between(then, one) != _between(now, other):
        return ()
    found = []
    for mine, its in zip(one, other, strict=True):
        if mine.what != its.what:
            return ()
        values = then[mine.start : mine.end], now[its.start : its.end]
        if values[0] != values[1]:
            found.append(Explained(*values, mine.what))
    return tuple(found)


def bare(text: str, evidence: Evidence, *, name: bool = False) -> str:
    """A text with what each thing of the run's own is in its place: equal for two texts that differ in nothing else."""
    made, at = "", 0
    for thing in own(text, evidence, name=name):
        made += f"{text[at : thing.start]}\0{thing.what}\0"
        at = thing.end
    return made + text[at:]


def own(text: str, evidence: Evidence, *, name: bool = False) -> list[Own]:
    """Things of a run's own in a text, in order, none within another; of several at one place the longest."""
    found = sorted(_own(text, evidence, name=name), key=lambda thing: (thing.start, -thing.end))
    kept: list[Own] = []
    for thing in found:
        if not kept or thing.start >= kept[-1].end:
            kept.append(thing)
    return kept


def _own(text: str, evidence: Evidence, *, name: bool) -> Iterator[Own]:
    for word, what in evidence.names:
        if len(word) >= _SHORTEST and word in text:
            for found in re.finditer(rf"(?<![0-9A-Za-z]){re.escape(word)}(?![0-9A-Za-z])", text):
                yield Own(found.start(), found.end(), what)
    year = datetime.fromtimestamp(evidence.started, timezone.utc).year
    found_moments = [*moments(text, evidence.zones, year), *(dates(text, evidence.zones) if name else ())]
    for moment in found_moments:
        if evidence.holds(moment):
            yield Own(moment.start, moment.end, "a time within the run")
    if evidence.drawn:
        for pattern, read in ((_HEX, _of_hex), (_BASE64, _of_base64)):
            for found in pattern.finditer(text):
                which = next((evidence.drawn[key] for key in read(found[0]) if key in evidence.drawn), "")
                if which:
                    yield Own(found.start(), found.end(), which)
    for found in _NUMBER.finditer(text) if evidence.pids else ():
        if int(found[0]) in evidence.pids:
            yield Own(found.start(), found.end(), f"process number of process {evidence.pids.index(int(found[0]))}")


def _of_hex(text: str) -> Iterator[str]:
    digits = text.replace("-", "").lower()
    if len(digits) == _SHORT:
        yield digest(digits)
    elif len(digits) % 2 == 0:
        yield digest(normal(bytes.fromhex(digits)))


def _of_base64(text: str) -> Iterator[str]:
    try:
        yield digest(normal(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
    except (ValueError, binascii.Error):
        return


def _between(text: str, things: Sequence[Own]) -> list[str]:
    made, at = [], 0
    for thing in things:
        made.append(text[at : thing.start])
        at = thing.end
    return [*made, text[at:]]
