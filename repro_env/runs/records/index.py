"""An index of run records, so that ten thousand runs can be listed without opening their records: a file for each directory of runs.

A row is valid while the key of its record (inode, size, mtime and ctime of its files and of its annotations directory) is
the same. The key is read every time. A record that changed within the last two seconds is always read again, because file
system clocks are coarse. A file that is damaged or from another version is replaced. A listing does not depend on whether the
index can be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.io.files import atomic_write, read_regular
from repro_env.runs.records import annotation, ids, records
from repro_env.runs.records.checkpointstate import written_files
from repro_env.runs.records.records import Run, State, Unreadable
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Parent
from repro_env.version import __version__

_VERSION = f"8 {__version__}"
"""The version of a file of the index: a number to increase with every change of `Summary`, and the version of this program."""
_SETTLED = 2_000_000_000
"""Nanoseconds, the coarsest file system clock in use (FAT). A younger file may change without a change of its key."""
_LARGEST = 2**63 - 1
"""The largest integer in a row. A record may claim any size."""
_MAX_SIZE = 1 << 30
"""Bytes of a file of the index that is read."""


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


class _Row(msgspec.Struct, frozen=True, gc=False, array_like=True):
    key: bytes
    """Empty if the record was so young that it may change without a change of its key."""
    summary: Summary
    outputs: bytes


class _File(msgspec.Struct, frozen=True):
    version: str
    path: bytes
    """The directory of runs."""
    rows: dict[str, _Row]
    """By the name of the run's directory."""


class Index:
    """Several processes may use the index at once: the last one that writes a file replaces it. A lost index only costs time."""

    def __init__(self, root: Path | None) -> None:
        """`root`: directory of the index. Without one, every record is read each time."""
        self._root = root

    def listing(self, runs: Path, *, outputs: bool = False, refresh: bool = False) -> Listing:
        """List the runs in a directory. `outputs`: list their digests too. `refresh`: read every record again.

        Raises `RecordError` if `runs` is not a directory or cannot be read.
        """
        directories = records.directories(runs)
        path = os.fsencode(os.path.realpath(runs))
        rows = {} if refresh else self._load(path)
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
        if new_rows != rows and runs.is_dir():  # if it is missing, its disk may not be mounted: the rows of its runs are kept
            self._save(path, new_rows)
        # Ids sort by the millisecond, names only by the second.
        summaries.sort(key=lambda summary: summary.id, reverse=True)
        return Listing(tuple(summaries), tuple(unreadable), digests)

    def last_listing(self, runs: Path) -> Listing:
        """Return what was last listed for a directory of runs that is missing now."""
        rows = self._load(os.fsencode(runs))
        summaries = {name: _summary(row, runs / name) for name, row in rows.items()}
        outputs = {summary.directory: rows[name].outputs for name, summary in summaries.items() if rows[name].outputs}
        return Listing(tuple(sorted(summaries.values(), key=lambda summary: summary.id, reverse=True)), (), outputs)

    def _load(self, path: bytes) -> dict[str, _Row]:
        if self._root is None:
            return {}
        try:
            file = _decoder.decode(read_regular(self._file(self._root, path), _MAX_SIZE))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}
        is_valid = (file.version, file.path) == (_VERSION, path) and all(len(row.outputs) % 32 == 0 for row in file.rows.values())
        return file.rows if is_valid else {}

    def _save(self, path: bytes, rows: dict[str, _Row]) -> None:
        if self._root is not None:
            with contextlib.suppress(OSError, ReproEnvError):
                self._root.mkdir(mode=0o700, exist_ok=True)
                data = msgspec.msgpack.encode(_File(_VERSION, path, rows))
                atomic_write(self._file(self._root, path), data, flush=False)

    @staticmethod
    def _file(root: Path, path: bytes) -> Path:
        return root / hashlib.sha256(path).hexdigest()


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


_decoder = msgspec.msgpack.Decoder(_File)


def _summary(row: _Row, directory: Path) -> Summary:
    summary = row.summary
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
    return summary, _Row(key, msgspec.structs.replace(summary, directory=""), outputs)


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
