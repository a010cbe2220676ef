"""Two outputs of one name: the same, and at which level? Pure: bytes and answers come in, a `File` comes out.

Bytes first. Where they differ, what the format tells: tensors, JSON, tables, event files, lines of text. A difference
counts unless its own form says that it is a time, a host, a process or the like (`masks`), and those are told too.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from repro_env.model import redact
from repro_env.model.codec import Frozen
from repro_env.verify import events, masks

Kind = Literal["result", "log", "volatile"]
"""What a run is for; what it says meanwhile; what is another each time."""
Sameness = Literal["bitwise", "numeric", "statistical", "different"]
"""Every bit of every result; close, within the bounds below; alike over many seeds, which one run cannot show; none of it."""
HEIGHT: dict[Sameness, int] = {"bitwise": 0, "numeric": 1, "statistical": 2, "different": 3}
CLOSE = 1e-3
"""Relative distance of two numbers in text that may still be rounding: in measured runs that differed by nothing but the
number of threads, losses moved by a few units in the last place."""
NEAR = 1e-2
"""Relative L2 distance of tensors that may still be rounding. Measured on a small network: 0.0007 to 0.0017 between thread
counts or instruction sets, 0.25 between two orders of the data: the two are far apart."""
LARGEST = 64 << 20
"""Bytes of a file that is compared as text."""
_SHOWN = 12
"""Lines of differences that are kept of one file."""
_NAMED = 5
"""Things that are named in one sentence."""
_LINE = 300

_VOLATILE = (
    "*.pid",
    "*.pyc",
    "*.prof",
    "*.nsys-rep",
    "*.ncu-rep",
    "*.trace.json",
    "*.trace.json.gz",
    "emissions.csv",
    "mlflow.db",
    ".DS_Store",
    "core.[0-9]*",
    "wandb-metadata.json",
    "*.wandb",
    "debug-internal.log",
    "debug-cli.*.log",
)
_VOLATILE_PATHS = (
    re.compile(r"(?:.*/)?wandb/(?:[^/]*|.*/logs/.*|.*/tmp/.*)"),
    re.compile(r"(?:.*/)?mlruns/(?:.*/tags/.*|.*/meta\.yaml)"),
    # The manifest of a checkpoint of ours names the run and the time; what it vouches for is compared.
    re.compile(r"(?:.*/)?\d{6}-step-\d+/(?:manifest\.json|SHA256SUMS)"),
)
_LOGS = ("*.log", "*.out", "*.err", "log.txt", "*.log.txt", "*_log.txt", "stdout*", "stderr*", "events.out.tfevents.*")
_LOG_PATHS = (re.compile(r"(?:.*/)?wandb/.*/files/(?:output\.log|config\.yaml)"),)
_TENSORS = (".safetensors", ".pt", ".pth", ".ckpt", ".npz", ".npy", ".pkl", ".pickle")
_TIMED = (".srt", ".vtt", ".ass", ".lrc", ".rttm", ".ctm", ".textgrid")
"""Times are what such a file is about."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z_.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)(?![0-9A-Za-z_])")
_SVG = re.compile(r"(?<![0-9A-Za-z])[a-z][0-9a-f]{10}(?![0-9A-Za-z])")
"""matplotlib names clip paths and markers by a random salt."""
_MOMENT = re.compile(r"\A\d{10,13}(?= )")
"""MLflow's metrics: a line is a moment, a value, a step."""


class TensorDifference(Frozen, frozen=True, kw_only=True):
    """What differs in one tensor (`inside/compare.py`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    now_dtype: str = ""
    """With `now_shape`: the two cannot be compared element by element."""
    now_shape: tuple[int, ...] = ()
    count: int = 0
    differing: int = 0
    """Elements whose bits differ."""
    at: tuple[int, ...] = ()
    """Index of the first of them."""
    ulp: int = -1
    """The largest distance in units in the last place, of floats; else -1."""
    absolute: float = 0.0
    """The largest."""
    diff2: float = 0.0
    """Sum of the squares of the differences; `left2` of the first side's elements."""
    left2: float = 0.0
    specials: int = 0
    """Elements of which one alone is infinite or no number."""

    @property
    def relative(self) -> float:
        """L2 norm of the difference over that of the first side."""
        if self.now_dtype or self.specials:
            return math.inf
        return math.sqrt(self.diff2 / self.left2) if self.left2 > 0 else math.inf if self.diff2 > 0 else 0.0


