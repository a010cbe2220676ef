"""Evidence: values that belong to one run and not to its result, such as its times, random ids, host name and directory.

Evidence explains a difference only if both values are the same thing, each of its own run: a time between the start and the end
of that run, the third id drawn at the same line of code, the run's directory. The shape of a value alone explains nothing.
"""

from __future__ import annotations

import base64
import binascii
import glob
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

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

    def contains(self, timestamp: Timestamp) -> bool:
        """Whether a time is within the run, at the precision of its text."""
        return any(start <= self.ended and start + timestamp.length > self.started for start in timestamp.starts)


class Occurrence(Frozen, frozen=True):
    """A value of the run in a text."""

    start: int
    end: int
    what: str
    form: str = ""
    """The format of the value. Two occurrences are the same thing if `what` and `form` are equal."""


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
    for draws in end.drawn:
        file = draws.file.removeprefix(f"{workspace}/")
        for number, digests in enumerate(draws.ids):
            for digest in digests.split("."):
                drawn.setdefault(digest, f"a random id drawn at {file}:{draws.line}, number {number}")
    own = end.own
    directories = [(workspace, "the project's directory")]
    if own:
        directories += [(own.temporary, "the temporary directory"), (own.home, "the home directory")]
    return Evidence(
        started=_seconds(start.started),
        ended=_seconds(end.ended),
        zones=tuple(dict.fromkeys((0, *zones))),
        names=((start.id, "the run's id"), (start.id.replace("-", ""), "the run's id without dashes"), *directories, *names),
        pids=own.pids if own else (),
        drawn=drawn,
        hidden={own.host: "the host's name", own.user: "the user's name"} if own else {},
    )


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def explain(then: str, now: str, left: Evidence, right: Evidence, place: str = "") -> list[Ignored]:
    """Explain all differences between two texts at `place`. Empty if any of them has no explanation."""
    old, new = occurrences(then, left), occurrences(now, right)
    if [(value.what, value.form) for value in old] != [(value.what, value.form) for value in new]:
        return []
    if _texts_between(then, old) != _texts_between(now, new):
        return []
    pairs = ((then[a.start : a.end], now[b.start : b.end], a.what) for a, b in zip(old, new, strict=True))
    return [Ignored(place, *pair, "evidence") for pair in pairs if pair[0] != pair[1]]


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
        if evidence.contains(timestamp):
            yield Occurrence(timestamp.start, timestamp.end, "a time within the run", timestamp.form)


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
