"""Run records on disk: one folder a run, `start.json` and `end.json` written once each, never changed.

    runs/20260701T101530Z-train-1f2e3d4c/
        start.json   before the command starts
        end.json     when it is over; not there: interrupted, or still running
        lock         held while the run goes on
        files/       what it wrote in its project
        outside/     what it wrote elsewhere, by absolute path
        stdout.log   what it printed (`run.console`)
        trace/       the steps of its training (`exec --trace`)
        verified/    the verdicts of `verify` (`catalog.verified`)
    runs/latest -> the newest run's folder

A run is running while somebody holds its lock; the kernel frees it when the last process of the run dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from repro_env.catalog import ids
from repro_env.io.files import atomic_write, expect, open_regular, read_regular, remove_tree, room
from repro_env.model import codec
from repro_env.model.errors import DiskError, RecordError, ReproEnvError, SpecError, SpecVersionError
from repro_env.model.run import End, Start

_Half = TypeVar("_Half", Start, End)
State = Literal["done", "running", "interrupted"]
LATEST = "latest"
TRACE = "trace"
"""In a run's folder: the steps of training, one file a process."""
LARGEST = 256 << 20
"""Bytes of a record's file that are read; a million outputs are about 150 MB."""
_DIRECTORIES = ("files", "outside", TRACE, "annotations", "verified")
_GONE = ".gone-"
_RESTORE = "a record is never written again: restore it from a copy, or remove the run with `repro-env runs rm`"
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME = re.compile(r"\d{8}T\d{6}Z-.+-[0-9a-f]{8}")


class Run(msgspec.Struct, frozen=True):
    """One recorded run, as its folder tells it."""

    folder: Path
    start: Start
    end: End | None
    state: State

    @property
    def short(self) -> str:
        return ids.short(self.start.id)

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def intact(self) -> bool | None:
        """Whether `start.json` is the one that `end.json` speaks of, read now; None where nothing speaks of it."""
        if self.end is None or self.end.start is None:
            return None
        return self.end.start == digest(self.folder / "start.json")


class Unreadable(msgspec.Struct, frozen=True):
    """A run folder whose record cannot be read, and why."""

    folder: Path
    why: ReproEnvError


class Recording:
    """A run that is going on: holds the lock of its folder."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.started = ""
        """Digest of `start.json`, once it is written."""
        self._lock = lock

    def start(self, start: Start) -> None:
        """Write `start.json`, and point `latest` here."""
        data = codec.pretty(start)
        _write_once(self.folder / "start.json", data)
        self.started = f"sha256:{hashlib.sha256(data).hexdigest()}"
        point_latest(self.folder)

    def finish(self, end: End) -> None:
        """Write `end.json` and free the lock."""
        _write_once(self.folder / "end.json", codec.pretty(end))
        self.close()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """The command never started: take the folder away again."""
        runs = self.folder.parent
        remove_tree(self.folder)
        self.close()
        _repoint(runs)


def name_of(started: datetime, command: Sequence[str], run_id: str) -> str:
    """`<UTC>-<script>-<short id>`."""
    return f"{started.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}-{script_of(command)}-{ids.short(run_id)}"


def script_of(command: Sequence[str]) -> str:
    """One word for what runs: the script's name, the module, or the program; safe as part of a file name."""
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
    """Make the run's folder with `files/` (and `more` folders) in it and take its lock.

    Raises `RecordError` when it cannot be made, `DiskError` when there is no room; nothing is left then.
    """
    folder = runs / name
    made = False
    try:
        with room(runs):
            runs.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            made = True
            for below in ("files", *more):
                (folder / below).mkdir()
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, DiskError) as error:
        if made:
            remove_tree(folder)
        if isinstance(error, DiskError):
            raise
        raise RecordError(
            f"the run's folder cannot be made: {error.strerror}", where=str(folder), hint="name another place with --runs DIR"
        ) from None
    return Recording(folder, lock)


def _write_once(path: Path, data: bytes) -> None:
    try:
        atomic_write(path, data)
        path.chmod(0o444)
    except OSError as error:
        raise RecordError(
            f"cannot be written: {error.strerror}", where=str(path), hint="free some room, or mend its folder"
        ) from None


def point_latest(folder: Path) -> None:
    """Let `latest` name this run. A plain file or folder of that name is left as it is."""
    link = folder.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    temporary = folder.parent / f".latest.{secrets.token_hex(6)}"
    with contextlib.suppress(OSError):  # a file system without symlinks: the newest name says the same
        temporary.symlink_to(folder.name)
        temporary.replace(link)


def _repoint(runs: Path) -> None:
    """Let `latest` name the newest run that is still there."""
    link = runs / LATEST
    if not link.is_symlink() or link.exists():
        return
    left = folders(runs)
    if left:
        point_latest(left[0])
    else:
        link.unlink(missing_ok=True)


def folders(runs: Path) -> list[Path]:
    """Run folders, newest first."""
    return [path for path in _named_as_runs(runs) if path.is_dir() and not path.is_symlink()]


def impostors(runs: Path) -> list[Unreadable]:
    """Entries that are named like a run but are not directories. They are not read, and `runs list` names them."""
    why = "is not a directory, or is a symbolic link; a run must be a directory"
    hint = "remove it, or copy the run here with all its files"
    return [
        Unreadable(path, RecordError(why, where=str(path), hint=hint))
        for path in _named_as_runs(runs)
        if path.is_symlink() or not path.is_dir()
    ]