class Answer(Frozen, frozen=True, kw_only=True):
    """What `inside/compare.py` says of one pair; see `compare` there. It ran where the outputs could be hostile: bounded, and no more trusted."""

    problem: str = ""
    tensors: int = 0
    different: tuple[TensorDifference, ...] = ()
    unequal: int = 0
    odd: int = 0
    far: int = 0
    diff2: float = 0.0
    left2: float = 0.0
    missing: tuple[str, ...] = ()
    gone: int = 0
    new: tuple[str, ...] = ()
    come: int = 0
    values: int = 0
    others: tuple[tuple[str, str | None, str | None], ...] = ()
    other: int = 0
    renamed: tuple[tuple[str, str], ...] = ()


class File(Frozen, frozen=True, kw_only=True):
    """One output, compared."""

    path: str
    """In the run that is verified; empty for one that only the new run made."""
    now: str
    """In the new run; empty for one that is missing."""
    kind: Kind
    level: Sameness | None
    """None: not compared."""
    by: Literal["bytes", "tensors", "json", "table", "events", "text", "link", "nothing"] = "bytes"
    why: str = ""
    """In a sentence: what differs, or why it was not compared."""
    apart: tuple[str, ...] = ()
    """What differs and says nothing of results."""
    tensors: tuple[TensorDifference, ...] = ()
    shown: tuple[str, ...] = ()
    """Differences as lines: `- then`, `+ now`."""


def kind_of(path: str, results: Sequence[str] = (), ignored: Sequence[str] = ()) -> Kind:
    """The user's globs first; then what is known of names; else a result."""
    if matches(path, ignored):
        return "volatile"
    if matches(path, results):
        return "result"
    name = path.rpartition("/")[2]
    if any(pattern.fullmatch(path) for pattern in _LOG_PATHS):
        return "log"
    if any(fnmatchcase(name, glob) for glob in _VOLATILE) or any(pattern.fullmatch(path) for pattern in _VOLATILE_PATHS):
        return "volatile"
    return "log" if any(fnmatchcase(name, glob) for glob in _LOGS) else "result"


def matches(path: str, globs: Sequence[str]) -> bool:
    """A glob means a whole path, a name, or all in a folder."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path, glob) or fnmatchcase(name, glob) or path.startswith(glob.rstrip("/") + "/") for glob in globs)


def holds_tensors(path: str, start: bytes) -> bool:
    """Whether `inside/compare.py` can look into a file of this name that begins with these bytes."""
    return path.endswith(_TENSORS) or (path.endswith(".bin") and start[:4] == b"PK\x03\x04")


def equal(path: str, now: str, kind: Kind) -> File:
    """Two files whose sha256 is the same."""
    return File(path=path, now=now, kind=kind, level="bitwise", apart=renamed(path, now))


def renamed(path: str, now: str) -> tuple[str, ...]:
    return (f"its path is {now} now",) if path and now and path != now else ()


def of_tensors(path: str, now: str, kind: Kind, said: Answer, *, masked: bool = True) -> File:
    """Of files whose bytes differ. `masked`: values that are times, paths with times and the like do not count."""
    if said.problem:
        why = f"its bytes differ, and it cannot be looked into: {said.problem}"
        return File(path=path, now=now, kind=kind, level="different", why=why, apart=renamed(path, now))
    level: Sameness = "bitwise"
    parts = []
    if said.unequal or said.gone or said.come:
        level = _distance(said)
        parts.append(_tensors(said))
    elif said.tensors:
        parts.append(f"all {said.tensors} tensors bitwise")
    apart = [*renamed(path, now), *(f"{then} is named {there} now" for then, there in said.renamed)]
    shown = []
    named: list[str] = []
    for name, then, there in said.others:
        how = _value(name, then, there, masked=masked)
        if how is None:
            apart.append(f"{name}: {_cut(then)} -> {_cut(there)}")
            continue
        level = _worse(level, how)
        named.append(name)
        shown += [
            *([f"- {name} = {_cut(then)}"] if then is not None else []),
            *([f"+ {name} = {_cut(there)}"] if there is not None else []),
        ]
    if said.other > len(said.others):
        level = "different"
    if named or said.other > len(said.others):
        parts.append(
            f"{_some(named, len(named) + said.other - len(said.others))} differs"
            if len(named) == 1 == said.other
            else f"{_some(named, len(named) + said.other - len(said.others))} differ"
        )
    if not said.unequal and not named and not apart:
        apart.append("only how it was packed differs")
    return File(
        path=path,
        now=now,
        kind=kind,
        level=level,
        by="tensors",
        why="; ".join(parts),
        apart=tuple(apart),
        tensors=said.different,
        shown=tuple(shown[:_SHOWN]),
    )


def _distance(said: Answer) -> Sameness:
    """Of the tensors that differ, together and each: one large tensor must not hide the others, nor noise in a small one decide."""
    if said.gone or said.come or said.odd:
        return "different"
    pooled = math.sqrt(said.diff2 / said.left2) if said.left2 > 0 else math.inf
    return "numeric" if pooled <= NEAR and 2 * said.far <= said.unequal else "different"


def _tensors(said: Answer) -> str:
    parts = []
    if said.unequal:
        worst = max(said.different, key=lambda one: (one.relative, one.absolute), default=None)
        about = f", most {describe(worst)}" if worst is not None and said.unequal > 1 else f": {describe(worst)}" if worst else ""
        count = f"{said.unequal} of {said.tensors} tensors" if said.tensors > 1 else "its one tensor"
        parts.append(f"{count} differ{'s' * (said.unequal == 1)}{about}")
    if said.gone:
        parts.append(f"{_some(said.missing, said.gone)} missing")
    if said.come:
        parts.append(f"{_some(said.new, said.come)} new")
    return "; ".join(parts)


def describe(one: TensorDifference) -> str:
    """One tensor's difference in a few words."""
    if one.now_dtype:
        return f"{one.name} {one.dtype}{list(one.shape)} -> {one.now_dtype}{list(one.now_shape)}"
    place = f" from {list(one.at)}" if one.at else ""
    how = f"{one.differing:,} of {one.count:,} elements{place}, up to {one.absolute:.3g}"
    if one.ulp >= 0:
        how += f" and {one.ulp:,} ULP"
    if one.specials:
        how += f", {one.specials:,} of them no number on one side alone"
    elif one.ulp >= 0 and math.isfinite(one.relative):
        how += f", relative L2 {one.relative:.2g}"
    return f"{one.name} ({how})" if one.name else how


