"""The runs that a run starts from: named, mounted, or resumed from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from repro_env.catalog import ids, outputs, records
from repro_env.catalog.noted import Resumed
from repro_env.model import redact
from repro_env.model.errors import RecordError, ReproEnvError
from repro_env.model.run import DataFact, Mount, Parent

if TYPE_CHECKING:
    from repro_env.catalog.index import Summary

_DIGEST = re.compile(r"[0-9a-f]{64}")


def named(words: Sequence[str], runs: Path, here: Path) -> tuple[Parent, ...]:
    """Of `--parent`. Raises as `folder_of`: `RecordError` for one that is not there, `SpecError` for one that cannot be read."""
    return _once(_parent(folder_of(word, runs, here), "named") for word in words)


def mounted(mounts: Iterable[Mount]) -> tuple[Parent, ...]:
    """Of mounts that lie in a run's files, or are a run's folder. A damaged record above a mount is passed over: it is named nowhere."""
    found = []
    for mount in mounts:
        folder = run_above(Path(mount.source))
        if folder is None or mount.kind == "git":
            continue
        path = redact.line(outputs.name_of(folder, Path(mount.source)))
        try:
            found.append(_parent(folder, mount.kind, path=path))
        except ReproEnvError:
            continue
    return _once(found)


def copied(
    mount: DataFact, files: Mapping[str, str], runs: Mapping[str, Summary], outputs: Mapping[str, bytes]
) -> tuple[Parent, ...]:
    """The runs that made files of mounted data, wherever these are now, each with its file, or without one where it made several:
    which of them the run read is not known.

    `files`: path below the mount -> sha256 in hex. `runs`, `outputs`: as in `catalog.lineage`. Of several runs with the same
    output the first is taken. A run that was given the same data only copied the file, and is no parent.
    """
    from repro_env.catalog import lineage

    wanted = {bytes.fromhex(sha256) for sha256 in files.values() if f"sha256:{sha256}" != lineage.EMPTY}
    given = {run.id for run in runs.values() if any(datum.digest == mount.digest for datum in run.data)}
    made = lineage.makers(wanted, {id_: run for id_, run in runs.items() if id_ not in given}, outputs)
    found: dict[str, Parent] = {}
    for path, sha256 in sorted(files.items()):
        ids_ = made.get(bytes.fromhex(sha256))
        if not ids_:
            continue
        parent = Parent(
            id=min(ids_), record=runs[min(ids_)].end or None, how="data", path=redact.line(path), sha256=f"sha256:{sha256}"
        )
        if found.setdefault(parent.id, parent).sha256 != parent.sha256:
            found[parent.id] = msgspec.structs.replace(parent, path="", sha256=None)
    return tuple(found.values())


def resumed(came: Iterable[Resumed], runs: Sequence[Path], own: str) -> tuple[Parent, ...]:
    """Of what the hooks noted. `runs`: folders to look for their records in. A run that went on from a checkpoint of its
    own (`own`: its id) is not its own parent. A checkpoint made outside of any run has a parent without an id."""
    found = []
    for one in came:
        if one.run == own:
            continue
        folder = next(filter(None, (_of_id(each, one.run) for each in runs)), None) if one.run else None
        found.append(
            Parent(
                id=one.run,
                record=None if folder is None else record(folder),
                how="resumed",
                path=one.path,
                sha256=f"sha256:{one.sha256}" if _DIGEST.fullmatch(one.sha256) else None,
                step=one.step,
            )
        )
    return _once(found)


def folder_of(word: str, runs: Path, here: Path) -> Path:
    """What a user means: a run of this runs folder as `records.find` takes it, or any run's folder by its path.

    Raises `RecordError` when it is not there, or means several.
    """
    path = here / word
    if "/" in word and path.is_dir():
        if not (path / "start.json").is_file():
            raise RecordError("is no run's folder", where=word, hint="name a run by its id, or its folder in `runs`")
        return path
    return records.find(runs, word)


def run_above(path: Path) -> Path | None:
    """The folder of the run that an absolute path is, or among whose files it lies; None where it is and lies in none's."""
    if (path / "start.json").is_file() and (path / "files").is_dir():
        return path
    for files in (path, *path.parents):
        if files.name in ("files", outputs.OUTSIDE) and (files.parent / "start.json").is_file():
            return files.parent
    return None


def record(folder: Path) -> str | None:
    """sha256 of a run's `end.json`; None where there is none that can be read."""
    return records.digest(folder / "end.json") or None


def _parent(folder: Path, how: Literal["named", "data", "checkpoints"], path: str = "") -> Parent:
    return Parent(id=records.read(folder).start.id, record=record(folder), how=how, path=path)


def _of_id(runs: Path, id_: str) -> Path | None:
    """The folder of a run by its whole id."""
    try:
        there = records.folders(runs)
    except ReproEnvError:
        return None
    for folder in there:
        if folder.name.endswith(f"-{ids.short(id_)}"):
            try:
                if records.read(folder).start.id == id_:
                    return folder
            except ReproEnvError:
                continue
    return None


def _once(found: Iterable[Parent]) -> tuple[Parent, ...]:
    return tuple(dict.fromkeys(found))
