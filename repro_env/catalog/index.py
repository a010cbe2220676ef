"""What of each run record is asked for often, in one SQLite file: ten thousand runs are listed without opening their records.

Only an index. A record is known by the keys (inode, size, mtime, ctime) of its files and of the folder of
its annotations, which are asked for each time; one that has another key, or is so young that its clock may not have moved yet, is read again. Rows that cannot be understood,
a database of another version or a damaged one are made anew. What is listed never depends on whether it could be written.
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

from repro_env import __version__
from repro_env.catalog import annotation, ids, records
from repro_env.catalog.left import left
from repro_env.catalog.records import Run, State, Unreadable
from repro_env.model.errors import ReproEnvError
from repro_env.model.run import Parent

if TYPE_CHECKING:
    import sqlite3

_VERSION = zlib.crc32(f"6 {__version__}".encode()) & 0x7FFFFFFF
"""Of the tables and of what is in them: of this program, and of a number that is raised with every change of `Summary`."""
_SETTLED = 2_000_000_000
"""Nanoseconds: the coarsest clock of a file system in use (FAT). What is younger may be written again under the same key."""
_MOST = 2**63 - 1
"""The largest number that a row holds: a record may claim sizes of any length."""
_PATIENCE = 3.0
"""Seconds that another process may hold the index: longer than to read ten thousand records, and who holds it may hang."""
_FOLDERS = "create table folder (id integer primary key, path blob unique not null)"
_RUNS = (
    "create table run (folder integer not null, name text not null, key blob not null, summary blob not null,"
    " outputs blob not null, primary key (folder, name))"
)
_ASKED = "select name, key, summary, x'' from run join folder on folder.id = folder where path = ?"
_ASKED_OUTPUTS = "select name, key, summary, outputs from run join folder on folder.id = folder where path = ?"


class Datum(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One thing that went into a run, by its digest."""

    role: str
    """`data`, `checkpoints`, `recipe`."""
    path: str
    digest: str
    """Empty for checkpoints, which change during a run."""


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """One run, as lists and lineage need it."""

    id: str
    started: str
    command: tuple[str, ...]
    cwd: str
    runner: str
    spec: str
    image: str
    source: str
    """Digest of the source's tree; `source_path` is where it was."""
    source_trees: tuple[str, ...]
    """`SourceFact.trees`."""
    source_path: str
    seed: int
    data: tuple[Datum, ...]
    parents: tuple[Parent, ...]
    """Those known before it started, then those it went on from."""
    start: str
    """sha256 of `start.json`, and of `end.json` below, as they are now."""
    end: str
    vouched: bool
    """False when `start.json` is not the one that `end.json` speaks of."""
    state: State
    exit_code: int | None
    """This and what follows: None, or empty, where there is no end."""
    signal: int
    out_of_memory: bool
    seconds: float | None
    outputs: int | None
    size: int | None
    tags: tuple[str, ...] | None
    """None: what was said of it cannot be read."""
    spec_file: str = ""
    """Digest of the spec's file; empty where the record does not have it."""
    folder: str = ""
    """Where it lies: not part of what is stored."""

    @property
    def short(self) -> str:
        return ids.short(self.id)

    @property
    def files(self) -> Path:
        return Path(self.folder, "files")

    @property
    def ended(self) -> str:
        """How it ended, in a few words; its state where it did not."""
        if self.exit_code is None:
            return self.state
        return ended(self.exit_code, self.signal, out_of_memory=self.out_of_memory)


def ended(exit_code: int, signal: int, *, out_of_memory: bool) -> str:
    """How a command ended, in a few words."""
    text = f"signal {signal}" if signal else f"exit {exit_code}"
    return f"{text}, out of memory" if out_of_memory else text


class Listing(msgspec.Struct, frozen=True):
    """All runs of one folder, newest first; and those that cannot be read, each with its reason."""

    runs: tuple[Summary, ...]
    unreadable: tuple[Unreadable, ...]
    outputs: Mapping[str, bytes]
    """A run's folder -> sha256 of each of its outputs, and of what it left in folders of checkpoints, one after the other;
    empty unless asked for."""


