"""Find the parents of a run: the runs that it starts from, by option, mount or checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.io.files import walk
from repro_env.runs.lineage.families import EMPTY
from repro_env.runs.lineage.knownruns import AllRuns, read_all_runs
from repro_env.runs.records import ids, records
from repro_env.runs.records.checkpointmanifest import CheckpointParent
from repro_env.runs.records.records import Run
from repro_env.schema import redact
from repro_env.schema.errors import RecordError, ReproEnvError
from repro_env.schema.run import DataFact, Mount, Parent
from repro_env.schema.rundirectory import FILES, OUTSIDE, START, output_of
from repro_env.store.store import Store

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
        path = redact.line(output_of(Path(mount.source).relative_to(directory).as_posix()) or "")
        try:
            parents.append(_parent(directory, mount.kind, path=path))
        except ReproEnvError:
            continue
    return _unique(parents)


def from_copies(mount: DataFact, files: Mapping[str, str], known: AllRuns) -> tuple[Parent, ...]:
    """Return the runs with outputs of which mounted data has copies.

    A parent has the path and digest of the file if there is only one: it is not known which of several files the run read.
    If several runs have the same output, the first one counts. A run with the same mount only copied the file and is not
    a parent.

    `files`: path below the mount -> sha256 in hex.
    """
    producers: dict[str, str] = {}
    for run_id in sorted(known.runs):
        if not any(datum.digest == mount.digest for datum in known.runs[run_id].start.data):
            for file in known.written.get(run_id, ()):
                producers.setdefault(file.sha256, run_id)
    parents: dict[str, Parent] = {}
    for path, hex_digest in sorted(files.items()):
        sha256 = f"sha256:{hex_digest}"
        run_id = producers.get(sha256, "")
        if not run_id or sha256 == EMPTY:
            continue
        parent = Parent(
            id=run_id, record=known.runs[run_id].end_digest or None, how="data", path=redact.line(path), sha256=sha256
        )
        if parents.setdefault(run_id, parent).sha256 != sha256:
            parents[run_id] = msgspec.structs.replace(parent, path="", sha256=None)
    return tuple(parents.values())


def from_data(data: Sequence[DataFact], mounts: Sequence[Mount], runs: Path, store: Store) -> tuple[Parent, ...]:
    """Return the runs whose outputs are mounted, from their run directories or as copies with the same content."""
    copies = [fact for fact in data if fact.kind == "data" and run_containing(Path(fact.source)) is None]
    known = read_all_runs([runs], store) if copies else AllRuns({}, {})
    found = list(from_mounts(mounts))
    for fact in copies if known.runs else ():
        root = Path(fact.source)
        files = store.hashes.of(root, list(walk(root))) if root.is_dir() else {root.name: (fact.digest or "")[7:]}
        found += from_copies(fact, files, known)
    return tuple(found)


def from_checkpoints(checkpoints: Iterable[CheckpointParent], runs: Sequence[Path], run_id: str) -> tuple[Parent, ...]:
    """Return the runs that wrote the checkpoints from which the run `run_id` resumed, without the run itself.

    `runs`: the directories of runs to search for records. The parent has no id if no recorded run wrote the checkpoint.
    """
    parents = []
    for checkpoint in checkpoints:
        if checkpoint.run == run_id:
            continue
        matches = (_find_by_id(runs_directory, checkpoint.run) for runs_directory in runs) if checkpoint.run else ()
        run = next(filter(None, matches), None)
        parents.append(
            Parent(
                id=checkpoint.run,
                record=None if run is None else run.end_digest or None,
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
        if not (path / START).is_file():
            raise RecordError(
                "this is not the directory of a run", where=word, hint="name a run by its ID, or by its directory in `runs`"
            )
        return path
    return records.find(runs, word)


def run_containing(path: Path) -> Path | None:
    """Return the directory of the run that an absolute path is, or that has the path among its files. None if there is none."""
    if (path / START).is_file() and (path / FILES).is_dir():
        return path
    for files in (path, *path.parents):
        if files.name in (FILES, OUTSIDE) and (files.parent / START).is_file():
            return files.parent
    return None


def _parent(directory: Path, how: Literal["named", "data", "checkpoints"], path: str = "") -> Parent:
    run = records.read(directory)
    return Parent(id=run.start.id, record=run.end_digest or None, how=how, path=path)


def _find_by_id(runs: Path, id_: str) -> Run | None:
    """Return the run with this complete id."""
    try:
        directories = records.directories(runs)
    except ReproEnvError:
        return None
    for directory in directories:
        if directory.name.endswith(f"-{ids.short(id_)}"):
            try:
                run = records.read(directory)
            except ReproEnvError:
                continue
            if run.start.id == id_:
                return run
    return None


def _unique(parents: Iterable[Parent]) -> tuple[Parent, ...]:
    return tuple(dict.fromkeys(parents))
