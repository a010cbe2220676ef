"""The folder of a training's checkpoints: who writes there, which one is gone on from, which stay."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from typing import Any, Optional

from repro_env.checkpoint import files, manifest, retention
from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.manifest import Opened, OtherVersionError
from repro_env.checkpoint.retention import Best


class Folder:
    """Of one process: rank 0 of a distributed run."""

    def __init__(self, path: str, *, keep: Optional[int], best: Optional[Best]) -> None:
        self.path = path
        self._keep = keep
        self._best = best
        self._lock: Optional[int] = None
        self._broken: set[str] = set()
        """Names of those that are passed over, and left for their owner to look at."""

    def open(self) -> None:
        """Be its only writer, and remove what a killed one left. Raises `CheckpointError`."""
        if self._lock is not None:
            return
        try:
            os.makedirs(self.path, exist_ok=True)
            self._lock = files.lock(self.path)
            files.sweep(self.path)
        except OSError as error:
            raise unwritable(error, self.path) from error

    def close(self) -> None:
        """Let others write there."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def add(self, step: int, fill: Callable[[str], dict[str, Any]]) -> str:
        """A new checkpoint: `fill` writes its files into a folder and gives the manifest's facts. Its path.

        Whatever goes wrong is a `CheckpointError`, so that other ranks can be told, and leaves what was there.
        """
        self.open()
        try:
            hidden = files.begin(self.path)
            try:
                facts = fill(hidden)
                serial = max([one.serial for one in files.listed(self.path)], default=0) + 1
                manifest.write(hidden, {**facts, "serial": serial})
                path = files.show(hidden, self.path, serial, step)
            except BaseException:
                files.drop(hidden)
                raise
        except CheckpointError:
            raise
        except Exception as error:
            raise unwritable(error, self.path) from error
        self._tidy()
        return path

    def choose(self) -> Optional[Opened]:
        """The youngest whole one; None for an empty folder. Warns of those that are passed over.

        Raises `CheckpointError` where there are some and none is whole, or where one is of another version.
        """
        there = _listed(self.path)
        first = ""
        for one in there:
            try:
                opened = manifest.read(os.path.join(self.path, one.name))
                manifest.check(opened)
            except OtherVersionError:  # noqa: PERF203 - each on its own
                raise
            except CheckpointError as error:
                first = first or str(error)
                self._broken.add(one.name)
                warnings.warn(f"{error}; the one before is tried", CheckpointWarning, stacklevel=6)
            else:
                return opened
        if there:
            raise CheckpointError(
                f"none of {len(there)} checkpoints is whole: {first}",
                where=self.path,
                hint="put back one that is, or begin in another folder",
            )
        return None

    def _tidy(self) -> None:
        """Remove what need not stay. What cannot be read is left for its owner to look at, and counts for nothing."""
        found = []
        for one in files.listed(self.path):
            if one.name in self._broken:
                continue
            try:
                opened = manifest.read(os.path.join(self.path, one.name))
            except CheckpointError:
                continue
            found.append(retention.Candidate(one.name, one.serial, opened.metrics()))
        for name in retention.going(found, keep=self._keep, by=self._best):
            files.remove(self.path, name)


def named(path: str, best: Optional[str]) -> Opened:
    """A checkpoint at a path; in a folder of them the youngest whole one, or the best. Raises `CheckpointError`."""
    if os.path.exists(os.path.join(path, files.MANIFEST)):
        found: Optional[Opened] = manifest.read(path)
    elif best is None:
        found = Folder(path, keep=None, best=None).choose()
    else:
        there = {one.path: one for one in (manifest.read(os.path.join(path, each.name)) for each in _listed(path))}
        candidates = [retention.Candidate(one.path, one.facts["serial"], one.metrics()) for one in there.values()]
        chosen = retention.finest(candidates, retention.best(best))
        if there and not chosen:
            raise CheckpointError(
                f"no checkpoint has a number for {best!r}", where=path, hint="hand it to step(...), save(...) or metrics(...)"
            )
        found = there[chosen.name] if chosen else None
    if found is None:
        raise CheckpointError("no such checkpoint", where=path, hint="give a checkpoint, or the folder that holds them")
    manifest.check(found)
    return found


def unwritable(error: Exception, where: str) -> CheckpointError:
    """What it was that kept a checkpoint from being written, and what can be done about it."""
    if isinstance(error, CheckpointError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    what = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return CheckpointError(
        f"a checkpoint cannot be written: {what}",
        where=str(getattr(error, "filename", None) or where),
        hint=_HINTS.get(number or 0, "the checkpoints that are there stay good"),
    )


_NO_ROOM = "make room, or keep fewer with keep=1; the checkpoints that are there stay good"
_NO_RIGHT = "give a folder that this process may write to"
_HINTS = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
    errno.ENOTDIR: "a file has this name: give another folder",
    errno.EEXIST: "a file has this name: give another folder",
}


def _listed(path: str) -> list[files.Saved]:
    try:
        return files.listed(path)
    except OSError as error:
        raise CheckpointError(
            f"cannot be read: {error.strerror}", where=path, hint="give the folder that holds the checkpoints"
        ) from error
