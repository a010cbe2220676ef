"""Audit of one run after another: its record, its files, its parents, its checkpoint directories, and what it shares."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

import msgspec

from repro_env.compare.audit.findings import (
    PARTS,
    Answer,
    Checks,
    Finding,
    Part,
    State,
    check_file,
    check_files,
    check_others,
    check_parent,
    check_record,
    explain_missing,
    finding,
    sort_findings,
)
from repro_env.compare.audit.shared import SharedParts
from repro_env.io.files import may_exist
from repro_env.oci.paths import is_below
from repro_env.runs.lineage.parents import run_containing
from repro_env.runs.records import annotation, checkpointstate, end, ids, pulled, records
from repro_env.runs.records.checkpointstate import Listing, written_files
from repro_env.runs.records.records import Run, Unreadable
from repro_env.runs.start.sourcedirectory import source_directory
from repro_env.sandbox import outputs
from repro_env.schema import codec
from repro_env.schema.errors import ReproEnvError, SpecVersionError
from repro_env.schema.run import DataFact, Mount, Parent
from repro_env.schema.rundirectory import ANNOTATIONS, CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE, END, FILES, PULLED, START, TRACE
from repro_env.store.store import Store


class Auditor:
    """Checks the runs of a directory one after another, and what they share only once."""

    def __init__(self, all_runs: Sequence[Run], unreadable: Sequence[Unreadable], shared: SharedParts, store: Store) -> None:
        """`all_runs`, `unreadable`: all records of the directory, the newest first."""
        self._runs = all_runs
        self._directories = {run.start.id: run.directory for run in all_runs}
        self._broken = {record.directory.name[-ids.SHORT :]: str(record.why) for record in unreadable}
        self._shared = shared
        self._store = store
        self._checks = Checks()
        self._findings: list[Finding] = []
        self._files: Counter[Part] = Counter()
        self._checkpoints: set[str] = set()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return all findings up to now, sorted."""
        return sort_findings((*self._findings, *self._checks.findings()))

    @property
    def checked(self) -> dict[str, int]:
        """How many things of each part were checked up to now."""
        return {part: self._files[part] + self._checks.count(part) for part in PARTS}

    def check_unreadable(self, record: Unreadable) -> None:
        """Add the finding for a record that cannot be read."""
        directory = record.directory
        is_link = directory.is_symlink() or (directory / FILES).is_symlink()
        count = 0 if is_link else sum(len(names) for _, _, names in os.walk(directory / FILES))
        orphans = f"; {count} files in it have no record" if count else ""
        state: State = "changed"
        if isinstance(record.why, SpecVersionError):
            state = "unknown"
        elif not (directory / START).exists():
            state = "gone"
        why = f"{record.why.what}{orphans}"
        self._files["record"] += 1
        self._findings.append(Finding(part="record", state=state, what=directory.name, why=why, runs=(directory.name,)))

    def check(self, run: Run) -> None:
        """Check everything that a run recorded. What it shares with an earlier run is not checked again."""
        start, check = run.start, self._checks.check
        self._files["record"] += 1
        self._findings += check_own_files(run)
        if run.end is not None:
            self._files["output"] += len(run.end.outputs) + sum(not line.startswith("(") for line in run.end.special_files)
            self._files["trace"] += len(run.end.trace)
        for parent in run.parents:
            what = f"run {ids.short(parent.id)}" if parent.id else parent.path or "a checkpoint"
            check("parent", (start.id, parent.id, parent.record), what, run, partial(self._check_parent, parent, run))
        spec = (start.spec, start.spec_file)
        # `differs` is only for display, so it must not make equal sources different keys.
        source = msgspec.structs.replace(start.source, differs=(), times={}, directory=str(source_directory(start.source)))
        check("spec", spec, start.spec, run, partial(self._shared.check_spec, start))
        check("image", (start.image, spec), start.image, run, partial(self._shared.check_image, start))
        code = f"{source.directory} ({source.digest})"
        check("code", (codec.canonical(source), spec), code, run, partial(self._shared.check_code, start))
        for fact in start.data:
            if fact.kind == "data":
                check("data", fact, fact.source, run, partial(self._shared.check_data, fact))
            elif fact.source not in self._checkpoints:
                self._checkpoints.add(fact.source)
                self._findings += self._check_checkpoints(fact.source)

    def _check_parent(self, parent: Parent, run: Run) -> Answer:
        directory = self._directories.get(parent.id) or _find_mounted(parent.id, run) or self._elsewhere.get(parent.id)
        current = records.digest(directory / END) if directory is not None else None
        return check_parent(parent, current, self._broken.get(ids.short(parent.id)))

    @cached_property
    def _elsewhere(self) -> dict[str, Path]:
        """The runs in all directories of runs that this store knows."""
        directories: dict[str, Path] = {}
        for runs in self._store.run_directories.paths():
            with contextlib.suppress(ReproEnvError):
                directories |= {run.start.id: run.directory for run in records.listing(runs)[0]}
        return directories

    def _check_checkpoints(self, source: str) -> Iterator[Finding]:
        """Compare a directory of `--checkpoints` with the state in which the last run left it.

        Later runs may have replaced the files of earlier ones, so only the last run counts. Unrecorded files are not a
        finding, because the directory belongs to the user.
        """
        mounts = ((run, mount) for run in self._runs for mount in run.start.data if mount.kind == "checkpoints")
        users = [(run, mount) for run, mount in mounts if is_below(mount.source, source) or is_below(source, mount.source)]
        last_run, last_mount = users[0]
        listing, problem = _read_listing(source, last_run, last_mount)
        if listing is None:
            yield finding("checkpoint", "unknown", source, problem, last_run)
            return
        files = [file for file in listing.files if file.target == last_mount.target]
        self._files["checkpoint"] += len(files)
        if not may_exist(Path(source)):
            why = f"it does not exist; the last run left {len(files)} files in it"
            yield finding("checkpoint", "gone", source, why, last_run)
            return
        current = checkpointstate.scan([Mount(kind="checkpoints", source=source, target=last_mount.target)], self._store)
        if current is None or any(line.startswith(f"{last_mount.target} (") for line in current.special_files):
            problem = f"it cannot be read: {'; '.join(current.special_files[:1]) if current is not None else ''}"
            yield finding("checkpoint", "unknown", source, problem, last_run)
            return
        # Of the runs that left a file with this content, the oldest created it. `users` is newest first, so the oldest wins.
        owners = {
            (file.path, file.sha256): run
            for run, mount in users
            if mount.source == source
            for file in written_files(run)
            if file.target == mount.target
        }
        by_path = {file.path: file for file in current.files}
        for file in files:
            if answer := check_file(file, by_path.get(file.path)):
                state, why = answer
                what = f"{source}/{file.path}" if file.path else source
                yield finding("checkpoint", state, what, why, owners.get((file.path, file.sha256), last_run))


