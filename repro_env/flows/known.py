"""All that records here say: of every runs folder that was ever seen, and of those that a caller names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.catalog.index import Index, Summary
from repro_env.catalog.records import Unreadable
from repro_env.model.errors import ReproEnvError
from repro_env.store.store import Store


class Known(msgspec.Struct, frozen=True):
    runs: Mapping[str, Summary] = {}
    """By id; of one that lies in several folders, the nearest."""
    outputs: Mapping[str, bytes] = {}
    """As `Listing.outputs`."""
    looked: tuple[Path, ...] = ()
    """Runs folders."""
    missing: tuple[Path, ...] = ()
    """Those that were seen once and are not there now."""
    unreadable: tuple[Unreadable, ...] = ()
    notes: tuple[str, ...] = ()
    """Folders that could not be looked into, and why."""

    @property
    def unfinished(self) -> list[Summary]:
        return [one for one in self.runs.values() if one.state != "done"]

    @property
    def places(self) -> str:
        """Where was looked, in a few words."""
        if not self.looked:
            return "no runs folder is known here"
        return str(self.looked[0]) if len(self.looked) == 1 else f"{self.looked[0]} and {len(self.looked) - 1} more"


def known(first: Sequence[Path], store: Store, *, anew: bool = False) -> Known:
    """Ask every folder: `first`, as far as they are there, before those that the store has seen, and will have seen then.

    `anew`: every record is read.
    """
    near = [folder for folder in first if folder.is_dir()]
    for folder in near:
        store.seen.see(folder)
    every = dict.fromkeys([*(Path(os.path.realpath(folder)) for folder in near), *store.seen.folders()])
    index = Index(store.runs)
    runs: dict[str, Summary] = {}
    outputs: dict[str, bytes] = {}
    looked: list[Path] = []
    missing: list[Path] = []
    unreadable: list[Unreadable] = []
    notes: list[str] = []
    for folder in every:
        if not folder.is_dir():
            missing.append(folder)
            continue
        try:
            found = index.listing(folder, outputs=True, anew=anew)
        except ReproEnvError as error:
            notes.append(f"not looked into: {error}")
            continue
        except OSError as error:
            notes.append(f"not looked into: {folder}: {error.strerror}")
            continue
        looked.append(folder)
        for one in found.runs:
            runs.setdefault(one.id, one)
        outputs.update(found.outputs)
        unreadable += found.unreadable
    return Known(runs, outputs, tuple(looked), tuple(missing), tuple(unreadable), tuple(notes))