def _named_as_runs(runs: Path) -> list[Path]:
    """Sorted, the newest first."""
    try:
        names = [name for name in os.listdir(runs) if _NAME.fullmatch(name)]  # noqa: PTH208
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(
            f"cannot be read as a directory: {error.strerror}",
            where=str(runs),
            hint="name the directory of the runs with --runs DIR",
        ) from None
    return [runs / name for name in sorted(names, reverse=True)]


def read(folder: Path) -> Run:
    """Raises `SpecError` or `SpecVersionError` for a record that cannot be read, `RecordError` where there is none."""
    started = folder / "start.json"
    try:
        _check_directories(folder)
        data = read_regular(started, LARGEST)
    except FileNotFoundError as error:
        raise RecordError(
            f"has no record: {error.strerror}", where=str(folder), hint="it never started, or its files were moved"
        ) from None
    except OSError as error:
        raise _unreadable(error, started) from None
    start = _decoded(data, Start, "repro-env/run-start", started)
    if not _ID.fullmatch(start.id):
        raise SpecError("has an id that is not a UUID", where=str(started), hint=_RESTORE)
    ended = folder / "end.json"
    try:
        data = read_regular(ended, LARGEST)
    except FileNotFoundError:
        return Run(folder, start, None, "running" if is_running(folder) else "interrupted")
    except OSError as error:
        raise _unreadable(error, ended) from None
    return Run(folder, start, _decoded(data, End, "repro-env/run-end", ended), "done")


def digest(path: Path) -> str:
    """`sha256:<hex>` of a file of a record; empty if it cannot be read."""
    try:
        return f"sha256:{hashlib.sha256(read_regular(path, LARGEST)).hexdigest()}"
    except OSError:
        return ""


def _check_directories(folder: Path) -> None:
    """Raises `OSError` where the run's directory, or one in it, is a symlink or not a directory."""
    for path in (folder, *(folder / name for name in _DIRECTORIES)):
        if os.path.lexists(path):
            expect(path.lstat().st_mode, stat.S_IFDIR, str(path))


def _unreadable(error: OSError, path: Path) -> RecordError:
    hint = "restore it from a copy, make it readable for you, or remove the run with `repro-env runs rm`"
    return RecordError(f"cannot be read: {error.strerror}", where=str(error.filename or path), hint=hint)


def _decoded(data: bytes, into: type[_Half], family: str, path: Path) -> _Half:
    try:
        codec.schema_of(data, family=family, newest=1, where=str(path))
        return codec.decode(data, into, where=str(path))
    except SpecVersionError:
        raise
    except SpecError as error:
        raise SpecError(error.what, where=error.where, hint=_RESTORE) from None


def is_running(folder: Path) -> bool:
    """Whether some process still holds the run's lock."""
    try:
        fd = open_regular(folder / "lock")
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def listing(runs: Path) -> tuple[list[Run], list[Unreadable]]:
    """Every run, newest first; and those that cannot be read, each with its reason."""
    read_all = [_try(folder) for folder in folders(runs)]
    good = [one for one in read_all if isinstance(one, Run)]
    bad = [one for one in read_all if isinstance(one, Unreadable)]
    # Ids sort by the millisecond, names only by the second.
    return sorted(good, key=lambda run: run.start.id, reverse=True), [*bad, *impostors(runs)]


def _try(folder: Path) -> Run | Unreadable:
    try:
        return read(folder)
    except ReproEnvError as error:
        return Unreadable(folder, error)


def find(runs: Path, word: str) -> Path:
    """The folder of one run: `latest`, a short id, an id, the folder's name, or an unambiguous beginning of those.

    Raises `RecordError` when there is none, or more than one.
    """
    there = folders(runs)
    hint = "`repro-env runs list` shows them" if there else f"nothing ran yet, or not beside this spec: {runs} is empty"
    if word == LATEST:
        if not there:
            raise RecordError("there is no run yet", where=str(runs), hint="start one with `repro-env exec`")
        link = runs / LATEST
        named = runs / link.readlink() if link.is_symlink() else there[0]
        return named if named in there else there[0]
    matches = [folder for folder in there if word in (folder.name, folder.name[-ids.SHORT :])]
    if not matches and word:
        matches = [folder for folder in there if folder.name.startswith(word) or folder.name[-ids.SHORT :].startswith(word)]
        matches = matches or [folder for folder in there if _id_of(folder).startswith(word)]
    if not matches:
        raise RecordError(f"there is no run {word!r}", where=str(runs), hint=hint)
    if len(matches) > 1:
        names = ", ".join(folder.name[-ids.SHORT :] for folder in matches[:5])
        raise RecordError(f"{word!r} means {len(matches)} runs: {names}", where=str(runs), hint="give more of the id")
    return matches[0]


def _id_of(folder: Path) -> str:
    try:
        return read(folder).start.id
    except ReproEnvError:
        return ""


def remove(folder: Path, *, force: bool = False) -> None:
    """Take a run away, its outputs too. Raises `RecordError` while it is running, unless `force`."""
    if not force and is_running(folder):
        raise RecordError("is still running", where=folder.name, hint="wait for its end, or stop it first")
    # First out of sight: half a run must not look like one (`tidy` has what a killed removal leaves).
    hidden = folder.with_name(f"{_GONE}{folder.name}")
    try:
        if folder.exists():
            folder.rename(hidden)
        remove_tree(hidden)
    except OSError as error:
        where = hidden if hidden.is_dir() else folder
        raise RecordError(f"cannot be removed: {error.strerror}", where=str(where), hint="remove it as its owner") from None
    _repoint(folder.parent)


def tidy(runs: Path) -> None:
    """Take away what removals left that were killed. What cannot be removed stays."""
    for path in runs.glob(f"{_GONE}*"):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                remove_tree(path)
