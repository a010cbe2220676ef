"""Read the reports of the hooks inside a run (`guest/seeds`): JSON Lines with one fact per line, from all processes.

The script can write to the file too, so nothing in it is trusted. Invalid lines are ignored.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from repro_env.io.files import open_regular
from repro_env.runs.records.checkpointmanifest import CheckpointParent
from repro_env.schema import redact
from repro_env.schema.run import Count, Fact, RandomIds, Rank, Seeded
from repro_env.schema.rundirectory import REPORTS_FILE

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
_T = TypeVar("_T")
MORE_VALUES = "and others"
"""The value that stands for all further values. A process may write it as well."""


class Failure(msgspec.Struct, frozen=True):
    """Something that a failed process could not find or use, according to its exceptions.

    An `open` failed too, but may have nothing to do with the end of the process.
    """

    kind: Literal["path", "open", "read-only", "module", "program", "host"]
    what: str
    """A normalised absolute path or a name, without control characters. Empty for `host`."""


class Reports(msgspec.Struct, frozen=True):
    """The facts in a file of reports, without duplicates, in the order of their first report unless stated otherwise."""

    auto_seeded: tuple[str, ...] = ()
    """Unseeded generators as `<library> <what> at <file>:<line>`; then `seeds: <problem>` if seeding failed."""
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
    resumed: tuple[CheckpointParent, ...] = ()
    failures: tuple[Failure, ...] = ()
    """At most `_FAILURES`."""


class _Line(msgspec.Struct):
    """A report. Its kind is the first of `_KINDS` that is present."""

    problem: str = ""
    library: str = ""
    what: str = ""
    value: str = ""
    file: str = ""
    line: int = 0
    seeded: str = ""
    """The library; with `what`, `value`, `purpose`, `file`, `line`."""
    purpose: str = ""
    system_randomness: str = ""
    ids: str = ""
    """With `system_randomness`, `pid` and `worker`: the digests of the drawn ids, separated by spaces."""
    more: bool = False
    """With `system_randomness`: whether more ids were drawn than reported."""
    pid: int = 0
    """Without `system_randomness`: the PID of a process that started."""
    worker: str = ""
    operation: str = ""
    count: int = 0
    settings: dict[str, str] = {}
    script: bool = True
    """With `settings`: whether the user's own program wrote the report, and not an installed program that may have started it."""
    world: Rank | None = None
    rank: str = ""
    resumed: CheckpointParent | None = None
    failure: Literal["path", "open", "read-only", "module", "program", "host", ""] = ""
    """With `what`."""


_KINDS = ("seeded", "system_randomness", "pid", "operation", "settings", "world", "resumed", "failure", "problem", "library")


def of_run(directory: Path) -> Reports:
    """Read the reports of all processes that share a run: one file for each of them, or one file."""
    paths = sorted(directory.glob(f"*{REPORTS_FILE}"), key=lambda path: (len(path.name), path.name))
    return parse(line for path in paths for line in _lines(path))


def read(path: Path) -> Reports:
    """Read a file of reports. Empty if the file cannot be read."""
    return parse(_lines(path))


def _lines(path: Path) -> list[bytes]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(_MOST).splitlines()
    except OSError:
        return []


def parse(lines: Iterable[bytes]) -> Reports:
    """Parse the lines of a file of reports."""
    reports: dict[str, list[_Line]] = {kind: [] for kind in _KINDS}
    for text in lines:
        try:
            report = msgspec.json.decode(text, type=_Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        kind = next((kind for kind in _KINDS if getattr(report, kind)), None)
        if kind is not None:
            reports[kind].append(report)
    pids = [report.pid for report in reports["pid"]]
    drawn, more = _drawn(reports["system_randomness"], pids)
    unseeded = [f"{report.library} {report.what} at {report.file}:{report.line}" for report in reports["library"]]
    unseeded += [f"seeds: {report.problem}" for report in reports["problem"]]
    return Reports(
        auto_seeded=tuple(dict.fromkeys(map(redact.line, unseeded))),
        seeded=_seeds(reports["seeded"]),
        system_randomness=tuple(count for count in _counts(reports, "system_randomness") if count.count),
        random_ids=drawn,
        random_ids_incomplete=more,
        pids=tuple(dict.fromkeys(pid for pid in pids if 0 < pid < 1 << 32))[:_PIDS],
        operations=tuple(_counts(reports, "operation")),
        settings=_settings([report for report in reports["settings"] if report.script] or reports["settings"]),
        ranks=_ranks(report.world for report in reports["world"] if report.world is not None),
        resumed=tuple(
            dict.fromkeys(_without_secrets(report.resumed) for report in reports["resumed"] if report.resumed is not None)
        ),
        failures=tuple(
            dict.fromkeys(
                Failure(report.failure, report.what)
                for report in reports["failure"]
                if report.failure and len(report.what) < _LONGEST and report.what.isprintable()
            )
        )[:_FAILURES],
    )


def _without_secrets(value: _T) -> _T:
    return msgspec.convert(redact.all_texts(msgspec.to_builtins(value)), type(value))


def _ranks(ranks: Iterable[Rank]) -> tuple[Rank, ...]:
    """Return the last report of each rank."""
    valid = {rank.rank: rank for rank in ranks if 0 <= rank.rank < rank.size < 1 << 20 and rank.nodes >= 0}
    return tuple(_without_secrets(valid[number]) for number in sorted(valid))


def _seeds(reports: Iterable[_Line]) -> tuple[Seeded, ...]:
    """Keep the first values of each line of code: a line may set a different seed for every worker and epoch."""
    limited: dict[Seeded, None] = {}
    values: dict[tuple[str, str, str, int], set[tuple[str, str]]] = {}
    for report in reports:
        library, what, file, value, purpose = map(
            redact.line, (report.seeded, report.what, report.file, report.value, report.purpose)
        )
        line = max(report.line, 0)
        first = values.setdefault((library, what, file, line), set())
        if value != MORE_VALUES and len(first) < _VALUES:
            first.add((value, purpose))
        if (value, purpose) not in first:
            value, purpose = MORE_VALUES, ""
        limited[Seeded(library=library, what=what, value=value, purpose=purpose, file=file, line=line)] = None
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


def _counts(reports: dict[str, list[_Line]], kind: str) -> Iterator[Count]:
    """Yield how often each event of this kind occurred at each line of code."""
    counts: Counter[tuple[str, str, int]] = Counter()
    for report in reports[kind]:
        counts[redact.line(getattr(report, kind)), redact.line(report.file), max(report.line, 0)] += max(report.count, 0)
    for (what, file, line), count in counts.items():
        yield Count(what=what, count=count, file=file, line=line)


def _settings(reports: Iterable[_Line]) -> tuple[Fact, ...]:
    """Return the values of all ranks. The last report of a value counts."""
    by_name: dict[str, dict[str, str]] = {}
    for report in reports:
        for name, value in report.settings.items():
            by_name.setdefault(redact.line(name), {})[redact.line(report.rank)] = redact.line(value)
    return tuple(Fact(name=name, value=_values(by_name[name])) for name in sorted(by_name))


def _values(by_rank: dict[str, str]) -> str:
    if len(set(by_rank.values())) == 1:
        return next(iter(by_rank.values()))
    return ", ".join(f"{by_rank[rank]} (rank {rank or '-'})" for rank in sorted(by_rank, key=lambda rank: (len(rank), rank)))
