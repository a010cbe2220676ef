"""The story of `repro-env runs gc`: rules, what holds a run beside them, and taking the others away."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.catalog import annotation, ids, lineage, manifest, records, retention, specs
from repro_env.catalog.index import Index, Summary
from repro_env.catalog.records import Run, Unreadable
from repro_env.catalog.retention import Facts, Kept
from repro_env.io.files import read_regular
from repro_env.model.errors import ReproEnvError
from repro_env.model.talk import Tell
from repro_env.store.seen import AWAY
from repro_env.store.store import Store

_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_LOOK = 100
"""Removals after which is looked for runs that began meanwhile."""


class Gone(msgspec.Struct, frozen=True):
    run: Run
    size: int
    """Bytes of all its files."""


class Spec(msgspec.Struct, frozen=True):
    folder: Path
    size: int
    """Bytes of its files that have no other name: blobs are mostly links."""


class Collected(msgspec.Struct, frozen=True):
    keep: tuple[Kept, ...]
    gone: tuple[Gone, ...]
    """What went, or would go."""
    unreadable: tuple[Unreadable, ...]
    """Runs whose record cannot be read: they stay, and so does every run that they name."""
    failed: tuple[tuple[Run, str], ...]
    """What should have gone and is still there, and why."""
    specs: tuple[Spec, ...]
    """Kept specs that no run names any more: they went too, or would."""
    dry_run: bool


def collect(runs: Path, words: Sequence[str], *, store: Store, dry_run: bool, tell: Tell) -> Collected:
    """Remove the runs that no `--keep` of `words` and nothing else holds. Raises `UsageError`, `RecordError` before the first goes."""
    rules = [retention.rule(word) for word in words]
    there, broken = records.listing(runs)
    if runs.is_dir():
        store.seen.see(runs)
    held = {name: f"named by {one.folder.name}, whose record cannot be read" for one in broken for name in _named(one.folder)}
    held |= _descended(runs, store, tell)
    plan = retention.plan([_facts(run, held) for run in there], rules, held)
    if dry_run:
        unused = _unused(runs, [one.run for one in plan.keep], broken)
        would = tuple(Spec(one.folder, _size(one.folder, shared=False)) for one in unused)
        gone_runs = tuple(Gone(run, _size(run.folder)) for run in plan.remove)
        return Collected(plan.keep, gone_runs, tuple(broken), (), would, dry_run=True)
    records.tidy(runs)
    specs.tidy(runs)
    seen = {run.folder.name for run in there} | {one.folder.name for one in broken}
    gone, failed = _remove(runs, [Gone(run, _size(run.folder)) for run in reversed(plan.remove)], seen, tell)
    return Collected(plan.keep, tuple(reversed(gone)), tuple(broken), tuple(failed), _unnamed(runs, tell), dry_run=False)


def _remove(runs: Path, going: Sequence[Gone], seen: set[str], tell: Tell) -> tuple[list[Gone], list[tuple[Run, str]]]:
    """Remove runs, but for those that were tagged, or that a run started from, since the plan was made: it may take minutes.

    `seen`: names of all folders that the plan was made of.
    """
    gone: list[Gone] = []
    failed: list[tuple[Run, str]] = []
    held: set[str] = set()
    with tell.progress(sum(one.size for one in going), "removing") as advance:
        try:
            for number, one in enumerate(going):
                if number % _LOOK == 0:
                    held |= _came_since(runs, seen)
                try:
                    if held & {one.run.start.id, one.run.folder.name}:
                        failed.append((one.run, "a run started from it meanwhile"))
                    elif _tags(one.run):
                        failed.append((one.run, "it was tagged meanwhile"))
                    else:
                        records.remove(one.run.folder)
                        gone.append(one)
                except ReproEnvError as error:
                    failed.append((one.run, str(error)))
                advance(one.size)
        except KeyboardInterrupt:
            tell.warn(f"stopped: {len(gone)} of {len(going)} runs were removed, the others are whole")
            raise
    return gone, failed


def _came_since(runs: Path, seen: set[str]) -> set[str]:
    """Ids or names of what runs started from whose folders are not in `seen`; adds them to it."""
    found: set[str] = set()
    for folder in records.folders(runs):
        if folder.name not in seen:
            seen.add(folder.name)
            try:
                run = records.read(folder)
            except ReproEnvError:
                found |= _named(folder)
                seen.discard(folder.name)  # it may be on its way
            else:
                found |= retention.came_from((one.id for one in retention.parents(run)), (one.source for one in run.start.data))
    return found


def _unnamed(runs: Path, tell: Tell) -> tuple[Spec, ...]:
    """Remove the kept specs that no run names now; one that began meanwhile counts."""
    found = []
    for one in _unused(runs, *records.listing(runs)):
        size = _size(one.folder, shared=False)
        try:
            specs.remove(one)
        except OSError as error:
            tell.warn(f"note: a spec that no run names cannot be removed: {one.folder}: {error.strerror}")
        else:
            found.append(Spec(one.folder, size))
    return tuple(found)


def _unused(runs: Path, left: Sequence[Run], broken: Sequence[Unreadable]) -> tuple[specs.Kept, ...]:
    named = {run.start.spec_file for run in left if run.start.spec_file is not None}
    for one in broken:
        named |= specs.mentioned(one.folder)
    return specs.unused(specs.there(runs), named, now=time.time())


def _descended(runs: Path, store: Store, tell: Tell) -> dict[str, str]:
    """Ids or names of what other runs started from, though none of these records says so: as far as this store has seen them."""
    here = os.path.realpath(runs)
    index = Index(store.runs)
    known: dict[str, Summary] = {}
    outputs: dict[str, bytes] = {}
    found: dict[str, str] = {}
    away: list[Path] = []
    for folder in (Path(here), *(one for one in store.seen.folders() if str(one) != here)):
        if not folder.is_dir() and str(folder) != here:
            if store.seen.last(folder) > time.time() - AWAY:
                away.append(folder)
            continue
        try:
            listing = index.listing(folder, outputs=True)
        except ReproEnvError as error:
            tell.warn(f"note: runs in another folder may have started from one of these, and it cannot be read: {error}")
            continue
        outputs.update(listing.outputs)
        for run in listing.runs:
            known.setdefault(run.id, run)
            if str(folder) != here:
                names = retention.came_from((parent.id for parent in run.parents), (one.path for one in run.data))
                found |= dict.fromkeys(names, f"{run.short} in {folder} started from it")
        if str(folder) != here:
            for one in listing.unreadable:
                found |= dict.fromkeys(_named(one.folder), f"named by {one.folder}, whose record cannot be read")
    if away:
        more = f" and {len(away) - 1} more" if len(away) > 1 else ""
        tell.warn(f"note: not there now: {away[0]}{more}; runs there may have started from one of these")
    for edge in lineage.edges(known, outputs):
        if edge.how == lineage.SAME_BYTES:
            found.setdefault(edge.parent, f"{known[edge.child].short} was given a file that is an output of it")
    for run in known.values():
        if run.state != "done":
            found |= dict.fromkeys(_resumed(run), f"a checkpoint says that {run.short} went on from it")
    return found


def _resumed(run: Summary) -> set[str]:
    """What a run without an end went on from: only its checkpoints say so."""
    found = set()
    for folder in (run.files, *(Path(one.path) for one in run.data if one.role == "checkpoints")):
        for path in manifest.below(folder)[0]:
            with contextlib.suppress(ReproEnvError):  # somebody else's file, or one that is being written
                one = manifest.read(path)
                if one is not None and one.manifest.run == run.id and one.manifest.parent is not None:
                    found.add(one.manifest.parent.run)
    return found - {"", run.id}


def _facts(run: Run, held: dict[str, str]) -> Facts:
    """With its tags; one whose tags cannot be read is held."""
    try:
        return Facts(run, _tags(run))
    except ReproEnvError as error:
        held[run.start.id] = f"whether it has a tag cannot be told: {error}"
        return Facts(run, ())


def _tags(run: Run) -> tuple[str, ...]:
    return annotation.tags(annotation.of(run.folder))


def _named(folder: Path) -> set[str]:
    """Ids that stand anywhere in a record that cannot be read, but its own: each may be that of a run that it started from."""
    found: set[str] = set()
    for name in ("start.json", "end.json"):
        with contextlib.suppress(OSError):
            found |= {one.decode() for one in _ID.findall(read_regular(folder / name, records.LARGEST))}
    return {one for one in found if not folder.name.endswith(f"-{ids.short(one)}")}


def _size(folder: Path, *, shared: bool = True) -> int:
    """Bytes of the files below, `shared`: also of those with more than one name. What cannot be looked at counts nothing."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                facts = os.lstat(f"{here}/{name}")
                total += facts.st_size if shared or facts.st_nlink == 1 else 0
    return total
