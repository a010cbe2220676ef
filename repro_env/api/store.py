"""The commands `repro-env store`: measure the store, and remove unused items."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from repro_env.runs.records import records, submissions
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.messages import shorten
from repro_env.schema.progress import Tell
from repro_env.store import garbage
from repro_env.store.garbage import StoreItem
from repro_env.store.rundirectories import AWAY
from repro_env.store.store import Store


class Usage(msgspec.Struct, frozen=True):
    root: str
    kinds: dict[str, tuple[int, int]]
    """Kind -> (number of items, bytes on disk)."""
    other: int
    size: int
    """Bytes of the store."""


class Collected(msgspec.Struct, frozen=True):
    items: tuple[StoreItem, ...]
    before: int
    """Bytes of the store."""
    dry_run: bool

    @property
    def freed(self) -> int:
        return sum(item.size for item in self.items)


def measure(store: Store) -> Usage:
    """Return the disk use of the store by kind."""
    found = garbage.inventory(store)
    return Usage(str(store.root), sum_by_kind(found.items), found.other, found.size)


def sum_by_kind(items: Iterable[StoreItem]) -> dict[str, tuple[int, int]]:
    """Return the number and the bytes of items by kind, sorted."""
    kinds: dict[str, tuple[int, int]] = {}
    for item in items:
        count, size = kinds.get(item.kind, (0, 0))
        kinds[item.kind] = (count + 1, size + item.size)
    return dict(sorted(kinds.items()))


def collect(store: Store, *, keep_days: float | None, max_size: int | None, dry_run: bool, tell: Tell) -> Collected:
    """Remove items that were not used for `keep_days`, and further items until the store has `max_size` bytes.

    The source of a recorded run stays as long as its record, because it may exist nowhere else. Raises `StoreError` if
    another command is using the store; runs may continue.
    """
    # Other commands wait for the lease. So items are only moved while it is held, and deleted afterwards.
    with tell.progress(0, "removing"), store.temp.directory() as directory, store.lease.exclusive() as in_use:
        found = garbage.inventory(store)
        kept = in_use | _sources(store, tell)
        items = garbage.choose(found, kept, now=time.time(), keep_days=keep_days, max_size=max_size)
        if not dry_run:
            garbage.move_away(store, items, directory)
    return Collected(items, found.size, dry_run)


def _sources(store: Store, tell: Tell) -> frozenset[str]:
    """Return the source trees (hex) of recorded runs, which are kept. Warn about records that cannot be read.

    A missing runs directory may be on a disk that is not mounted, so its remembered runs count for a while.
    """
    digests: set[str] = set()
    missing: list[str] = []
    for directory in store.run_directories.paths():
        if not directory.is_dir():
            if store.run_directories.last_used(directory) < time.time() - AWAY:
                missing.append(str(directory))
            else:
                digests.update(store.run_directories.sources(directory))
            continue
        try:
            readable, damaged = records.listing(directory)
        except (OSError, ReproEnvError) as error:
            tell.warn(f"note: these runs cannot be read, so their source code may be removed: {error}")
            continue
        digests.update(digest for run in readable for digest in run.start.source.trees)
        digests.update(digest for item in submissions.listing(directory, ()) for digest in item.submission.start.source.trees)
        for unreadable in damaged:
            tell.warn(f"note: this run cannot be read, so its source code may be removed: {unreadable.why}")
    if missing:
        names = shorten([*map(str, missing)], 1)
        tell.warn(f"note: the source code of runs in a missing directory may be removed: {names}")
    return frozenset(digest.removeprefix("sha256:") for digest in digests)
