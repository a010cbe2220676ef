"""The directory of a training's checkpoints: lock it, add checkpoints, choose one to load, and remove old ones."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

from repro_env.checkpoint import files, manifest, ranks
from repro_env.checkpoint import parts as of_parts
from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.manifest import Opened, OtherVersionError


class Best(NamedTuple):
    """A metric, and the sign with which larger values are better."""

    metric: str
    sign: int


def parse_best(text: str) -> Best:
    """Parse `NAME:min` or `NAME:max`. Raises `CheckpointError`."""
    metric, _, direction = text.rpartition(":")
    if not metric or direction not in ("min", "max"):
        raise CheckpointError(
            'the value must be "NAME:min" or "NAME:max"', where=f"best={text!r}", hint="for example best='accuracy:max'"
        )
    return Best(metric, 1 if direction == "max" else -1)


def find_best(newest_first: Sequence[Opened], by: Best) -> Optional[Opened]:
    """Return the checkpoint with the best finite value of the metric, the most recent of equals; None if none has one."""
    candidates = [checkpoint for checkpoint in newest_first if math.isfinite(checkpoint.metric(by.metric))]
    return max(candidates, key=lambda checkpoint: by.sign * checkpoint.metric(by.metric), default=None)


class Directory:
    """A directory of checkpoints. Only rank 0 of a distributed run uses it."""

    def __init__(self, path: str, *, keep: Optional[int], best: Optional[Best]) -> None:
        self.path = path
        self._keep = keep
        self._best = best
        self._lock: Optional[int] = None
        self._broken: set[str] = set()
        """Names of damaged checkpoints. They are never removed, so that the user can inspect them."""

    def open(self) -> None:
        """Create and lock the directory, and remove unfinished checkpoints. Raises `CheckpointError`."""
        if self._lock is not None:
            return
        try:
            os.makedirs(self.path, exist_ok=True)
            self._lock = files.lock(self.path)
            files.sweep(self.path)
        except OSError as error:
            raise write_error(error, self.path) from error

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def add(self, step: int, fill: Callable[[str], dict[str, Any]]) -> str:
        """Add a checkpoint and return its path. `fill` writes files to a directory and returns the facts of the manifest.

        Raises `CheckpointError` for every failure, because other errors may not be picklable for the other ranks. Previous
        checkpoints are kept then.
        """
        self.open()
        try:
            hidden = files.begin(self.path)
            try:
                facts = fill(hidden)
                serial = max([saved.serial for saved in files.listed(self.path)], default=0) + 1
                manifest.write(hidden, {**facts, "serial": serial})
                path = files.show(hidden, self.path, serial, step)
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)  # the next writer removes what cannot be removed now
                raise
        except CheckpointError:
            raise
        except Exception as error:
            raise write_error(error, self.path) from error
        self._remove_old()
        return path

    def choose(self) -> Optional[Opened]:
        """Return the most recent intact checkpoint, or None for an empty directory. Warns about damaged ones.

        Raises `CheckpointError` if all checkpoints are damaged, or if another version of repro-env wrote one.
        """
        checkpoints = _listed(self.path)
        first = ""
        for saved in checkpoints:
            try:
                opened = manifest.read(os.path.join(self.path, saved.name))
                manifest.check(opened)
            except OtherVersionError:  # noqa: PERF203 - each on its own
                raise
            except CheckpointError as error:
                first = first or str(error)
                self._broken.add(saved.name)
                warnings.warn(f"{error}; trying the previous checkpoint", CheckpointWarning, stacklevel=6)
            else:
                return opened
        if checkpoints:
            raise CheckpointError(
                f"all {len(checkpoints)} checkpoints are damaged: {first}",
                where=self.path,
                hint="restore an intact one from a backup, or start in another directory",
            )
        return None

    def _remove_old(self) -> None:
        """Remove all but the last checkpoints and the best one. Unreadable ones stay, so that the user can inspect them."""
        if self._keep is None:
            return
        newest_first = []
        for saved in files.listed(self.path):
            if saved.name not in self._broken:
                with contextlib.suppress(CheckpointError):
                    newest_first.append(manifest.read(os.path.join(self.path, saved.name)))
        best = find_best(newest_first, self._best) if self._best else None
        for checkpoint in reversed(newest_first[self._keep :]):
            if checkpoint is not best:
                files.remove(checkpoint.path)


def find(path: str, best: Optional[str]) -> Opened:
    """Return the checkpoint at a path; in a directory of checkpoints, the most recent intact one or the best.

    Raises `CheckpointError`.
    """
    if os.path.exists(os.path.join(path, files.MANIFEST)):
        checkpoint: Optional[Opened] = manifest.read(path)
    elif best is None:
        checkpoint = Directory(path, keep=None, best=None).choose()
    else:
        newest_first = [manifest.read(os.path.join(path, saved.name)) for saved in _listed(path)]
        checkpoint = find_best(newest_first, parse_best(best))
        if newest_first and not checkpoint:
            raise CheckpointError(
                f"no checkpoint has a number for {best!r}", where=path, hint="pass it to step(...), save(...) or metrics(...)"
            )
    if checkpoint is None:
        hint = "give the path of a checkpoint, or of a directory that contains checkpoints"
        raise CheckpointError("this path does not contain a checkpoint", where=path, hint=hint)
    manifest.check(checkpoint)
    return checkpoint


def load(path: Any, *, best: Optional[str] = None, **parts: Any) -> dict[str, Any]:
    """Load some parts from a checkpoint, and return its manifest.

    If `path` is a directory of checkpoints, the most recent intact one is loaded, or the best one for `best`
    ("accuracy:max"). Use this for evaluation, or to start another training: positions and generators are not restored.
    """
    opened = find(os.path.abspath(os.fspath(path)), best)
    of_parts.load(opened, {name: of_parts.inner(part) for name, part in parts.items()})
    if not ranks.rank():
        manifest.note(opened)
    return opened.facts


def write_error(error: Exception, where: str) -> CheckpointError:
    """Return the error for a checkpoint that could not be written, with a hint."""
    if isinstance(error, CheckpointError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    what = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return CheckpointError(
        f"a checkpoint cannot be written: {what}",
        where=str(getattr(error, "filename", None) or where),
        hint=_HINTS.get(number or 0, "the previous checkpoints are intact"),
    )


_NO_SPACE = "free some disk space, or keep fewer checkpoints with keep=1; the previous checkpoints are intact"
_NO_PERMISSION = "use a directory that this process can write to"
_NOT_A_DIRECTORY = "there is a file with this name: use another directory"
_HINTS = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: _NO_PERMISSION,
    errno.ENOTDIR: _NOT_A_DIRECTORY,
    errno.EEXIST: _NOT_A_DIRECTORY,
}


def _listed(path: str) -> list[files.Saved]:
    try:
        return files.listed(path)
    except OSError as error:
        what = f"this directory cannot be read: {error.strerror}"
        raise CheckpointError(what, where=path, hint="give the directory that contains the checkpoints") from error
