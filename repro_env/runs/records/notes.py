"""Read the notes of the hooks inside a run (`guest/seeds`): JSON Lines with one fact per line, from all processes.

The script can write to the file too, so nothing in it is trusted. Invalid lines are ignored.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.io.files import open_regular
from repro_env.schema import redact
from repro_env.schema.run import Count, Fact, RandomIds, Rank, Seeded
from repro_env.schema.rundirectory import NOTES_FILE

_MOST = 4 << 20
"""How many bytes of the file are read."""
_VALUES = 16
"""How many different seeds of a call are recorded."""
_FAILURES = 32
"""How many failures are recorded, of all processes together."""
_IDS = 10_000
"""How many ids are recorded, of all processes together."""
_PIDS = 1000
_ID = re.compile(r"[0-9a-f]{16}(?:\.[0-9a-f]{16})?")
_LONGEST = 4096
"""The longest path, in characters: PATH_MAX of Linux."""
MORE_VALUES = "and others"
"""The value that stands for all further values. A process may write it as well."""


class Resumed(msgspec.Struct, frozen=True):
    """A checkpoint from which the run resumed, as `repro_env.checkpoint` reported it."""

    run: str
    """The id of the run that wrote the checkpoint; empty if there was none."""
    path: str
    sha256: str
    """The hex digest of the checkpoint's manifest, without a prefix."""
    step: int


class Failure(msgspec.Struct, frozen=True):
    """Something that a failed process could not find or use, according to its exceptions.

    An `open` failed too, but may have nothing to do with the end of the process.
    """

    kind: Literal["path", "open", "read-only", "module", "program", "host"]
    what: str
    """A normalised absolute path or a name, without control characters. Empty for `host`."""


class Notes(msgspec.Struct, frozen=True):
    """The facts in a file of notes, without duplicates, in the order of their first note unless stated otherwise."""

    auto_seeded: tuple[str, ...] = ()
    """Unseeded generators as `<library> <what> at <file>:<line>`; `seeds: <problem>` if seeding failed."""
    seeded: tuple[Seeded, ...] = ()
    system_randomness: tuple[Count, ...] = ()
    """Summed over processes."""
    random_ids: tuple[RandomIds, ...] = ()
    random_ids_incomplete: bool = False
    pids: tuple[int, ...] = ()
    """See `schema.run.MachineFacts`."""
    operations: tuple[Count, ...] = ()
    """Summed over processes."""
    settings: tuple[Fact, ...] = ()
    """Sorted by name. If ranks differ, the value lists all of them: `a (rank 0), b (rank 1)`."""
    ranks: tuple[Rank, ...] = ()
    """Sorted by rank."""
    resumed: tuple[Resumed, ...] = ()
    failures: tuple[Failure, ...] = ()
    """At most `_FAILURES`."""


class _World(msgspec.Struct):
    rank: int
    size: int
    backend: str = ""
    device: str = ""
    nodes: int = 0
    strategy: str = ""
    accumulation: str = ""


class _Line(msgspec.Struct):
    """A note. Its kind depends on the fields that are present."""

    problem: str = ""
    library: str = ""
    what: str = ""
    value: str = ""
    file: str = ""
    line: int = 0
    seeded: str = ""
    """The library; with `what`, `value`, `file`, `line`."""
    system_randomness: str = ""
    ids: str = ""
    """With `system_randomness`, `pid` and `worker`: the digests of the drawn ids, separated by spaces."""
    more: bool = False
    """With `system_randomness`: whether more ids were drawn than noted."""
    pid: int = 0
    """Without `system_randomness`: the PID of a process that started."""
    worker: str = ""
    operation: str = ""
    count: int = 0
    settings: dict[str, str] = {}
    script: bool = True
    """With `settings`: whether the user's own program wrote the note, and not an installed program that may have started it."""
    world: _World | None = None
    rank: str = ""
    resumed: Resumed | None = None
    failure: Literal["path", "open", "read-only", "module", "program", "host", ""] = ""
    """With `what`."""


def of_run(directory: Path) -> Notes:
    """Read the notes of all processes that share a run: one file for each of them, or one file."""
    paths = sorted(directory.glob(f"*{NOTES_FILE}"), key=lambda path: (len(path.name), path.name))
    return parse(line for path in paths for line in _lines(path))


def read(path: Path) -> Notes:
    """Read a file of notes. Empty if the file cannot be read."""
    return parse(_lines(path))


def _lines(path: Path) -> list[bytes]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(_MOST).splitlines()
    except OSError:
        return []


