"""An SQLite index of run records, so that ten thousand runs can be listed without opening their records.

A row is valid while the key of its record (inode, size, mtime and ctime of its files and of its annotations directory) is
the same. The key is read every time. A record that changed within the last two seconds is always read again, because file
system clocks are coarse. A row or database that is damaged or from another version is replaced. A listing does not depend
on whether the index can be written.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.io import database
from repro_env.runs.records import annotation, ids, records
from repro_env.runs.records.checkpointstate import written_files
from repro_env.runs.records.records import Run, State, Unreadable
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Parent
from repro_env.version import __version__

if TYPE_CHECKING:
    import sqlite3

_VERSION = zlib.crc32(f"7 {__version__}".encode()) & 0x7FFFFFFF
"""The version of the tables and rows: a number to increase with every change of `Summary`, and the version of this program."""
_SETTLED = 2_000_000_000
"""Nanoseconds, the coarsest file system clock in use (FAT). A younger file may change without a change of its key."""
_LARGEST = 2**63 - 1
"""The largest integer in a row. A record may claim any size."""
_TIMEOUT = 3.0
"""Seconds to wait for a process that locks the index. Reading ten thousand records takes less; the process may hang."""
_DIRECTORIES = "create table directory (id integer primary key, path blob unique not null)"
_RUNS = (
    "create table run (directory integer not null, name text not null, key blob not null, summary blob not null,"
    " outputs blob not null, primary key (directory, name))"
)
_SELECT = "select name, key, summary, x'' from run join directory on directory.id = directory where path = ?"
_SELECT_OUTPUTS = "select name, key, summary, outputs from run join directory on directory.id = directory where path = ?"


class Datum(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An input of a run and its digest."""

    role: str
    """`data`, `checkpoints` or `recipe`."""
    path: str
    digest: str
    """Empty for checkpoints, which change during a run."""


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a run that lists and lineage need."""

    id: str
    started: str
    command: tuple[str, ...]
    cwd: str
    runner: str
    spec: str
    image: str
    source: str
    """The digest of the source tree; `source_path` is its path."""
    source_trees: tuple[str, ...]
    """`SourceFact.trees`."""
    source_path: str
    seed: int
    data: tuple[Datum, ...]
    parents: tuple[Parent, ...]
    """The parents known before the run started, then those that it resumed from."""
    start: str
    """The current sha256 of `start.json`."""
    end: str
    """The current sha256 of `end.json`; empty if there is none."""
    intact: bool
    """False if `start.json` does not have the sha256 in `end.json`."""
    state: State
    exit_code: int | None
    """This field and those up to `size` are None, 0 or False without `end.json`."""
    signal: int
    out_of_memory: bool
    seconds: float | None
    outputs: int | None
    size: int | None
    tags: tuple[str, ...] | None
    """None if the annotations cannot be read."""
    spec_file: str = ""
    """The digest of the spec file; empty if the record does not have it."""
    directory: str = ""
    """The directory of the run. The index does not store it."""

    @property
    def short(self) -> str:
        return ids.short(self.id)

    @property
    def files(self) -> Path:
        return Path(self.directory, "files")

    @property
    def ending(self) -> str:
        """How the run ended, or its state if it did not end."""
        if self.exit_code is None:
            return self.state
        return describe_ending(self.exit_code, self.signal, out_of_memory=self.out_of_memory)


def describe_ending(exit_code: int, signal: int, *, out_of_memory: bool) -> str:
    """Describe in a few words how a command ended."""
    text = f"signal {signal}" if signal else f"exit {exit_code}"
    return f"{text}, out of memory" if out_of_memory else text


class Listing(msgspec.Struct, frozen=True):
    """The runs in one directory of runs, newest first, and the unreadable ones with their reasons."""

    runs: tuple[Summary, ...]
    unreadable: tuple[Unreadable, ...]
    outputs: Mapping[str, bytes]
    """The directory of a run -> the concatenated SHA-256 digests of its outputs and of the checkpoints that it wrote.
    Empty unless requested."""


class _Row(msgspec.Struct, frozen=True):
    key: bytes
    """Empty if the record was so young that it may change without a change of its key."""
    summary: bytes
    outputs: bytes


class Index:
    """Several processes may use the index at once. A lost index only costs time."""

    def __init__(self, path: Path | None) -> None:
        """`path`: of the database. Without one, every record is read each time."""
        self._database = path

    def listing(self, runs: Path, *, outputs: bool = False, refresh: bool = False) -> Listing:
        """List the runs in a directory. `outputs`: list their digests too. `refresh`: read every record again.

        Raises `RecordError` if `runs` is not a directory or cannot be read.
        """
        directories = records.directories(runs)
        path = os.fsencode(os.path.realpath(runs))
        rows = {} if refresh else self._load(path, outputs=outputs)
        young = time.time_ns() - _SETTLED
        summaries: list[Summary] = []
        unreadable = records.non_directories(runs)
        digests: dict[str, bytes] = {}
        new_rows: dict[str, _Row] = {}
        for directory in directories:
            row = rows.get(directory.name)
            summary = _summary(row, directory) if row is not None else None
            # Taken after the summary checked the lock: a run that ends now has a new key, and is not listed as interrupted.
            key, newest = _key(directory)
            if summary is None or row is None or row.key != key:
                try:
                    summary, row = _read(directory, key if newest < young else b"")
                except ReproEnvError as error:
                    unreadable.append(Unreadable(directory, error))
                    continue
                new_rows[directory.name] = row
            summaries.append(summary)
            if outputs and row.outputs:
                digests[summary.directory] = row.outputs
        # If the directory of runs is missing, its disk may not be mounted: the rows of its runs are kept.
        removed = rows.keys() - {directory.name for directory in directories} if runs.is_dir() else set()
        if new_rows or removed:
            self._save(path, new_rows, removed)
        # Ids sort by the millisecond, names only by the second.
        summaries.sort(key=lambda summary: summary.id, reverse=True)
        return Listing(tuple(summaries), tuple(unreadable), digests)

    def last_listing(self, runs: Path) -> Listing:
        """Return what was last listed for a directory of runs that is missing now."""
        rows = self._load(os.fsencode(runs), outputs=True)
        summaries = {name: summary for name in rows if (summary := _summary(rows[name], runs / name)) is not None}
        outputs = {summary.directory: rows[name].outputs for name, summary in summaries.items() if rows[name].outputs}
        return Listing(tuple(sorted(summaries.values(), key=lambda summary: summary.id, reverse=True)), (), outputs)

    def _load(self, path: bytes, *, outputs: bool) -> dict[str, _Row]:
        rows: dict[str, _Row] = {}

        def load(db: sqlite3.Connection) -> None:
            for row in db.execute(_SELECT_OUTPUTS if outputs else _SELECT, (path,)):
                if tuple(map(type, row)) == (str, bytes, bytes, bytes):
                    rows[row[0]] = _Row(*row[1:])

        self._with_database(load)
        return rows

    def _save(self, path: bytes, rows: Mapping[str, _Row], removed: Collection[str]) -> None:
        def save(db: sqlite3.Connection) -> None:
            with db:
                db.execute("insert or ignore into directory (path) values (?)", (path,))
                ((number,),) = db.execute("select id from directory where path = ?", (path,))
                db.executemany("delete from run where directory = ? and name = ?", ((number, name) for name in removed))
                db.executemany(
                    "insert or replace into run values (?, ?, ?, ?, ?)",
                    ((number, name, row.key, row.summary, row.outputs) for name, row in rows.items()),
                )

        self._with_database(save)

    def _with_database(self, do: Callable[[sqlite3.Connection], None]) -> None:
        """Call `do` with the open database. If SQLite fails, nothing is loaded or saved."""

        def act(db: sqlite3.Connection) -> None:
            _prepare(db)
            do(db)

        if self._database is not None and not database.use(self._database, act, timeout=_TIMEOUT):
            self._database = None  # do not wait for it again


def _prepare(db: sqlite3.Connection) -> None:
    """Create the tables, or replace them if another version made them."""
    ((version,),) = db.execute("pragma user_version")
    if version == _VERSION:
        _check(db)
        return
    with db:
        db.execute("begin immediate")
        ((version,),) = db.execute("pragma user_version")
        if version != _VERSION:  # otherwise another process has just created them
            for text in ("drop table if exists run", "drop table if exists directory", _RUNS, _DIRECTORIES):
                db.execute(text)
            db.execute(f"pragma user_version = {_VERSION}")


def _check(db: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` if the database has a foreign table: a view or trigger could run SQL without end."""
    import sqlite3

    found = db.execute("select type, substr(sql, length('create table') + 1) from sqlite_master where sql is not null")
    if set(found) != {("table", text.removeprefix("create table")) for text in (_DIRECTORIES, _RUNS)}:
        raise sqlite3.DatabaseError("foreign tables")


