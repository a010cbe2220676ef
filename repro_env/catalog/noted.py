"""What the hooks inside a run noted (`inside/seeds`): lines of JSON, one fact each, from all its processes.

The file is the script's to write as well: nothing in it is trusted, and what is not understood is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.io.files import open_regular
from repro_env.model import redact
from repro_env.model.run import Count, Drawn, Fact, Rank, Seeded

_MOST = 4 << 20
"""Bytes of notes that are read."""
_VALUES = 16
"""Different seeds of one call that are kept."""
_FAILURES = 32
"""Facts on failures that are kept, of all processes."""
_IDS = 10_000
"""Ids that are kept, of all processes."""
_PIDS = 1000
_ID = re.compile(r"[0-9a-f]{16}(?:\.[0-9a-f]{16})?")
_LONGEST = 4096
"""Characters of a path: PATH_MAX of Linux."""
OTHERS = "and others"
"""Stands for further values, also where one process leaves them out by itself."""


class Resumed(msgspec.Struct, frozen=True):
    """A checkpoint that the run went on from, as `repro_env.checkpoint` tells it."""

    run: str
    """Id of the run that wrote it; empty where it was made outside of one."""
    path: str
    sha256: str
    """Of the checkpoint's manifest, bare hexadecimal."""
    step: int


class Failure(msgspec.Struct, frozen=True):
    """What a process that failed missed, as its exceptions say."""

    kind: Literal["path", "read-only", "module", "program", "host"]
    what: str
    """An absolute path, normalised, or a name; no control characters. Empty for `host`."""


class Noted(msgspec.Struct, frozen=True):
    """Each fact once, in the order of its first note, unless said otherwise."""

    holes: tuple[str, ...] = ()
    """`<library> <what> at <file>:<line>`; `seeds: <problem>` where seeding itself failed."""
    seeded: tuple[Seeded, ...] = ()
    entropy: tuple[Count, ...] = ()
    """Summed over processes."""
    drawn: tuple[Drawn, ...] = ()
    drawn_more: bool = False
    pids: tuple[int, ...] = ()
    """As of `model.run.Own`."""
    operations: tuple[Count, ...] = ()
    """Summed over processes."""
    effective: tuple[Fact, ...] = ()
    """Sorted by name. Values that differ between ranks are all told, as `a (rank 0), b (rank 1)`."""
    world: tuple[Rank, ...] = ()
    """Sorted by rank."""
    resumed: tuple[Resumed, ...] = ()
    failures: tuple[Failure, ...] = ()
    """The first ones."""


class _Line(msgspec.Struct):
    """One note; which fields are there says what it is."""

    problem: str = ""
    library: str = ""
    what: str = ""
    value: str = ""
    file: str = ""
    line: int = 0
    seeded: str = ""
    """The library; with `what`, `value`, `file`, `line`."""
    entropy: str = ""
    ids: str = ""
    """With `entropy`, `pid` and `worker`: digests of what was drawn, a word each."""
    more: bool = False
    """With `entropy`: more ids were drawn than noted."""
    pid: int = 0
    """Without `entropy`: a process that started."""
    worker: str = ""
    operation: str = ""
    count: int = 0
    effective: dict[str, str] = {}
    script: bool = True
    """With `effective`: told by the user's own program, and not by an installed one that may only have started it."""
    world: dict[str, int | str] = {}
    rank: str = ""
    resumed: dict[str, int | str] = {}
    failure: Literal["path", "read-only", "module", "program", "host", ""] = ""
    """With `what`."""


