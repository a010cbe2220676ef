"""Find the parents of a run: the runs that it starts from, by option, mount or checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from repro_env.runs.records import ids, records
from repro_env.runs.records.notes import Resumed
from repro_env.sandbox import outputs
from repro_env.schema import redact
from repro_env.schema.errors import RecordError, ReproEnvError
from repro_env.schema.run import DataFact, Mount, Parent

if TYPE_CHECKING:
    from repro_env.runs.records.index import Summary

_DIGEST = re.compile(r"[0-9a-f]{64}")


def from_options(words: Sequence[str], runs: Path, cwd: Path) -> tuple[Parent, ...]:
    """Return the parents named with `--parent`.

    Raises `RecordError` if a run does not exist, and `SpecError` if its record cannot be read.
    """
    return _unique(_parent(directory_of(word, runs, cwd), "named") for word in words)


def from_mounts(mounts: Iterable[Mount]) -> tuple[Parent, ...]:
    """Return the runs whose directory, or a path in it, is mounted. A run with an unreadable record is skipped."""
    parents = []
    for mount in mounts:
        directory = run_containing(Path(mount.source))
        if directory is None or mount.kind == "git":
            continue
        path = redact.line(outputs.name_of(directory, Path(mount.source)))
        try:
            parents.append(_parent(directory, mount.kind, path=path))
        except ReproEnvError:
            continue
    return _unique(parents)


def from_copies(
    mount: DataFact, files: Mapping[str, str], runs: Mapping[str, Summary], outputs: Mapping[str, bytes]
) -> tuple[Parent, ...]:
    """Return the runs with outputs of which mounted data has copies.

    A parent has the path and digest of the file if there is only one: it is not known which of several files the run read.
    If several runs have the same output, the first one counts. A run with the same mount only copied the file and is not
    a parent.

    `files`: path below the mount -> sha256 in hex. `runs`, `outputs`: as in `runs.lineage.families`.
    """
    from repro_env.runs.lineage import families

    wanted = {bytes.fromhex(sha256) for sha256 in files.values() if f"sha256:{sha256}" != families.EMPTY}
    users = {run.id for run in runs.values() if any(datum.digest == mount.digest for datum in run.data)}
    producers = families.producers(wanted, {id_: run for id_, run in runs.items() if id_ not in users}, outputs)
    parents: dict[str, Parent] = {}
    for path, sha256 in sorted(files.items()):
        ids_ = producers.get(bytes.fromhex(sha256))
        if not ids_:
            continue
        parent = Parent(
            id=min(ids_), record=runs[min(ids_)].end or None, how="data", path=redact.line(path), sha256=f"sha256:{sha256}"
        )
        if parents.setdefault(parent.id, parent).sha256 != parent.sha256:
            parents[parent.id] = msgspec.structs.replace(parent, path="", sha256=None)
    return tuple(parents.values())


def from_checkpoints(checkpoints: Iterable[Resumed], runs: Sequence[Path], run_id: str) -> tuple[Parent, ...]:
    """Return the runs that wrote the checkpoints from which the run `run_id` resumed, without the run itself.

    `runs`: the directories of runs to search for records. The parent has no id if no recorded run wrote the checkpoint.
    """
    parents = []
    for checkpoint in checkpoints:
        if checkpoint.run == run_id:
            continue
        matches = (_find_by_id(runs_directory, checkpoint.run) for runs_directory in runs) if checkpoint.run else ()
        directory = next(filter(None, matches), None)
        parents.append(
            Parent(
                id=checkpoint.run,
                record=None if directory is None else end_digest(directory),
                how="resumed",
                path=checkpoint.path,
                sha256=f"sha256:{checkpoint.sha256}" if _DIGEST.fullmatch(checkpoint.sha256) else None,
                step=checkpoint.step,
            )
        )
    return _unique(parents)


def directory_of(word: str, runs: Path, cwd: Path) -> Path:
    """Return the directory of a run. `word`: the path of this directory, or a name that `records.find` accepts.

    Raises `RecordError` if the run does not exist, or if its name is ambiguous.
    """
    path = cwd / word
    if "/" in word and path.is_dir():
        if not (path / "start.json").is_file():
            raise RecordError(
                "this is not the directory of a run", where=word, hint="name a run by its ID, or by its directory in `runs`"
            )
        return path
    return records.find(runs, word)


def run_containing(path: Path) -> Path | None:
    """Return the directory of the run that an absolute path is, or that has the path among its files. None if there is none."""
    if (path / "start.json").is_file() and (path / "files").is_dir():
        return path
    for files in (path, *path.parents):
        if files.name in ("files", outputs.OUTSIDE) and (files.parent / "start.json").is_file():
            return files.parent
    return None


def end_digest(directory: Path) -> str | None:
    """Return the `sha256:<hex>` of the `end.json` of a run; None if it cannot be read."""
    return records.digest(directory / "end.json") or None


def _parent(directory: Path, how: Literal["named", "data", "checkpoints"], path: str = "") -> Parent:
    return Parent(id=records.read(directory).start.id, record=end_digest(directory), how=how, path=path)


def _find_by_id(runs: Path, id_: str) -> Path | None:
    """Return the directory of the run with this complete id."""
    try:
        directories = records.directories(runs)
    except ReproEnvError:
        return None
    for directory in directories:
        if directory.name.endswith(f"-{ids.short(id_)}"):
            try:
                if records.read(directory).start.id == id_:
                    return directory
            except ReproEnvError:
                continue
    return None


def _unique(parents: Iterable[Parent]) -> tuple[Parent, ...]:
    return tuple(dict.fromkeys(parents))