def _key(directory: Path) -> tuple[bytes, int]:
    """Return the key of a record and the time of its latest change."""
    key = []
    newest = 0
    for name in ("start.json", "end.json", annotation.SUBDIRECTORY):
        with contextlib.suppress(OSError):
            status = os.lstat(f"{directory}/{name}")
            key.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
            newest = max(newest, status.st_mtime_ns, status.st_ctime_ns)
    return msgspec.msgpack.encode(key), newest


_decoder = msgspec.msgpack.Decoder(Summary)


def _summary(row: _Row, directory: Path) -> Summary | None:
    """Decode the summary of a row; None if it cannot be decoded."""
    try:
        summary = _decoder.decode(row.summary)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if len(row.outputs) % 32:
        return None
    state = summary.state if summary.end else _state(directory)
    return msgspec.structs.replace(summary, directory=str(directory), state=state)


def _state(directory: Path) -> State:
    return "running" if records.is_running(directory) else "interrupted"


def _read(directory: Path, key: bytes) -> tuple[Summary, _Row]:
    """Read a record and make its row. Raises the errors of `records.read`."""
    run = records.read(directory)
    summary = summarize(run)
    digests = [output.sha256 for output in (run.end.outputs if run.end is not None else ())]
    digests += [file.sha256 for file in written_files(run)]
    outputs = b"".join(bytes.fromhex(digest[7:]) for digest in digests)
    return summary, _Row(key, msgspec.msgpack.encode(msgspec.structs.replace(summary, directory="")), outputs)