def _value(name: str, then: str | None, now: str | None, *, masked: bool) -> Sameness | None:
    """A value of a checkpoint that differs: its level, or None where it says nothing of results."""
    if masked and (masks.volatile(name.rpartition(".")[2]) or (then is not None and now is not None and _alike(then, now))):
        return None
    if then is not None and now is not None:
        return _numbers(then, now)
    return "different"


def _alike(then: str, now: str) -> bool:
    one, other = masks.text(then), masks.text(now)
    # Only a path may have a moment as a bare number in it: any other number may be a seed, or a count.
    return one == other or ("/" in one and "/" in other and masks.name(one) == masks.name(other))


def _numbers(then: str, now: str) -> Sameness:
    """Two pieces of text that differ: numeric where only numbers with a fraction do, and those are close."""
    one, other = _NUMBER.findall(then), _NUMBER.findall(now)
    if len(one) != len(other) or not one or _NUMBER.sub("#", then) != _NUMBER.sub("#", now):
        return "different"
    return "numeric" if all(_close(*pair) for pair in zip(one, other, strict=True)) else "different"


def _close(then: str, now: str) -> bool:
    if then == now:
        return True
    if not any(mark in then for mark in ".eE") or not any(mark in now for mark in ".eE"):
        return False  # whole numbers count things
    try:
        one, other = float(then), float(now)
    except ValueError:
        return False
    return close(one, other)


