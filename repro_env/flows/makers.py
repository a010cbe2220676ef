"""What lies on disk beside the records, and says who made a file: where it lies, manifests of checkpoints, files of runs without an end.

The records that are known are a stage of their own (`flows.known`); here files are looked at, and what cannot be is noted.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.catalog import index, lineage, manifest, outputs, records
from repro_env.catalog.index import Index, Summary
from repro_env.catalog.lineage import Edge
from repro_env.catalog.origin import Origin
from repro_env.catalog.parents import run_above
from repro_env.catalog.records import Run
from repro_env.flows.known import Known
from repro_env.io.files import Found, sha256_of, walk
from repro_env.model.errors import ReproEnvError
from repro_env.store.store import Store


class Makers:
    def __init__(self, known: Known, notes: list[str]) -> None:
        """`notes`: what the user should know is added to it."""
        self._known = known
        self._notes = notes
        self._searched: dict[Path, list[manifest.Found]] = {}

    def place(self, path: Path, digest: str) -> Origin | None:
        """The run in whose files a file lies; only where its record says so, or where it has none yet."""
        folder = run_above(path)
        if folder is None:
            return None
        try:
            run = records.read(folder)
        except ReproEnvError as error:
            self._notes.append(f"it lies among the files of a run whose record cannot be read: {error}")
            return None
        summary = self.summary(run)
        name = outputs.name_of(run.folder, path)
        if run.end is None:
            return Origin(summary, "left", (name,), digest)
        recorded = next((one.sha256 for one in run.end.outputs if one.path == name), None)
        if recorded == digest:
            return Origin(summary, "output", (name,), digest)
        if recorded is None:
            self._notes.append(f"it lies among the files of run {run.short}, which did not record it: it was put there later")
        else:
            self._notes.append(f"it lies among the files of run {run.short}, which recorded {recorded}: it was changed since")
        return None

    def summary(self, run: Run) -> Summary:
        known = self._known.runs.get(run.start.id)
        return known if known is not None and known.folder == str(run.folder) else index.summary(run)

    def claim(self, path: Path, digest: str) -> manifest.Found | None:
        """The manifest beside a file, when it speaks of these bytes."""
        try:
            found = manifest.beside(path)
        except ReproEnvError as error:
            self._notes.append(f"the manifest beside it was not used: {error}")
            return None
        if found is None:
            return None
        if f"sha256:{found.manifest.files[path.name].sha256}" != digest:
            self._notes.append(f"{found.path} names other bytes for it: it was changed since")
            return None
        if found.manifest.run and found.manifest.run not in self._known.runs:
            self._notes.append(f"{found.path} names run {found.manifest.run}, whose record is not known here")
        return found

    def manifests(self) -> list[manifest.Found]:
        """In folders with checkpoints that no record vouches for."""
        mounted = {Path(each.path) for one in self._known.runs.values() for each in one.data if each.role == "checkpoints"}
        return self._manifests([*sorted(mounted), *(one.files for one in self._known.unfinished)])

    def _manifests(self, folders: Iterable[Path]) -> list[manifest.Found]:
        return [one for folder in dict.fromkeys(folders) for one in self._below(folder)]

    def _below(self, folder: Path) -> list[manifest.Found]:
        if folder not in self._searched:
            found = self._searched[folder] = []
            paths, whole = manifest.below(folder)
            if not whole:
                self._notes.append(f"not all of {folder} was searched for checkpoints")
            for path in paths:
                with contextlib.suppress(ReproEnvError):  # somebody else's file, or one that is being written
                    one = manifest.read(path)
                    if one is not None:
                        found.append(one)
        return self._searched[folder]

    def left(self, digest: str, size: int) -> Iterator[Origin]:
        """Runs without an end that have a file of these bytes."""
        for run in self._known.unfinished:
            paths = tuple(one.path for one in _files(run.files) if one.size == size and _is(run.files / one.path, digest))
            if paths:
                yield Origin(run, "left", paths, digest)

    def resumed(self) -> Iterator[Edge]:
        """What runs without an end went on from: only their checkpoints say so."""
        unfinished = {one.id: one for one in self._known.unfinished}
        folders = [one.files for one in unfinished.values()]
        folders += [Path(each.path) for one in unfinished.values() for each in one.data if each.role == "checkpoints"]
        for one in self._manifests(folders):
            parent = one.manifest.parent
            if one.manifest.run in unfinished and parent is not None and parent.run and parent.run != one.manifest.run:
                yield Edge(parent.run, one.manifest.run, "resumed")


def remembered(digest: str, known: Known, store: Store) -> Iterator[str]:
    """Tell of runs whose folder is not there now: no record can be asked, so they are no answer."""
    kept = Index(store.runs)
    for folder in known.missing:
        found = kept.remembered(folder)
        made = [use.run for use in lineage.uses(digest, found.runs, found.outputs) if use.role == "output"]
        for run in made[:3]:
            yield (
                f"{folder} is not there now; as far as is remembered, run {run.short} wrote it there on {run.started}:"
                f" {shlex.join(run.command)}; image {run.image}, spec {run.spec}, source {run.source}, seed {run.seed}"
            )


def _files(folder: Path) -> Iterator[Found]:
    """Plain files below; none where that cannot be told."""
    try:
        yield from (one for one in walk(folder) if one.kind == "file")
    except (OSError, ReproEnvError):
        return


def _is(path: Path, digest: str) -> bool:
    try:
        return f"sha256:{sha256_of(path)}" == digest
    except OSError:
        return False