def read(path: Path) -> Noted:
    """What is in a file of notes; nothing where there is none."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(_MOST)
    except OSError:
        return Noted()
    return parse(data.splitlines())


def parse(lines: Iterable[bytes]) -> Noted:
    """Notes -> facts."""
    holes: dict[str, None] = {}
    seeded: dict[Seeded, None] = {}
    entropy: dict[tuple[str, str, int], int] = {}
    draws: list[_Line] = []
    pids: list[int] = []
    operations: dict[tuple[str, str, int], int] = {}
    told: list[_Line] = []
    world: dict[int, Rank] = {}
    resumed: dict[Resumed, None] = {}
    failures: dict[Failure, None] = {}
    for text in lines:
        try:
            one = msgspec.json.decode(text, type=_Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        where = (redact.line(one.file), max(one.line, 0))
        if one.seeded:
            said = Seeded(
                library=redact.line(one.seeded),
                what=redact.line(one.what),
                value=redact.line(one.value),
                file=where[0],
                line=where[1],
            )
            seeded[said] = None
        elif one.entropy:
            _add(entropy, (redact.line(one.entropy), *where), one.count)
            draws.append(one)
        elif one.pid:
            pids.append(one.pid)
        elif one.operation:
            _add(operations, (redact.line(one.operation), *where), one.count)
        elif one.effective:
            told.append(one)
        elif one.world:
            rank = _rank(one.world)
            if rank is not None:
                world[rank.rank] = rank
        elif one.resumed:
            came = _resumed(one.resumed)
            if came is not None:
                resumed[came] = None
        elif one.failure:
            if len(failures) < _FAILURES and len(one.what) < _LONGEST and one.what.isprintable():
                failures[Failure(one.failure, one.what)] = None
        elif one.problem:
            holes[redact.line(f"seeds: {one.problem}")] = None
        elif one.library:
            holes[redact.line(f"{one.library} {one.what} at {one.file}:{one.line}")] = None
    drawn, more = _drawn(draws, pids)
    effective = _effective([one for one in told if one.script] or told)
    return Noted(
        holes=tuple(holes),
        seeded=_few(seeded),
        entropy=tuple(count for count in _counts(entropy) if count.count),
        drawn=drawn,
        drawn_more=more,
        pids=tuple(dict.fromkeys(pid for pid in pids if 0 < pid < 1 << 32))[:_PIDS],
        operations=_counts(operations),
        effective=tuple(Fact(name=name, value=_values(effective[name])) for name in sorted(effective)),
        world=tuple(world[rank] for rank in sorted(world)),
        resumed=tuple(resumed),
        failures=tuple(failures),
    )


def _few(seeded: Iterable[Seeded]) -> tuple[Seeded, ...]:
    """Workers get another seed at the same line in every epoch: the first values of a line stand for all."""
    kept: dict[Seeded, None] = {}
    values: dict[tuple[str, str, str, int], int] = {}
    for one in seeded:
        place = (one.library, one.what, one.file, one.line)
        count = values[place] = values.get(place, 0) + (one.value != OTHERS)
        kept[one if one.value != OTHERS and count <= _VALUES else msgspec.structs.replace(one, value=OTHERS)] = None
    return tuple(kept)


def _drawn(draws: Iterable[_Line], pids: Sequence[int]) -> tuple[tuple[Drawn, ...], bool]:
    """The ids drawn at each place, and whether there were more.

    Ids of several processes are sorted by worker and then by start, so their order does not depend on which process was faster.
    """
    order = {pid: number for number, pid in reversed([*enumerate(pids)])}
    found: dict[tuple[str, str, int], list[str]] = {}
    more, left = False, _IDS
    for draw in sorted(draws, key=lambda draw: (draw.worker, order.get(draw.pid, len(pids)))):
        ids = [word for word in draw.ids.split(" ", left)[:left] if _ID.fullmatch(word)] if left else []
        more |= draw.more or len(ids) < draw.ids.count(" ") + bool(draw.ids)
        left -= len(ids)
        if ids:
            found.setdefault((redact.line(draw.entropy), redact.line(draw.file), max(draw.line, 0)), []).extend(ids)
    places = [Drawn(what=what, file=file, line=line, ids=tuple(ids)) for (what, file, line), ids in found.items()]
    return tuple(places), more


def _add(counts: dict[tuple[str, str, int], int], key: tuple[str, str, int], count: int) -> None:
    counts[key] = counts.get(key, 0) + max(count, 0)


def _counts(counts: dict[tuple[str, str, int], int]) -> tuple[Count, ...]:
    return tuple(Count(what=what, count=count, file=file, line=line) for (what, file, line), count in counts.items())


def _effective(told: Iterable[_Line]) -> dict[str, dict[str, str]]:
    """Name -> rank -> value; what is told last counts."""
    effective: dict[str, dict[str, str]] = {}
    for one in told:
        for name, value in one.effective.items():
            effective.setdefault(redact.line(name), {})[redact.line(one.rank)] = redact.line(value)
    return effective


def _values(by_rank: dict[str, str]) -> str:
    if len(set(by_rank.values())) == 1:
        return next(iter(by_rank.values()))
    return ", ".join(f"{by_rank[rank]} (rank {rank or '-'})" for rank in sorted(by_rank, key=lambda rank: (len(rank), rank)))


def _rank(said: dict[str, int | str]) -> Rank | None:
    rank, size = said.get("rank"), said.get("size")
    if not isinstance(rank, int) or not isinstance(size, int) or not 0 <= rank < size < 1 << 20:
        return None
    return Rank(
        rank=rank, size=size, backend=redact.line(str(said.get("backend", ""))), device=redact.line(str(said.get("device", "")))
    )


def _resumed(said: dict[str, int | str]) -> Resumed | None:
    step, digest = said.get("step"), said.get("sha256")
    if not isinstance(step, int) or not isinstance(digest, str):
        return None
    return Resumed(
        run=redact.line(str(said.get("run", ""))),
        path=redact.line(str(said.get("path", ""))),
        sha256=redact.line(digest),
        step=step,
    )
