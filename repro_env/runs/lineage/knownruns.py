"""Read the records of every runs directory that repro-env has used on this machine, and of those that a caller names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.runs.records.index import Index, Summary
from repro_env.runs.records.records import Unreadable
from repro_env.schema.errors import ReproEnvError
from repro_env.store.store import Store


class AllRuns(msgspec.Struct, frozen=True):
    runs: Mapping[str, Summary] = {}
    """By ID. If several directories hold a run, the first of them."""
    outputs: Mapping[str, bytes] = {}
    """As `Listing.outputs`."""
    looked: tuple[Path, ...] = ()
    """Runs directories that were read."""
    missing: tuple[Path, ...] = ()
    """Runs directories that were removed."""
    unreadable: tuple[Unreadable, ...] = ()
    failures: tuple[ReproEnvError | OSError, ...] = ()
    """Why directories could not be read."""

    @property
    def notes(self) -> list[str]:
        """A line for each directory that could not be read."""
        reasons = (f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error) for error in self.failures)
        return [f"this directory could not be read: {reason}" for reason in reasons]

    @property
    def unfinished(self) -> list[Summary]:
        return [run for run in self.runs.values() if run.state != "done"]

    @property
    def places(self) -> str:
        """Name the runs directories that were read, in a few words."""
        if not self.looked:
            return "no runs directory exists on this machine"
        return str(self.looked[0]) if len(self.looked) == 1 else f"{self.looked[0]} and {len(self.looked) - 1} more"


def read_all_runs(first: Sequence[Path], store: Store, *, reread: bool = False) -> AllRuns:
    """Read every runs directory: those of `first` that exist, then those that the store remembers.

    The store remembers `first` from then on. `reread`: read every record, and not the index.
    """
    near = [directory for directory in first if directory.is_dir()]
    for directory in near:
        store.run_directories.add(directory)
    directories = dict.fromkeys([*(Path(os.path.realpath(directory)) for directory in near), *store.run_directories.paths()])
    index = Index(store.runs)
    runs: dict[str, Summary] = {}
    outputs: dict[str, bytes] = {}
    looked: list[Path] = []
    missing: list[Path] = []
    unreadable: list[Unreadable] = []
    failures: list[ReproEnvError | OSError] = []
    for directory in directories:
        if not directory.is_dir():
            missing.append(directory)
            continue
        try:
            listing = index.listing(directory, outputs=True, refresh=reread)
        except (ReproEnvError, OSError) as error:
            failures.append(error)
            continue
        looked.append(directory)
        for run in listing.runs:
            runs.setdefault(run.id, run)
        outputs.update(listing.outputs)
        unreadable += listing.unreadable
    return AllRuns(runs, outputs, tuple(looked), tuple(missing), tuple(unreadable), tuple(failures))
