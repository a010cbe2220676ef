"""The command `repro-env runs gc`: find the runs that a rule or another run keeps, and remove the others."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import read_regular
from repro_env.runs import retention
from repro_env.runs.lineage.knownruns import read_all_runs
from repro_env.runs.lineage.producers import Producers
from repro_env.runs.records import annotation, ids, records, submissions
from repro_env.runs.records.records import Run, Unreadable
from repro_env.runs.retention import Facts, KeptRun
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.messages import shorten
from repro_env.schema.progress import Tell
from repro_env.schema.rundirectory import END, START
from repro_env.store.rundirectories import AWAY
from repro_env.store.specs import archive as specs
from repro_env.store.store import Store

_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_CHECK_EVERY = 100
"""Removals between two searches for runs that started in the meantime."""


class RemovedRun(msgspec.Struct, frozen=True):
    run: Run
    size: int
    """Bytes of all its files."""


class Spec(msgspec.Struct, frozen=True):
    directory: Path
    size: int
    """Bytes of its files that have no other hard link, as most blobs have."""


class Collected(msgspec.Struct, frozen=True):
    keep: tuple[KeptRun, ...]
    gone: tuple[RemovedRun, ...]
    """Runs that were removed, or that a dry run would remove."""
    unreadable: tuple[Unreadable, ...]
    """Runs with an unreadable record. They are kept, and so is every run that they name."""
    failed: tuple[tuple[Run, str], ...]
    """Runs that could not be removed, and why."""
    specs: tuple[Spec, ...]
    """Specs that no run names any more, and that were removed too, or would be."""
    dry_run: bool

    @property
    def freed(self) -> int:
        """Bytes of the removed runs and specs."""
        return sum(run.size for run in self.gone) + sum(spec.size for spec in self.specs)


def collect(runs: Path, words: Sequence[str], *, store: Store, dry_run: bool, tell: Tell) -> Collected:
    """Remove the runs that neither a `--keep` of `words` nor another run keeps.

    Raises `UsageError`, `RecordError` before the first removal.
    """
    rules = [retention.parse_rule(word) for word in words]
    readable, broken = records.listing(runs)
    reasons = {
        name: f"named in the record of {run.directory.name}, which cannot be read"
        for run in broken
        for name in _ids_in(run.directory)
    }
    reasons |= _ancestors(runs, store, tell)
    plan = retention.plan([_facts(run, reasons) for run in readable], rules, reasons)
    if dry_run:
        unused = _unused_specs(runs, [kept.run for kept in plan.keep], broken)
        unused_specs = tuple(Spec(spec.directory, _size(spec.directory, shared=False)) for spec in unused)
        removed = tuple(RemovedRun(run, _size(run.directory)) for run in plan.remove)
        return Collected(plan.keep, removed, tuple(broken), (), unused_specs, dry_run=True)
    records.tidy(runs)
    names = {run.directory.name for run in readable} | {run.directory.name for run in broken}
    doomed = [RemovedRun(run, _size(run.directory)) for run in reversed(plan.remove)]
    gone, failed = _remove(runs, doomed, names, tell)
    specs_removed = _remove_unused_specs(runs, tell)
    return Collected(plan.keep, tuple(reversed(gone)), tuple(broken), tuple(failed), specs_removed, dry_run=False)


def _remove(
    runs: Path, doomed: Sequence[RemovedRun], names: set[str], tell: Tell
) -> tuple[list[RemovedRun], list[tuple[Run, str]]]:
    """Remove runs, except those that were tagged, or that a run started from, since the plan was made (it may take minutes).

    `names`: names of all run directories that the plan is based on.
    """
    gone: list[RemovedRun] = []
    failed: list[tuple[Run, str]] = []
    ancestors: set[str] = set()
    with tell.progress(sum(removed.size for removed in doomed), "removing") as advance:
        try:
            for number, removed in enumerate(doomed):
                if number % _CHECK_EVERY == 0:
                    ancestors |= _new_ancestors(runs, names)
                run = removed.run
                try:
                    if run.start.id in ancestors:
                        failed.append((run, "a run started from it in the meantime"))
                    elif _tags(run):
                        failed.append((run, "it was tagged in the meantime"))
                    else:
                        records.remove(run.directory)
                        gone.append(removed)
                except ReproEnvError as error:
                    failed.append((run, str(error)))
                advance(removed.size)
        except KeyboardInterrupt:
            tell.warn(f"stopped: {len(gone)} of {len(doomed)} runs were removed; the others are unchanged")
            raise
    return gone, failed


def _new_ancestors(runs: Path, names: set[str]) -> set[str]:
    """Return the IDs of runs that new runs started from. A run is new if its directory is not in `names`; add it there."""
    found: set[str] = set()
    for directory in records.directories(runs):
        if directory.name not in names:
            names.add(directory.name)
            try:
                run = records.read(directory)
            except ReproEnvError:
                found |= _ids_in(directory)
                names.discard(directory.name)  # its record may not be complete yet
            else:
                found |= {parent.id for parent in run.parents}
    return found


def _remove_unused_specs(runs: Path, tell: Tell) -> tuple[Spec, ...]:
    """Remove the specs that no run names, including runs that started in the meantime."""
    removed = []
    for spec in _unused_specs(runs, *records.listing(runs)):
        size = _size(spec.directory, shared=False)
        try:
            specs.remove(spec)
        except OSError as error:
            tell.warn(f"note: the unused spec {spec.directory} cannot be removed: {error.strerror}")
        else:
            removed.append(Spec(spec.directory, size))
    return tuple(removed)


def _unused_specs(runs: Path, kept: Sequence[Run], broken: Sequence[Unreadable]) -> tuple[specs.StoredSpec, ...]:
    used = {run.start.spec_file for run in kept if run.start.spec_file is not None}
    used |= {item.submission.start.spec_file for item in submissions.listing(runs, ()) if item.submission.start.spec_file}
    for run in broken:
        used |= specs.mentioned(run.directory)
    return specs.unused(specs.listing(runs), used, now=time.time())


def _ancestors(runs: Path, store: Store, tell: Tell) -> dict[str, str]:
    """Return runs that another run of a remembered runs directory started from: ID -> why it is kept.

    These are the runs for which the records in `runs` do not say so.
    """
    here = Path(os.path.realpath(runs))
    known = read_all_runs([runs], store)
    for error in known.failures:
        if isinstance(error, OSError):
            raise error
    found: dict[str, str] = {}
    for run in known.runs.values():
        directory = Path(run.directory).parent
        if directory != here:
            found |= dict.fromkeys((parent.id for parent in run.parents), f"{run.short} in {directory} started from it")
    for unreadable in known.unreadable:
        if unreadable.directory.parent != here:
            why = f"named in the record of {unreadable.directory}, which cannot be read"
            found |= dict.fromkeys(_ids_in(unreadable.directory), why)
    missing = [directory for directory in known.missing if store.run_directories.last_used(directory) > time.time() - AWAY]
    if missing:
        directories = shorten([*map(str, missing)], 1)
        tell.warn(f"note: runs in missing directories may have started from one of these runs: {directories}")
    remarks = known.remarks
    for edge in Producers(known, remarks).resume_edges():
        found[edge.parent] = f"{known.runs[edge.child].short} resumed from it, according to a checkpoint"
    for note in remarks:
        tell.warn(f"note: a descendant of these runs may be unknown: {note}")
    return found


def _facts(run: Run, reasons: dict[str, str]) -> Facts:
    """Return a run with its tags. A run whose tags cannot be read is added to `reasons`, so it is kept."""
    try:
        return Facts(run, _tags(run))
    except ReproEnvError as error:
        reasons[run.start.id] = f"its tags cannot be read: {error}"
        return Facts(run, ())


def _tags(run: Run) -> tuple[str, ...]:
    return annotation.tags(annotation.of(run.directory))


def _ids_in(directory: Path) -> set[str]:
    """Return the IDs in an unreadable record, except its own. The run may have started from any of them."""
    found: set[str] = set()
    for name in (START, END):
        with contextlib.suppress(OSError):
            found |= {match.decode() for match in _ID.findall(read_regular(directory / name, records.LARGEST))}
    return {run_id for run_id in found if not directory.name.endswith(f"-{ids.short(run_id)}")}


def _size(directory: Path, *, shared: bool = True) -> int:
    """Return the bytes of all files below `directory`. `shared`: include files with several hard links. Unreadable files count 0."""
    total = 0
    for here, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                facts = os.lstat(f"{here}/{name}")
                total += facts.st_size if shared or facts.st_nlink == 1 else 0
    return total