def close(one: float, other: float) -> bool:
    """Whether two numbers may differ by rounding alone."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return True
    return math.isfinite(one) and math.isfinite(other) and abs(one - other) <= CLOSE * max(abs(one), abs(other))


def of_bytes(path: str, now: str, kind: Kind, left: bytes, right: bytes, *, masked: bool = True) -> File:
    """Of files whose bytes differ and that hold no tensors: by the format that their name and bytes show."""
    name = path.rpartition("/")[2].lower()
    if name.startswith("events.out.tfevents."):
        found = _events(path, now, kind, left, right)
        if found is not None:
            return found
    masked = masked and not name.endswith(_TIMED)
    coding = "latin-1" if name.endswith(".pdf") else "utf-8"
    try:
        one, other = left.decode(coding), right.decode(coding)
    except UnicodeDecodeError:
        sizes = f"{len(left):,} bytes" if len(left) == len(right) else f"{len(left):,} bytes, now {len(right):,}"
        return File(path=path, now=now, kind=kind, level="different", why=f"its bytes differ ({sizes})", apart=renamed(path, now))
    found = None
    if name.endswith((".json", ".jsonl", ".ndjson")):
        found = _json(path, now, kind, one, other, masked=masked)
    elif name.endswith((".csv", ".tsv")):
        found = _table(path, now, kind, one, other, masked=masked)
    return found or _text(path, now, kind, one, other, masked=masked)


def _events(path: str, now: str, kind: Kind, left: bytes, right: bytes) -> File | None:
    one, other = events.timeless(left), events.timeless(right)
    if one is None or other is None:
        return None
    # The first record names the version of the format, and the writer.
    number = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    if one == other:
        return File(
            path=path,
            now=now,
            kind=kind,
            level="bitwise",
            by="events",
            apart=(*renamed(path, now), f"when {len(one):,} events were written, and scalars that are times"),
        )
    why = f"events differ from number {number} of {len(one):,}" + (f" (now {len(other):,})" if len(one) != len(other) else "")
    return File(path=path, now=now, kind=kind, level="different", by="events", why=why, apart=renamed(path, now))


def _json(path: str, now: str, kind: Kind, left: str, right: str, *, masked: bool) -> File | None:
    """None for what is no JSON."""
    try:
        one, other = (_parsed(text, lines=not path.lower().endswith(".json")) for text in (left, right))
        found = list(_leaves("", one, other))
    except (ValueError, RecursionError):
        return None
    level: Sameness = "bitwise"
    apart, shown, named = list(renamed(path, now)), [], []
    for name, then, there in found:
        how = _value(name, then, there, masked=masked)
        if how is None:
            apart.append(f"{name}: {_cut(then)} -> {_cut(there)}")
            continue
        level = _worse(level, how)
        named.append(name)
        shown += [
            *([f"- {name}: {_cut(then)}"] if then is not None else []),
            *([f"+ {name}: {_cut(there)}"] if there is not None else []),
        ]
    if not found:
        apart.append("only spaces or the order of keys differ")
    return File(
        path=path,
        now=now,
        kind=kind,
        level=level,
        by="json",
        why=_those(named, shown),
        apart=tuple(apart),
        shown=tuple(shown[:_SHOWN]),
    )


def _parsed(text: str, *, lines: bool) -> object:
    if lines:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return json.loads(text)


def _leaves(name: str, one: Any, other: Any) -> Iterator[tuple[str, str | None, str | None]]:
    """(dotted name, then, now) of what differs; None for what is not there."""
    below = name + "." if name else ""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in other:
                yield below + key, json.dumps(one[key]), None
            elif key not in one:
                yield below + key, None, json.dumps(other[key])
            else:
                yield from _leaves(below + key, one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (then, now) in enumerate(zip(one, other, strict=True)):
            yield from _leaves(f"{below}{number}", then, now)
    elif type(one) is not type(other) or one != other:
        then, now = json.dumps(one), json.dumps(other)
        if then != now:
            yield name or "(all)", then, now


def _table(path: str, now: str, kind: Kind, left: str, right: str, *, masked: bool) -> File | None:
    """None for what is no table with one header line and as many rows and columns on both sides."""
    mark = "\t" if path.lower().endswith(".tsv") else ","
    try:
        one, other = (list(csv.reader(text.splitlines(), delimiter=mark)) for text in (left, right))
    except csv.Error:
        return None
    if len(one) != len(other) or len(one) < 2 or one[0] != other[0] or any(len(row) != len(one[0]) for row in (*one, *other)):
        return None
    level: Sameness = "bitwise"
    apart: dict[str, int] = {}
    named: dict[str, int] = {}
    shown = []
    for number, (then, there) in enumerate(zip(one[1:], other[1:], strict=True), 2):
        for column, before, after in zip(one[0], then, there, strict=True):
            if before == after:
                continue
            how = _value(column, before, after, masked=masked)
            if how is None:
                apart[column] = apart.get(column, 0) + 1
                continue
            level = _worse(level, how)
            named[column] = named.get(column, 0) + 1
            shown += [f"- line {number}, {column}: {_cut(before)}", f"+ line {number}, {column}: {_cut(after)}"]
    return File(
        path=path,
        now=now,
        kind=kind,
        level=level,
        by="table",
        why=_those([f"{column} in {count:,} of {len(one) - 1:,} lines" for column, count in named.items()], shown),
        apart=(*renamed(path, now), *(f"{column} in {count:,} of {len(one) - 1:,} lines" for column, count in apart.items())),
        shown=tuple(shown[:_SHOWN]),
    )


def _text(path: str, now: str, kind: Kind, left: str, right: str, *, masked: bool) -> File:
    """Line by line."""
    one, other = left.splitlines(), right.splitlines()
    mask = _mask_of(path, kind) if masked else str
    then, there = [mask(line) for line in one], [mask(line) for line in other]
    level: Sameness = "bitwise"
    count = 0
    if len(then) == len(there):
        for a, b in zip(then, there, strict=True):
            if a != b:
                level = _worse(level, _numbers(a, b))
                count += 1
    else:
        level = "different"
        count = sum(a != b for a, b in zip(then, there, strict=False)) + abs(len(then) - len(there))
    apart = list(renamed(path, now))
    if level == "bitwise":
        lines = [f"{_cut(a)} -> {_cut(b)}" for a, b in zip(one, other, strict=True) if a != b]
        apart += (
            [f"{len(lines):,} lines by times and the like, as {lines[0]}" if len(lines) > 1 else lines[0]]
            if lines
            else ["only line ends differ"]
        )
    shown: list[str] = []
    why = ""
    if count:  # as masked: what differs is then what counts
        lines = list(difflib.unified_diff(then[:5000], there[:5000], lineterm="", n=0))[2:] if count < 2000 else []
        shown = [f"{line[0]} {_cut(line[1:])}" for line in lines if line[:1] in ("-", "+")]
        where = next((n for n, (a, b) in enumerate(zip(then, there, strict=False), 1) if a != b), min(len(then), len(there)) + 1)
        why = f"{count:,} of {len(then):,} lines differ{'s' * (count == 1)}, from line {where}"
        if len(then) != len(there):
            why += f"; there are {len(there):,} now"
    return File(path=path, now=now, kind=kind, level=level, by="text", why=why, apart=tuple(apart), shown=tuple(shown[:_SHOWN]))


def _mask_of(path: str, kind: Kind) -> Any:
    lower = path.lower()
    if lower.endswith(".svg"):
        return lambda line: masks.text(_SVG.sub("<id>", line))
    if re.fullmatch(r"(?:.*/)?mlruns/.*/metrics/.*", path):
        return lambda line: masks.text(_MOMENT.sub("<time>", line))
    return masks.log if kind == "log" else masks.text


def of_links(left: Sequence[str], right: Sequence[str], results: Sequence[str], ignored: Sequence[str]) -> tuple[File, ...]:
    """What lies among outputs and is no plain file, as the record has it: `<path> -> <target>`, `<path> (why)`."""
    then, now = dict(_other(line) for line in left), dict(_other(line) for line in right)
    found = []
    for path in sorted(then.keys() | now.keys()):
        kind = kind_of(path, results, ignored)
        masked = not matches(path, results)
        one, other = then.get(path, ""), now.get(path, "")
        if not path:  # a sentence about all of them
            found.append(
                File(path=one or other, now=other, kind="result", level=None, by="nothing", why="the outputs are not all there")
            )
        elif one.startswith("(") or other.startswith("("):
            found.append(File(path=path, now=path, kind=kind, level=None, by="nothing", why=f"it is no file {other or one}"))
        elif one == other or (one and other and masked and masks.name(one) == masks.name(other)):
            apart = () if one == other else (f"it leads to {other}, not {one}",)
            found.append(File(path=path, now=path, kind=kind, level="bitwise", by="link", apart=apart))
        else:
            why = (
                f"the link leads to {other}, not {one}"
                if one and other
                else "the link is new"
                if other
                else "the link is missing"
            )
            found.append(
                File(path=path if one else "", now=path if other else "", kind=kind, level="different", by="link", why=why)
            )
    return tuple(found)


def _other(line: str) -> tuple[str, str]:
    path, arrow, target = line.partition(" -> ")
    if arrow:
        return path, target
    path, _, why = line.rpartition(" (")
    return path, f"({why}"


def _worse(one: Sameness, other: Sameness) -> Sameness:
    return max(one, other, key=HEIGHT.__getitem__)


def _some(names: Sequence[str], count: int) -> str:
    shown = ", ".join(names[:_NAMED])
    more = count - min(len(names), _NAMED)
    return f"{shown} and {more:,} more" if more > 0 and shown else shown or f"{count:,}"


def _those(named: Sequence[str], shown: Sequence[str]) -> str:
    if not named:
        return ""
    if len(named) == 1 and len(shown) == 2:
        return f"{named[0]}: {shown[0][2:].rpartition(': ')[2]} -> {shown[1][2:].rpartition(': ')[2]}"
    return f"{_some(named, len(named))} differ{'s' * (len(named) == 1)}"


def _cut(text: str | None) -> str:
    text = redact.line(text or "")
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"


def answers(data: bytes, count: int) -> tuple[Answer, ...]:
    """What `inside/compare.py` wrote: as many answers as were asked for; all of them problems where it is not what it should be."""
    try:
        found = msgspec.json.decode(data, type=tuple[Answer, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return (Answer(problem=f"the comparison gave no answer ({type(error).__name__})"),) * count
    if len(found) != count:
        return (Answer(problem="the comparison gave other answers than were asked for"),) * count
    return found