def summarize(run: Run) -> Summary:
    """Return the summary of a run."""
    start, end = run.start, run.end
    digest = records.digest(run.directory / "start.json")
    data = [Datum(fact.kind, fact.source, fact.digest or "") for fact in start.data]
    data += [Datum("recipe", file.path, file.sha256) for file in start.recipe]
    return Summary(
        id=start.id,
        started=start.started,
        command=start.command,
        cwd=start.cwd,
        runner=start.runner,
        spec=start.spec,
        image=start.image,
        source=start.source.digest,
        source_trees=start.source.trees,
        source_path=start.source.directory or start.source.path,
        seed=start.seed,
        data=tuple(data),
        parents=(*start.parents, *(end.resumed if end is not None else ())),
        start=digest,
        end=records.digest(run.directory / "end.json") if end is not None else "",
        intact=end is None or end.start in (None, digest),
        state=run.state,
        exit_code=None if end is None else end.outcome.exit_code,
        signal=0 if end is None else end.outcome.signal,
        out_of_memory=end is not None and end.outcome.out_of_memory,
        seconds=None if end is None else end.seconds,
        outputs=None if end is None else len(end.outputs),
        size=None if end is None else min(sum(output.size for output in end.outputs), _LARGEST),
        tags=_tags(run.directory),
        spec_file=start.spec_file or "",
        directory=str(run.directory),
    )


def _tags(directory: Path) -> tuple[str, ...] | None:
    try:
        return annotation.tags(annotation.of(directory))
    except ReproEnvError:
        return None