class _Row(msgspec.Struct, frozen=True):
    key: bytes
    """Empty when the record was too young to be known by it."""
    summary: bytes
    outputs: bytes


class Index:
    """Safe to share between processes. Losing it costs time, nothing else."""

    def __init__(self, database: Path | None) -> None:
        """None: every record is read each time."""
        self._database = database

    def listing(self, runs: Path, *, outputs: bool = False, anew: bool = False) -> Listing:
        """Every run below `runs`. `outputs`: their digests too; `anew`: read every record, whatever is known.

        Raises `RecordError` when it is no folder, or may not be read.
        """
        there = records.folders(runs)
        path = os.fsencode(os.path.realpath(runs))
        known = {} if anew else self._load(path, outputs=outputs)
        young = time.time_ns() - _SETTLED
        found: list[Summary] = []
        unreadable = records.impostors(runs)
        digests: dict[str, bytes] = {}
        fresh: dict[str, _Row] = {}
        for folder in there:
            key, newest = _key(folder)
            row = known.get(folder.name)
            summary = _summary(row, folder) if row is not None and row.key == key else None
            if summary is None:
                try:
                    summary, row = _read(folder, key if newest < young else b"")
                except ReproEnvError as error:
                    unreadable.append(Unreadable(folder, error))
                    continue
                fresh[folder.name] = row
            found.append(summary)
            if outputs and row is not None and row.outputs:
                digests[summary.folder] = row.outputs
        # A folder that is not there at all may be on a disk that is not: what was known of its runs stays.
        gone = known.keys() - {folder.name for folder in there} if runs.is_dir() else set()
        if fresh or gone:
            self._save(path, fresh, gone)
        # Ids sort by the millisecond, names only by the second.
        found.sort(key=lambda one: one.id, reverse=True)
        return Listing(tuple(found), tuple(unreadable), digests)

    def remembered(self, runs: Path) -> Listing:
        """What a folder that is not there held when it was last listed. Nothing can be asked whether that is still so."""
        rows = self._load(os.fsencode(runs), outputs=True)
        known = {name: one for name in sorted(rows) if (one := _summary(rows[name], runs / name)) is not None}
        outputs = {one.folder: rows[name].outputs for name, one in known.items() if rows[name].outputs}
        return Listing(tuple(sorted(known.values(), key=lambda one: one.id, reverse=True)), (), outputs)

    def _load(self, path: bytes, *, outputs: bool) -> dict[str, _Row]:
        rows: dict[str, _Row] = {}

        def load(db: sqlite3.Connection) -> None:
            for row in db.execute(_ASKED_OUTPUTS if outputs else _ASKED, (path,)):
                if tuple(map(type, row)) == (str, bytes, bytes, bytes):
                    rows[row[0]] = _Row(*row[1:])

        self._with_database(load)
        return rows

    def _save(self, path: bytes, fresh: Mapping[str, _Row], gone: Collection[str]) -> None:
        def save(db: sqlite3.Connection) -> None:
            with db:
                db.execute("insert or ignore into folder (path) values (?)", (path,))
                ((number,),) = db.execute("select id from folder where path = ?", (path,))
                db.executemany("delete from run where folder = ? and name = ?", ((number, name) for name in gone))
                db.executemany(
                    "insert or replace into run values (?, ?, ?, ?, ?)",
                    ((number, name, row.key, row.summary, row.outputs) for name, row in fresh.items()),
                )

        self._with_database(save)

    def _with_database(self, do: Callable[[sqlite3.Connection], None]) -> None:
        """What SQLite cannot do is left undone: the index is then empty, or stays as it was."""
        if self._database is None:
            return
        import sqlite3

        try:
            if self._database.is_symlink() or (self._database.exists() and not self._database.is_file()):
                raise OSError("is not a regular file")  # SQLite would follow a link or wait for a pipe
            with contextlib.closing(sqlite3.connect(self._database, timeout=_PATIENCE)) as db:
                db.execute("pragma synchronous = normal")
                _prepare(db)
                do(db)
        except (OSError, sqlite3.OperationalError):
            self._database = None  # locked for long, no room, or no locks on this file system: it is not asked again
        except sqlite3.DatabaseError:
            with contextlib.suppress(OSError):
                self._database.unlink(missing_ok=True)  # damaged