def check_own_files(run: Run) -> Iterator[Finding]:
    """Check what belongs to one run only: its record and the files in its directory."""
    yield from check_record(run, records.digest(run.directory / START))
    try:
        annotation.of(run.directory)
    except ReproEnvError as error:
        state: State = "unknown" if isinstance(error, SpecVersionError) else "changed"
        yield finding("record", state, f"{ANNOTATIONS}/{Path(error.where).name}", error.what, run)
    if run.end is None:
        return
    for name, digest in ((CHECKPOINTS_BEFORE, run.start.checkpoints_before), (CHECKPOINTS_AFTER, run.end.checkpoints_after)):
        current = records.digest(run.directory / name)
        if digest is not None and not current:
            yield finding("record", "gone", name, f"{name} is missing", run)
        elif digest is not None and current != digest:
            yield finding("record", "changed", name, f"{name} changed since the run", run)
    contents = outputs.of_run(run.directory, run.end.outputs)
    yield from check_files("output", run, run.end.console, end.hash_console(run.directory))
    found = (
        *check_files("output", run, run.end.outputs, contents.outputs),
        *check_others(run, run.end.special_files, contents.others),
    )
    try:
        left_out = pulled.read(run.directory)
    except ReproEnvError as error:
        left_out = None
        yield finding("record", "changed", PULLED, error.what, run)
    yield from found if left_out is None else explain_missing(found, lambda name: left_out.why(name, run.short))
    if run.end.trace or (run.directory / TRACE).is_dir():
        trace = outputs.collect(run.directory / TRACE, recorded=run.end.trace)
        yield from check_files("trace", run, run.end.trace, trace.outputs)


def _find_mounted(parent: str, run: Run) -> Path | None:
    """Return the directory of a parent that the run had mounted."""
    for mount in run.start.data:
        with contextlib.suppress(ReproEnvError, OSError):
            directory = run_containing(Path(mount.source))
            if directory is not None and records.read(directory).start.id == parent:
                return directory
    return None


def _read_listing(source: str, last_run: Run, mount: DataFact) -> tuple[Listing | None, str]:
    """Return what the last run left in a directory of `--checkpoints`, or why it is unknown."""
    if mount.source != source:
        return None, "the last run that could write to it mounted a parent directory or a subdirectory instead"
    if last_run.end is None:
        return None, f"the last run that could write to it is {last_run.state}, so its files were not recorded"
    if last_run.end.checkpoints_after is None:
        return None, "the last run that could write to it did not record its files"
    try:
        return checkpointstate.read(last_run.directory, CHECKPOINTS_AFTER, last_run.end.checkpoints_after), ""
    except ReproEnvError as error:
        return None, f"the list of the files after the last run cannot be used: {error.what}"
