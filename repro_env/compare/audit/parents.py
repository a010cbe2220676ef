"""Audit of the parents of runs: find them in the same directory, in a mounted one, or in another known directory of runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from repro_env.compare.audit import findings as rule
from repro_env.compare.audit.findings import Finding
from repro_env.runs.lineage.parents import run_containing
from repro_env.runs.records import ids, records
from repro_env.runs.records.index import Index
from repro_env.runs.records.records import Run, Unreadable
from repro_env.runs.retention import parents
from repro_env.schema.errors import ReproEnvError
from repro_env.store.store import Store


def check(
    chosen: Sequence[Run], all_runs: Sequence[Run], unreadable: Sequence[Unreadable], store: Store
) -> tuple[list[Finding], int]:
    """Check the parents of `chosen`; also return their number. `all_runs`, `unreadable`: all runs of the directory."""
    directories = {run.start.id: run.directory for run in all_runs}
    problems = {record.directory.name[-ids.SHORT :]: str(record.why) for record in unreadable}
    elsewhere = _Elsewhere(store)
    findings: list[Finding] = []
    count = 0
    for run in chosen:
        run_parents = parents(run)
        ends = {}
        for parent in run_parents:
            directory = directories.get(parent.id) or elsewhere.find(parent.id, run)
            if directory is not None:
                ends[parent.id] = records.digest(directory / "end.json") or None
        findings += rule.check_parents(run, run_parents, ends, problems)
        count += len(run_parents)
    return findings, count


class _Elsewhere:
    """Parents in other directories: those that the run mounted, and the directories of runs that this store knows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, parent: str, run: Run) -> Path | None:
        return _find_mounted(parent, run) or self._directories.get(parent)

    @cached_property
    def _directories(self) -> dict[str, Path]:
        directories: dict[str, Path] = {}
        for runs in self._store.run_directories.paths():
            with contextlib.suppress(ReproEnvError):
                directories |= {run.id: Path(run.directory) for run in Index(self._store.runs).listing(runs).runs}
        return directories


def _find_mounted(parent: str, run: Run) -> Path | None:
    for mount in run.start.data:
        with contextlib.suppress(ReproEnvError, OSError):
            directory = run_containing(Path(mount.source))
            if directory is not None and records.read(directory).start.id == parent:
                return directory
    return None
