"""What lists show of a run. The store keeps it for runs that have ended, so that a list does not read their records again."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from repro_env.runs.records import annotation, records
from repro_env.runs.records.records import Run, State, Unreadable
from repro_env.schema.artifact import Size
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import DiskError
from repro_env.schema.run import Outcome
from repro_env.schema.rundirectory import ANNOTATIONS, END, START
from repro_env.schema.text import Line
from repro_env.store.facts import FactCache
from repro_env.store.hashes import SETTLED

_KIND = "run-summaries"
"""Kind of these facts, by directory of runs."""


class Summary(Frozen, frozen=True, kw_only=True):
    """What lists show of a run. A pull from a catalog checks it against the record."""

    started: Line
    command: tuple[Line, ...]
    outcome: Outcome | None
    """Facts, not words, because other versions may use other words. None if the run has no end."""
    seconds: float | None
    outputs: Size
    """Number of recorded outputs."""
    size: Size
    """Bytes of the recorded outputs."""


class RunLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of a list of runs."""

    id: str
    state: State
    ending: str
    started: str
    command: tuple[str, ...]
    seconds: float | None
    outputs: int
    size: int
    tags: tuple[str, ...] | None = ()
    """None if the annotations cannot be read. Never kept: they can be added at any time."""


class _Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line that the store keeps, with the directory and the state of the files from which it was read."""

    name: str
    state: tuple[int, ...]
    is_annotated: bool
    line: RunLine


def summary_of(run: Run) -> Summary:
    outputs = run.end.outputs if run.end is not None else ()
    return Summary(
        started=run.start.started,
        command=run.start.command,
        outcome=None if run.end is None else run.end.outcome,
        seconds=None if run.end is None else run.end.seconds,
        outputs=len(outputs),
        size=sum(output.size for output in outputs),
    )


def line_of(run_id: str, summary: Summary, state: State, ending: str, tags: tuple[str, ...] = ()) -> RunLine:
    """Return the line of a run, here or in a catalog."""
    return RunLine(run_id, state, ending, summary.started, summary.command, summary.seconds, summary.outputs, summary.size, tags)


def lines(runs: Path, facts: FactCache | None) -> tuple[list[RunLine], list[Unreadable]]:
    """Return a line for each run in a directory of runs, newest first, and the runs that cannot be read.

    The record of a run that has ended is read once. Its line is kept in the store while its directory and both files of its record
    have the inode, size and times that they had. `facts`: None if the store cannot be used.
    """
    root = os.path.realpath(runs)
    key = os.fsencode(root).hex()  # a path may not be UTF-8
    kept = _load(facts, key) if facts is not None else {}
    settled = time.time_ns() - SETTLED
    known, listed, unreadable = [], [], []
    for name, is_directory in records.named_as_runs(runs):
        if not is_directory:
            continue
        state = _state(f"{root}/{name}")
        found = kept.get(name)
        if found is None or found.state != state:
            run = records.try_read(runs / name)
            if isinstance(run, Unreadable):
                unreadable.append(run)
                continue
            found = _Kept(
                name, state, (runs / name / ANNOTATIONS).exists(), line_of(run.id, summary_of(run), run.state, run.ending)
            )
        if found.line.state == "done" and state and state[0] < settled:
            known.append(found)
        line = found.line
        if found.is_annotated:
            line = msgspec.structs.replace(line, tags=annotation.current_tags(runs / name))
        listed.append(line)
    if facts is not None and (len(known) != len(kept) or any(item is not kept.get(item.name) for item in known)):
        with contextlib.suppress(DiskError):  # the list is complete without it
            facts.put(_KIND, key, msgspec.json.encode(known))
    return sorted(listed, key=lambda line: line.id, reverse=True), [*unreadable, *records.non_directories(runs)]


def _state(directory: str) -> tuple[int, ...]:
    """Return the newest ctime of a run's directory and the files of its record, and what changes with them; empty if one is missing.

    Programs cannot set ctime. An entry that is added to the directory, such as `END`, changes that of the directory.
    """
    try:
        facts = (os.lstat(directory), os.lstat(f"{directory}/{START}"), os.lstat(f"{directory}/{END}"))
    except OSError:
        return ()
    newest = max(entry.st_ctime_ns for entry in facts)
    return (newest, *(number for entry in facts for number in (entry.st_ino, entry.st_size, entry.st_ctime_ns)))


def _load(facts: FactCache, key: str) -> dict[str, _Kept]:
    data = facts.get(_KIND, key)
    with contextlib.suppress(msgspec.MsgspecError):  # another version of repro-env may have written it
        if data is not None:
            return {item.name: item for item in msgspec.json.decode(data, type=list[_Kept])}
    return {}
