"""The runs that others came from, in an audit: in the same folder, where a mount leads, or in another that was ever seen."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from repro_env.catalog import audit as rule
from repro_env.catalog import ids, records
from repro_env.catalog.audit import Finding
from repro_env.catalog.index import Index
from repro_env.catalog.parents import run_above
from repro_env.catalog.records import Run, Unreadable
from repro_env.catalog.retention import parents
from repro_env.model.errors import ReproEnvError
from repro_env.store.store import Store


def looked(chosen: Sequence[Run], there: Sequence[Run], broken: Sequence[Unreadable], store: Store) -> tuple[list[Finding], int]:
    """What became of the parents of `chosen`, and how many there are. `there`, `broken`: all runs of the folder."""
    near = {run.start.id: run.folder for run in there}
    why = {one.folder.name[-ids.SHORT :]: str(one.why) for one in broken}
    far = _Far(store)
    findings: list[Finding] = []
    count = 0
    for run in chosen:
        named = parents(run)
        found = {one.id: folder for one in named if (folder := near.get(one.id) or far.folder(one.id, run)) is not None}
        ends = {key: records.digest(folder / "end.json") or None for key, folder in found.items()}
        findings += rule.parents(run, named, ends, why)
        count += len(named)
    return findings, count


class _Far:
    """Parents in other folders of runs: where a mount of the run leads, and those that this store has seen."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def folder(self, parent: str, run: Run) -> Path | None:
        return _mounted(parent, run) or self._seen.get(parent)

    @cached_property
    def _seen(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for runs in self._store.seen.folders():
            with contextlib.suppress(ReproEnvError):
                found |= {one.id: Path(one.folder) for one in Index(self._store.runs).listing(runs).runs}
        return found


def _mounted(parent: str, run: Run) -> Path | None:
    for one in run.start.data:
        folder = run_above(Path(one.source))
        if folder is not None:
            with contextlib.suppress(ReproEnvError):
                if records.read(folder).start.id == parent:
                    return folder
    return None
