"""What two runs can be shown to have had each for itself: their times, ids, names and places. A difference in these is no other result.

A value is explained only where on both sides it is the same thing of its own run: a point in time between the start and the end
of that run, the third id that was drawn at the same line of code, the run's directory. What merely looks like a time, an id or a
name is none.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

from repro_env.model.codec import Frozen
from repro_env.model.evidence import digest_of_id, digest_of_name, normal_id
from repro_env.model.run import End, Start
from repro_env.verify.moments import Moment, moments

_HEX = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}|[0-9A-Fa-f]{8,128})(?![0-9A-Za-z])")
_BASE64 = re.compile(r"(?<![0-9A-Za-z_-])[0-9A-Za-z_-]{11,86}(?![0-9A-Za-z_=-])")
_NUMBER = re.compile(r"(?<![0-9A-Za-z.+-])[1-9]\d{3,6}(?![0-9A-Za-z]|\.\d)")
"""A process number: smaller ones, as in a namespace of their own, are too often something else."""
_WORD = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{2,63}")
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
    """Digest of an id (`model.evidence`) -> which one it is: where it was drawn, and as which there."""
    hidden: Mapping[str, str] = {}
    """Digest of a name -> what it is."""

    def holds(self, moment: Moment) -> bool:
        """Whether a point in time lies within the run, as exactly as it is written."""
        return any(at <= self.ended and at + moment.length > self.started for at in moment.earliest)


class Own(Frozen, frozen=True):
    """Something of a run's own in a text."""

    start: int
    end: int
    what: str
    form: str = ""
    """How it is written. Both are the same on both sides for the same thing."""


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


def of_run(start: Start, end: End, places: Iterable[tuple[str, str]], zones: Iterable[int]) -> Evidence:
    """What a record says. `places`: (text, what it is), what the record does not say: directories, names that libraries draw."""
    drawn: dict[str, str] = {}
    for one in end.drawn:
        for number, word in enumerate(one.ids):
            for key in word.split("."):
                drawn.setdefault(key, f"a random id drawn at {one.file}:{one.line}, number {number}")
    own = end.own
    hidden = {own.host: "the host's name", own.user: "the user's name"} if own else {}
    return Evidence(
        started=datetime.fromisoformat(start.started.replace("Z", "+00:00")).timestamp(),
        ended=datetime.fromisoformat(end.ended.replace("Z", "+00:00")).timestamp(),
        zones=tuple(dict.fromkeys((0, *zones))),
        names=((start.id, "the run's id"), (start.id.replace("-", ""), "the run's id without dashes"), *places),
        pids=own.pids if own else (),
        drawn=drawn,
        hidden=hidden,
    )


def explained(then: str, now: str, left: Evidence, right: Evidence) -> tuple[Explained, ...]:
    """The things of the runs' own in which alone two texts differ; empty where they differ in anything else."""
    one, other = own(then, left), own(now, right)
    if not one or len(one) != len(other) or _between(then, one) != _between(now, other):
        return ()
    found = []
    for mine, its in zip(one, other, strict=True):
        if (mine.what, mine.form) != (its.what, its.form):
            return ()
        values = then[mine.start : mine.end], now[its.start : its.end]
        if values[0] != values[1]:
            found.append(Explained(*values, mine.what))
    return tuple(found)


def bare(text: str, evidence: Evidence) -> str:
    """A text with what each thing of the run's own is in its place: equal for two texts that differ in nothing else."""
    made, at = "", 0
    for thing in own(text, evidence):
        made += f"{text[at : thing.start]}\0{thing.what} {thing.form}\0"
        at = thing.end
    return made + text[at:]


def own(text: str, evidence: Evidence) -> list[Own]:
    """Things of a run's own in a text, in order, none within another; of several at one place the longest."""
    found = sorted(_own(text, evidence), key=lambda thing: (thing.start, -thing.end))
    kept: list[Own] = []
    for thing in found:
        if not kept or thing.start >= kept[-1].end:
            kept.append(thing)
    return kept


def _own(text: str, evidence: Evidence) -> Iterator[Own]:
    for word, what in evidence.names:
        if len(word) >= _SHORTEST and word in text:
            for found in re.finditer(rf"(?<![0-9A-Za-z]){re.escape(word)}(?![0-9A-Za-z])", text):
                yield Own(found.start(), found.end(), what)
    year = datetime.fromtimestamp(evidence.started, timezone.utc).year
    for moment in moments(text, evidence.zones, year):
        if evidence.holds(moment):
            yield Own(moment.start, moment.end, "a time within the run", moment.form)
    if evidence.drawn:
        for pattern, read in ((_HEX, _of_hex), (_BASE64, _of_base64)):
            for found in pattern.finditer(text):
                which = next((evidence.drawn[key] for key in read(found[0]) if key in evidence.drawn), "")
                if which:
                    form = (
                        "base64" if pattern is _BASE64 else f"dashes {'-' in found[0]}, upper case {found[0].upper() == found[0]}"
                    )
                    yield Own(found.start(), found.end(), which, form)
    for found in _WORD.finditer(text) if evidence.hidden else ():
        known = evidence.hidden.get(digest_of_name(found[0]))
        if known:
            yield Own(found.start(), found.end(), known)
    for found in _NUMBER.finditer(text) if evidence.pids else ():
        if int(found[0]) in evidence.pids:
            yield Own(found.start(), found.end(), f"process number of process {evidence.pids.index(int(found[0]))}")


def _of_hex(text: str) -> Iterator[str]:
    digits = text.replace("-", "").lower()
    if len(digits) == _SHORT:
        yield digest_of_id(digits)
    else:
        yield digest_of_id(normal_id(digits))
        if len(digits) == 32 and digits[12] == "1":  # a UUID of version 1 is noted as it is
            yield digest_of_id(digits)


def _of_base64(text: str) -> Iterator[str]:
    try:
        yield digest_of_id(normal_id(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()))
    except (ValueError, binascii.Error):
        return


def _between(text: str, things: Sequence[Own]) -> list[str]:
    made, at = [], 0
    for thing in things:
        made.append(text[at : thing.start])
        at = thing.end
    return [*made, text[at:]]
