"""Read and write the records of runs. Each run has a directory; `start.json` and `end.json` are written once and never changed.

    runs/20260701T101530Z-train-1f2e3d4c/
        start.json   written before the command starts
        end.json     written after the command ended; missing if the run is running or was interrupted
        lock         locked while the run is running
        ranks/       a directory for each process that shares the run (`runs.records.processes`)
        files/       the files that the run wrote in its project
        outside/     the files that it wrote outside its project, by absolute path
        stdout.log   the output of the command (`sandbox.streams`)
        trace/       the steps of the training (`exec --trace`)
        verified/    the verdicts of `verify` (`runs.records.verdicts`)
    runs/latest -> the directory of the newest run

A run is running while a process holds its lock. The kernel releases the lock when the last process of the run exits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from repro_env.io import filesystem
from repro_env.io.files import expect, open_regular, read_regular, remove_tree, room, try_lock
from repro_env.io.files import lock as lock_file
from repro_env.runs.records import annotation, ids
from repro_env.runs.records.files import write_once
from repro_env.schema import codec
from repro_env.schema.errors import RecordError, ReproEnvError, SpecError, SpecVersionError, os_errors_as
from repro_env.schema.run import End, Outcome, Parent, Start
from repro_env.schema.rundirectory import ANNOTATIONS, END, FILES, LOCK, LOGS, OUTSIDE, RANKS, START, TRACE, VERIFIED

_Half = TypeVar("_Half", Start, End)
State = Literal["done", "running", "interrupted"]
LATEST = "latest"
JOBS = ".jobs"
"""The directory, next to those of the runs, with a directory for each submitted run (`runs.records.submissions`)."""
LARGEST = 256 << 20
"""The largest record file that is read, in bytes. A record of a million outputs has about 150 MB."""
_NODE = 256
"""Bytes of the name of a machine in the file `lock`, at most."""
_DIRECTORIES = (FILES, OUTSIDE, RANKS, TRACE, ANNOTATIONS, VERIFIED)
_LOG = re.compile(rf"(?:{RANKS}/\d{{1,7}}/)?(?:{'|'.join(map(re.escape, LOGS))})")
_REMOVED = ".gone-"
_RESTORE = "restore the record from a copy, or remove the run with `repro-env runs rm`"
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAME = re.compile(r"\d{8}T\d{6}Z-.+-[0-9a-f]{8}")
"""The name of a run's directory."""


class Run(msgspec.Struct, frozen=True):
    """A recorded run."""

    directory: Path
    start: Start
    end: End | None
    state: State
    start_digest: str = ""
    """The sha256 of `start.json`."""
    end_digest: str = ""
    """The sha256 of `end.json`; empty if there is none."""

    @property
    def id(self) -> str:
        return self.start.id

    @property
    def short(self) -> str:
        return ids.short(self.id)

    @property
    def files(self) -> Path:
        return self.directory / FILES

    @property
    def tags(self) -> tuple[str, ...] | None:
        """The current tags, sorted; None if the annotations cannot be read. They are read each time."""
        return annotation.current_tags(self.directory)

    @property
    def parents(self) -> tuple[Parent, ...]:
        """The parents that were known when the run started, and those from whose checkpoints it resumed."""
        return (*self.start.parents, *(self.end.resumed if self.end is not None else ()))

    @property
    def ending(self) -> str:
        """How the run ended, in a few words, or its state if it did not end."""
        return self.state if self.end is None else ending_of(self.end.outcome)

    @property
    def intact(self) -> bool | None:
        """Whether `start.json` still has the sha256 in `end.json`; None if `end.json` does not have it."""
        if self.end is None or self.end.start is None:
            return None
        return self.end.start == self.start_digest


def ending_of(outcome: Outcome) -> str:
    """Return how a run ended, in a few words."""
    text = f"signal {outcome.signal}" if outcome.signal else f"exit {outcome.exit_code}"
    if outcome.interrupted:
        text = f"interrupted by signal {outcome.interrupted}" + (f", {text}" if outcome.signal != outcome.interrupted else "")
    text += ", time limit" if outcome.timed_out else ""
    return f"{text}, out of memory" if outcome.out_of_memory else text


class Unreadable(msgspec.Struct, frozen=True):
    """The directory of a run with an unreadable record, and the reason."""

    directory: Path
    why: ReproEnvError


class Recording:
    """The record of a run that is running. Holds the lock of its directory, if this process made it."""

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self.start_digest = ""
        """The digest of `start.json`; empty until it is written."""
        self._lock = lock

    def start(self, start: Start) -> None:
        """Write `start.json` and point `latest` to this run."""
        data = codec.pretty(start)
        write_once(self.directory / START, data)
        self.start_digest = codec.digest_of(data)
        point_latest(self.directory)

    def finish(self, end: End) -> None:
        """Write `end.json` and release the lock."""
        write_once(self.directory / END, codec.pretty(end))
        self.close()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Remove the directory of a run whose command did not start."""
        runs = self.directory.parent
        remove_tree(self.directory)
        self.close()
        _repoint(runs)


def name_of(started: datetime, command: Sequence[str], run_id: str) -> str:
    """Return the name of a run's directory: `<UTC>-<script>-<short id>`."""
    return f"{started.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}-{script_of(command)}-{ids.short(run_id)}"


