"""The stories of `repro-env runs`: which runs there are, what they left, and taking it home or away."""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from repro_env.catalog import records
from repro_env.catalog.index import Index, Listing
from repro_env.catalog.outputs import OUTSIDE, place
from repro_env.catalog.records import Run
from repro_env.flows.locate import FILE, FOLDER
from repro_env.io.files import Found, room, sha256_of, walk
from repro_env.model.errors import DiskError, RecordError, StoreError
from repro_env.model.run import Output
from repro_env.model.talk import Tell
from repro_env.store.store import Store


def where(given: Path | None, start: Path) -> Path:
    """The runs folder: the given one, else the one beside the nearest spec from `start` upwards, else the nearest `runs`.

    The spec is not read: runs can be looked at whatever became of it.
    """
    if given is not None:
        return given
    for folder in (start, *start.parents):
        if (folder / FOLDER / FILE).is_file() or (folder / "runs" / records.LATEST).is_symlink():
            return folder / "runs"
    raise RecordError(
        f"no {FOLDER}/{FILE} and no runs here or above",
        where=str(start),
        hint="go to the project's folder, or name one with --runs DIR",
    )


def listed(runs: Path, tell: Tell) -> Listing:
    """Every run of a folder, from the index of the store; without a store that can be used, from the records themselves.

    The store remembers the folder (`store.seen`). Raises `RecordError` when `runs` is no folder.
    """
    try:
        store = Store.open()
    except (StoreError, DiskError) as error:
        tell.detail(f"note: there is no store to keep an index in, so every record was read: {error}")
        return Index(None).listing(runs)
    if runs.is_dir():
        store.seen.see(runs)
    return Index(store.runs).listing(runs)


def settle(run: Run, store: Store) -> None:
    """Leave only outputs in the files of a run that was interrupted before it could do so itself."""
    if run.state != "interrupted":
        return
    from repro_env.run import hostcopy, outside
    from repro_env.run.workspace import harvest

    with contextlib.suppress(OSError):
        tree = None if run.start.source.siblings_tree is None else store.layers.path(run.start.source.siblings_tree)
        outside.settle(run.folder, [] if tree is None else [tree])
        snapshot = store.layers.path(run.start.source.digest)
        if snapshot is not None:
            if run.start.runner == "host":
                hostcopy.restore(run.folder, run.start.source.path)
            harvest(run.files, snapshot)


def chosen(run: Run, glob: str | None) -> tuple[Found, ...]:
    """The files and symlinks of a run that a glob means: it matches a whole path, a name, or a folder's all.

    Raises `RecordError` when there is none.
    """
    if run.files.is_symlink():
        raise RecordError("is a symbolic link, and must be a directory", where=str(run.files), hint="restore the run from a copy")
    recorded = _recorded(run)
    there = [one for one in _walk(run) if one.kind in ("file", "link") or one.path in recorded]
    if glob is None:
        picked = there
    else:
        folder = glob.rstrip("/") + "/"
        picked = [
            found
            for found in there
            if fnmatchcase(found.path.rpartition("/")[2], glob)
            or any(fnmatchcase(path, glob) or path.startswith(folder) for path in (found.path, _shown(found.path)))
        ]
    if not picked:
        what = "has no outputs" if not there else f"has no output that {glob!r} means"
        raise RecordError(what, where=run.folder.name, hint=f"`repro-env runs show {run.short}` lists them")
    return tuple(picked)


def _walk(run: Run) -> Iterator[Found]:
    """What a run wrote: in its project, and by absolute path outside it. While it runs, the latter is not sorted out yet."""
    outside = run.folder / OUTSIDE
    if run.files.is_dir():
        yield from walk(run.files)
    if outside.is_dir() and run.state != "running":
        yield from (msgspec.structs.replace(found, path=f"/{found.path}") for found in walk(outside))


def _shown(path: str) -> str:
    """Where a copy of an output is, below the directory for all of them."""
    return f"{OUTSIDE}{path}" if path.startswith("/") else path


def _recorded(run: Run) -> dict[str, Output]:
    return {one.path: one for one in run.end.outputs} if run.end is not None else {}


def get(run: Run, glob: str | None, target: Path, *, force: bool, tell: Tell) -> tuple[Path, ...]:
    """Copy outputs below `target`, at the paths where the run wrote them; what it wrote outside the project below `outside/`.

    Returns the copies.

    A symlink that leads out of the outputs is left out and reported. Raises `RecordError` before the first copy when one
    would overwrite something (unless `force`), would be written through a symlink, or when a file is no longer what the
    record says; `DiskError` when they do not fit.
    """
    from repro_env.run.workspace import copy_file

    recorded = _recorded(run)
    picked = []
    for found in chosen(run, glob):
        if found.path not in recorded and found.kind == "link" and _leads_out(found):
            tell.warn(f"note: left out: {found.path} is a symbolic link that leads out of the outputs, to {found.target}")
        else:
            picked.append(found)
    if not picked:
        raise RecordError("has no output that can be copied", where=run.folder.name, hint=f"inspect {run.files}")
    for found in picked:
        here = target / _shown(found.path)
        for above in here.relative_to(target).parents:
            if above != Path() and (target / above).is_symlink():
                raise RecordError(
                    "is a symbolic link: the output would be written where it leads",
                    where=str(target / above),
                    hint="name another directory with --to DIR",
                )
        if not force and (here.is_symlink() or here.exists()):
            raise RecordError(
                "is there already", where=str(here), hint="name another folder with --to DIR, or overwrite with --force"
            )
        if here.is_dir() and not here.is_symlink():
            raise RecordError("is a folder, and the output is a file", where=str(here), hint="name another folder with --to DIR")
        if found.path in recorded and (changed := _changed(run, found, recorded[found.path])):
            raise RecordError(
                f"is not what the run recorded: {changed}",
                where=str(place(run.files, found.path)),
                hint="leave it out with a GLOB",
            )
    made = []
    with room(target):
        for found in picked:
            here = target / _shown(found.path)
            try:
                here.parent.mkdir(parents=True, exist_ok=True)
                if force:
                    here.unlink(missing_ok=True)
                if found.kind == "link":
                    here.symlink_to(found.target)
                else:
                    copy_file(place(run.files, found.path), here, below=run.folder)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise RecordError(
                    f"cannot be copied: {error.strerror}",
                    where=str(error.filename or here),
                    hint="leave it out with a GLOB, or name another directory with --to DIR",
                ) from None
            made.append(here)
    return tuple(made)


def _leads_out(link: Found) -> bool:
    folder = link.path.rpartition("/")[0]
    return link.target.startswith("/") or posixpath.normpath(f"{folder or '.'}/{link.target}").split("/")[0] == ".."


def _changed(run: Run, found: Found, output: Output) -> str:
    """Why an output differs from the recorded one; empty if it does not."""
    if found.kind == "file" and found.size != output.size:
        return "it was changed since"
    try:
        same = f"sha256:{sha256_of(place(run.files, found.path), below=run.folder)}" == output.sha256
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return "" if same else "it was changed since"


def remove(runs: Path, words: Sequence[str], *, force: bool) -> tuple[Path, ...]:
    """Remove runs, outputs and all: every one or, when one is not there or still running, none."""
    folders = list(dict.fromkeys(records.find(runs, word) for word in words))
    for folder in folders:
        if not force and records.is_running(folder):
            raise RecordError("is still running", where=folder.name, hint="wait for its end, stop it first, or say --force")
    for folder in folders:
        records.remove(folder, force=force)
    return tuple(folders)