def parse(lines: Iterable[bytes]) -> Notes:
    """Parse the lines of a file of notes."""
    unseeded: dict[str, None] = {}
    seeded: dict[Seeded, None] = {}
    entropy: Counter[tuple[str, str, int]] = Counter()
    draws: list[_Line] = []
    pids: list[int] = []
    operations: Counter[tuple[str, str, int]] = Counter()
    settings: list[_Line] = []
    world: dict[int, Rank] = {}
    resumed: dict[Resumed, None] = {}
    failures: dict[Failure, None] = {}
    for text in lines:
        try:
            note = msgspec.json.decode(text, type=_Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        file, line, count = redact.line(note.file), max(note.line, 0), max(note.count, 0)
        if note.seeded:
            library, what, value = map(redact.line, (note.seeded, note.what, note.value))
            seeded[Seeded(library=library, what=what, value=value, file=file, line=line)] = None
        elif note.system_randomness:
            entropy[redact.line(note.system_randomness), file, line] += count
            draws.append(note)
        elif note.pid:
            pids.append(note.pid)
        elif note.operation:
            operations[redact.line(note.operation), file, line] += count
        elif note.settings:
            settings.append(note)
        elif note.world is not None:
            rank, size = note.world.rank, note.world.size
            if 0 <= rank < size < 1 << 20:
                facts = {**msgspec.structs.asdict(note.world), "nodes": max(note.world.nodes, 0)}
                world[rank] = Rank(**redact.all_texts(facts))
        elif note.resumed is not None:
            run, path, digest = map(redact.line, (note.resumed.run, note.resumed.path, note.resumed.sha256))
            resumed[Resumed(run, path, digest, note.resumed.step)] = None
        elif note.failure:
            if len(failures) < _FAILURES and len(note.what) < _LONGEST and note.what.isprintable():
                failures[Failure(note.failure, note.what)] = None
        elif note.problem:
            unseeded[redact.line(f"seeds: {note.problem}")] = None
        elif note.library:
            unseeded[redact.line(f"{note.library} {note.what} at {note.file}:{note.line}")] = None
    drawn, more = _drawn(draws, pids)
    effective = _effective([note for note in settings if note.script] or settings)
    return Notes(
        auto_seeded=tuple(unseeded),
        seeded=_limit_values(seeded),
        system_randomness=tuple(count for count in _counts(entropy) if count.count),
        random_ids=drawn,
        random_ids_incomplete=more,
        pids=tuple(dict.fromkeys(pid for pid in pids if 0 < pid < 1 << 32))[:_PIDS],
        operations=_counts(operations),
        settings=tuple(Fact(name=name, value=_values(effective[name])) for name in sorted(effective)),
        ranks=tuple(world[rank] for rank in sorted(world)),
        resumed=tuple(resumed),
        failures=tuple(failures),
    )


def _limit_values(seeds: Iterable[Seeded]) -> tuple[Seeded, ...]:
    """Keep the first values of each line of code: a line may set a different seed for every worker and epoch."""
    limited: dict[Seeded, None] = {}
    counts: dict[tuple[str, str, str, int], int] = {}
    for seed in seeds:
        key = (seed.library, seed.what, seed.file, seed.line)
        count = counts[key] = counts.get(key, 0) + (seed.value != MORE_VALUES)
        limited[seed if seed.value != MORE_VALUES and count <= _VALUES else msgspec.structs.replace(seed, value=MORE_VALUES)] = (
            None
        )
    return tuple(limited)


def _drawn(draws: Iterable[_Line], pids: Sequence[int]) -> tuple[tuple[RandomIds, ...], bool]:
    """Return the ids drawn at each line of code, and whether there were more.

    The ids of several processes are sorted by worker and then by start, so their order does not depend on the processes' speed.
    """
    order = {pid: number for number, pid in reversed([*enumerate(pids)])}
    by_line: dict[tuple[str, str, int], list[str]] = {}
    more, budget = False, _IDS
    for draw in sorted(draws, key=lambda draw: (draw.worker, order.get(draw.pid, len(pids)))):
        ids = [word for word in draw.ids.split(" ", budget)[:budget] if _ID.fullmatch(word)] if budget else []
        more |= draw.more or len(ids) < draw.ids.count(" ") + bool(draw.ids)
        budget -= len(ids)
        if ids:
            by_line.setdefault((redact.line(draw.system_randomness), redact.line(draw.file), max(draw.line, 0)), []).extend(ids)
    drawn = [RandomIds(what=what, file=file, line=line, ids=tuple(ids)) for (what, file, line), ids in by_line.items()]
    return tuple(drawn), more


def _counts(counts: dict[tuple[str, str, int], int]) -> tuple[Count, ...]:
    return tuple(Count(what=what, count=count, file=file, line=line) for (what, file, line), count in counts.items())


def _effective(notes: Iterable[_Line]) -> dict[str, dict[str, str]]:
    """Return name -> rank -> value. The last note of a value counts."""
    effective: dict[str, dict[str, str]] = {}
    for note in notes:
        for name, value in note.settings.items():
            effective.setdefault(redact.line(name), {})[redact.line(note.rank)] = redact.line(value)
    return effective


def _values(by_rank: dict[str, str]) -> str:
    if len(set(by_rank.values())) == 1:
        return next(iter(by_rank.values()))
    return ", ".join(f"{by_rank[rank]} (rank {rank or '-'})" for rank in sorted(by_rank, key=lambda rank: (len(rank), rank)))