def script_of(command: Sequence[str]) -> str:
    """Return the name of the script, module or program in a command, in a form that is safe in a file name."""
    words = list(command)
    if words[:1] == ["-m"] and len(words) > 1:
        word = words[1]
    elif words[:1] == ["-c"]:
        word = "python-c"
    else:
        word = Path(words[0]).name if words else ""
        word = word.removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.")[:40].rstrip("-.") or "run"


def begin(runs: Path, name: str, *, more: Sequence[str] = ()) -> Recording:
    """Create and lock the directory of a run, with the directory `files` and those in `more`.

    Raises `RecordError` if it cannot be created, and `DiskError` if the disk is full. Nothing is left behind in either case.
    """
    directory = runs / name
    created = False
    hint = "name another directory with --runs DIR"
    with os_errors_as(RecordError, "the directory of the run cannot be created", where=directory, hint=hint), room(runs):
        try:
            runs.mkdir(parents=True, exist_ok=True)
            directory.mkdir()
            created = True
            for subdirectory in (FILES, *more):
                (directory / subdirectory).mkdir()
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            lock_file(lock)  # waits at most for a reader, which is in `is_running`
            os.write(lock, os.uname().nodename.encode())
        except OSError:
            if created:
                remove_tree(directory)
            raise
    return Recording(directory, lock)


def point_latest(directory: Path) -> None:
    """Point `latest` to this run. A file or directory with this name is not replaced."""
    link = directory.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    temporary = directory.parent / f".latest.{secrets.token_hex(6)}"
    with contextlib.suppress(OSError):  # some file systems have no symlinks; `find` then uses the newest name
        temporary.symlink_to(directory.name)
        temporary.replace(link)


def _repoint(runs: Path) -> None:
    """Point `latest` to the newest run if its target was removed."""
    link = runs / LATEST
    if not link.is_symlink() or link.exists():
        return
    remaining = directories(runs)
    if remaining:
        point_latest(remaining[0])
    else:
        link.unlink(missing_ok=True)


def directories(runs: Path) -> list[Path]:
    """Return the directories of runs, newest first."""
    return [runs / name for name, is_directory in named_as_runs(runs) if is_directory]


def non_directories(runs: Path) -> list[Unreadable]:
    """Return the entries that are named like a run but are not directories. `runs list` shows them."""
    why = "is not a directory, or is a symbolic link; a run must be a directory"
    hint = "remove it, or copy the run here with all its files"
    return [
        Unreadable(runs / name, RecordError(why, where=str(runs / name), hint=hint))
        for name, is_directory in named_as_runs(runs)
        if not is_directory
    ]


def named_as_runs(runs: Path) -> list[tuple[str, bool]]:
    """Return the names of the entries that are named like a run, newest first, and whether each is a directory."""
    hint = "name the directory of the runs with --runs DIR"
    with os_errors_as(RecordError, "cannot be read as a directory", where=runs, hint=hint):
        try:
            with os.scandir(runs) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if NAME.fullmatch(entry.name)]
        except FileNotFoundError:
            return []
    return sorted(found, reverse=True)


def read(directory: Path) -> Run:
    """Read the record of a run.

    Raises `SpecError` if it is damaged, `SpecVersionError` if a newer version wrote it, and `RecordError` if a file is
    missing or cannot be read.
    """
    start_path = directory / START
    with _reading(start_path):
        try:
            _check_directories(directory)
            data = read_regular(start_path, LARGEST)
        except FileNotFoundError as error:
            hint = "restore the file from a copy, or remove the directory if its run never started"
            raise RecordError(f"the run has no start.json: {error.strerror}", where=str(directory), hint=hint) from None
    start = _decode(data, Start, "repro-env/run-start", start_path)
    if not _ID.fullmatch(start.id):
        raise SpecError("the id of the run is not a UUID", where=str(start_path), hint=_RESTORE)
    end_path = directory / END
    # Checked first: a run writes end.json before it releases its lock, so a run that ends now is not read as interrupted.
    state: State = "running" if is_running(directory) else "interrupted"
    with _reading(end_path):
        try:
            end_data = read_regular(end_path, LARGEST)
        except FileNotFoundError:
            return Run(directory, start, None, state, codec.digest_of(data))
    end = _decode(end_data, End, "repro-env/run-end", end_path)
    return Run(directory, start, end, "done", codec.digest_of(data), codec.digest_of(end_data))


def logs(directory: Path) -> list[Path]:
    """Return the paths that the logs of a run can have, in order: those of the run, or of each process that shares it."""
    ranks = sorted(directory.glob(f"{RANKS}/*"), key=lambda path: (len(path.name), path.name))
    return [parent / name for parent in (directory, *ranks) for name in LOGS]


def is_log(path: str) -> bool:
    """Whether a log of a run can have this path in its directory."""
    return _LOG.fullmatch(path) is not None


def digest(path: Path) -> str:
    """Return the `sha256:<hex>` of a record file; empty if it cannot be read."""
    try:
        return codec.digest_of(read_regular(path, LARGEST))
    except OSError:
        return ""