def _prepare(db: sqlite3.Connection) -> None:
    """Tables of this version; those of another one go."""
    ((version,),) = db.execute("pragma user_version")
    if version == _VERSION:
        _check(db)
        return
    with db:
        db.execute("begin immediate")
        ((version,),) = db.execute("pragma user_version")
        if version != _VERSION:  # nobody else made them meanwhile
            for text in ("drop table if exists run", "drop table if exists folder", _RUNS, _FOLDERS):
                db.execute(text)
            db.execute(f"pragma user_version = {_VERSION}")


def _check(db: sqlite3.Connection) -> None:
    """Raises `sqlite3.DatabaseError` for tables that are not ours: a view or trigger could run arbitrary SQL without end."""
    import sqlite3

    found = db.execute("select type, substr(sql, length('create table') + 1) from sqlite_master where sql is not null")
    if set(found) != {("table", text.removeprefix("create table")) for text in (_FOLDERS, _RUNS)}:
        raise sqlite3.DatabaseError("other tables")


def _key(folder: Path) -> tuple[bytes, int]:
    """What a record is known by, and the time of its youngest change."""
    key = []
    newest = 0
    for name in ("start.json", "end.json", annotation.FOLDER):
        with contextlib.suppress(OSError):
            facts = os.lstat(f"{folder}/{name}")
            key.append((name, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))
            newest = max(newest, facts.st_mtime_ns, facts.st_ctime_ns)
    return msgspec.msgpack.encode(key), newest


_decoder = msgspec.msgpack.Decoder(Summary)


def _summary(row: _Row, folder: Path) -> Summary | None:
    """Of a row; None when it is not understood."""
    try:
        one = _decoder.decode(row.summary)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if len(row.outputs) % 32:
        return None
    state = one.state if one.end else _state(folder)
    return msgspec.structs.replace(one, folder=str(folder), state=state)


def _state(folder: Path) -> State:
    return "running" if records.is_running(folder) else "interrupted"


def _read(folder: Path, key: bytes) -> tuple[Summary, _Row]:
    """From the record itself. Raises what `records.read` raises."""
    run = records.read(folder)
    one = summary(run)
    made = [each.sha256 for each in (run.end.outputs if run.end is not None else ())]
    made += [each.sha256 for each in left(folder, run.start, run.end)]
    outputs = b"".join(bytes.fromhex(each[7:]) for each in made)
    return one, _Row(key, msgspec.msgpack.encode(msgspec.structs.replace(one, folder="")), outputs)


def summary(run: Run) -> Summary:
    """Of a record that was read."""
    start, end = run.start, run.end
    digest = records.digest(run.folder / "start.json")
    data = [Datum(one.kind, one.source, one.digest or "") for one in start.data]
    data += [Datum("recipe", one.path, one.sha256) for one in start.recipe]
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
        end=records.digest(run.folder / "end.json") if end is not None else "",
        vouched=end is None or end.start in (None, digest),
        state=run.state,
        exit_code=None if end is None else end.outcome.exit_code,
        signal=0 if end is None else end.outcome.signal,
        out_of_memory=end is not None and end.outcome.out_of_memory,
        seconds=None if end is None else end.seconds,
        outputs=None if end is None else len(end.outputs),
        size=None if end is None else min(sum(one.size for one in end.outputs), _MOST),
        tags=_tags(run.folder),
        spec_file=start.spec_file or "",
        folder=str(run.folder),
    )


def _tags(folder: Path) -> tuple[str, ...] | None:
    try:
        return annotation.tags(annotation.of(folder))
    except ReproEnvError:
        return None