def _check_directories(directory: Path) -> None:
    """Raise `OSError` if the directory of the run, or a directory in it, is a symlink or a file."""
    expect(directory.lstat().st_mode, stat.S_IFDIR, str(directory))
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name in _DIRECTORIES:
                expect(entry.stat(follow_symlinks=False).st_mode, stat.S_IFDIR, entry.path)


def _reading(path: Path) -> AbstractContextManager[None]:
    hint = "give yourself permission to read it, restore it from a copy, or remove the run with `repro-env runs rm`"
    return os_errors_as(RecordError, "the record cannot be read", default=path, hint=hint)


def _decode(data: bytes, kind: type[_Half], family: str, path: Path) -> _Half:
    try:
        codec.schema_of(data, family=family, newest=1, where=str(path))
        return codec.decode(data, kind, where=str(path))
    except SpecVersionError:
        raise
    except SpecError as error:
        raise SpecError(error.what, where=error.where, hint=_RESTORE) from None


def is_running(directory: Path) -> bool:
    """Whether a process holds the lock of the run, or of its part of it. If another machine holds locks that this one does not see, it is assumed."""
    return any(is_locked(path) for path in (directory / LOCK, *directory.glob(f"{RANKS}/*/{LOCK}")))


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock, as `is_running`."""
    try:
        fd = open_regular(path)
    except OSError:
        return False
    try:
        if not try_lock(fd, fcntl.LOCK_SH):
            return True
        node = os.read(fd, _NODE).decode(errors="replace")
    finally:
        os.close(fd)
    return node not in ("", os.uname().nodename) and bool(filesystem.local_locks(path.parent))


def listing(runs: Path) -> tuple[list[Run], list[Unreadable]]:
    """Return the runs, newest first, and the unreadable ones with their reasons."""
    results = [try_read(directory) for directory in directories(runs)]
    readable = [result for result in results if isinstance(result, Run)]
    unreadable = [result for result in results if isinstance(result, Unreadable)]
    # Ids sort by the millisecond, names only by the second.
    return sorted(readable, key=lambda run: run.start.id, reverse=True), [*unreadable, *non_directories(runs)]


def attempts(runs: Sequence[Run], run_id: str) -> list[Run]:
    """Return a run and the runs that resumed it, one after the other, oldest first. `runs`: newest first. Pure."""
    found: dict[str, Run] = {}
    for run in reversed(runs):
        if run.id == run_id or run.start.resume_of in found:
            found[run.id] = run
    return list(found.values())


def try_read(directory: Path) -> Run | Unreadable:
    """Return the record of a run, or why it cannot be read."""
    try:
        return read(directory)
    except ReproEnvError as error:
        return Unreadable(directory, error)


def find(runs: Path, word: str) -> Path:
    """Return the directory of a run. `word`: `latest`, an id, a short id, the directory's name, or the start of one of these.

    Raises `RecordError` if no run matches, or more than one.
    """
    all_runs = directories(runs)
    if word == LATEST:
        if not all_runs:
            raise RecordError("this directory does not contain a run", where=str(runs), hint="start a run with `repro-env exec`")
        link = runs / LATEST
        target = runs / link.readlink() if link.is_symlink() else all_runs[0]
        return target if target in all_runs else all_runs[0]
    matches = ids.matching(word, all_runs, lambda directory: (directory.name, ids.short(directory.name)))
    matches = matches or ids.matching(word, all_runs, lambda directory: (_id_of(directory),))
    if not matches:
        hint = "list the runs with `repro-env runs list`" if all_runs else "name the directory of the runs with --runs DIR"
        raise RecordError(f"the run {word!r} does not exist", where=str(runs), hint=hint)
    if len(matches) > 1:
        names = ", ".join(directory.name[-ids.SHORT :] for directory in matches[:5])
        raise RecordError(f"{word!r} matches {len(matches)} runs: {names}", where=str(runs), hint="enter more of the id")
    return matches[0]


def _id_of(directory: Path) -> str:
    try:
        return read(directory).start.id
    except ReproEnvError:
        return ""


def remove(directory: Path, *, force: bool = False) -> None:
    """Remove a run and its outputs, and the files of its job. Raises `RecordError` if it is running, unless `force`."""
    if not force and is_running(directory):
        raise RecordError("the run is still running", where=directory.name, hint="wait until it ends, or stop it first")
    # The directory is renamed first, so that a partly removed run does not look like a run. `tidy` finishes killed removals.
    hidden = directory.with_name(f"{_REMOVED}{directory.name}")
    with os_errors_as(RecordError, "the run cannot be removed", default=directory, hint="remove it as its owner"):
        if directory.exists():
            directory.rename(hidden)
        remove_tree(hidden)
        for job in (directory.parent / JOBS).glob(f"*{directory.name[-ids.SHORT :]}"):
            remove_tree(job)
    _repoint(directory.parent)


def tidy(runs: Path) -> None:
    """Finish removals of runs that were killed. Directories that cannot be removed stay."""
    for path in runs.glob(f"{_REMOVED}*"):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                remove_tree(path)
