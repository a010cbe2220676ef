"""Read the records of every runs directory that repro-env has used on this machine, and of those that a caller names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.runs.records import records
from repro_env.runs.records.checkpointstate import written_files
from repro_env.runs.records.records import Run, Unreadable
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.messages import shorten
from repro_env.store.store import Store


class Written(msgspec.Struct, frozen=True):
    """A file that a run wrote."""

    how: Literal["output", "checkpoints"]
    """`output`: the record of the run has it. `checkpoints`: it was written to a checkpoint directory of the run while it ran."""
    path: str
    """The path of the output, or the path of the checkpoint inside the run."""
    sha256: str


class AllRuns(msgspec.Struct, frozen=True):
    runs: Mapping[str, Run] = {}
    """By ID. If several directories hold a run, the first of them."""
    written: Mapping[str, tuple[Written, ...]] = {}
    """The ID of a run -> the files that it wrote."""
    looked: tuple[Path, ...] = ()
    """Runs directories that were read."""
    missing: tuple[Path, ...] = ()
    """Runs directories that were removed."""
    unreadable: tuple[Unreadable, ...] = ()
    failures: tuple[ReproEnvError | OSError, ...] = ()
    """Why directories could not be read."""

    @property
    def remarks(self) -> list[str]:
        """A line for each directory that could not be read."""
        reasons = (f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error) for error in self.failures)
        return [f"this directory could not be read: {reason}" for reason in reasons]

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs.values() if run.state != "done"]

    @property
    def places(self) -> str:
        """Name the runs directories that were read, in a few words."""
        return shorten([*map(str, self.looked)], 1) or "no runs directory exists on this machine"


def read_all_runs(first: Sequence[Path], store: Store) -> AllRuns:
    """Read every runs directory: those of `first` that exist, then those that the store remembers.

    The store remembers `first` from then on.
    """
    near = [directory for directory in first if directory.is_dir()]
    for directory in near:
        store.run_directories.add(directory)
    directories = dict.fromkeys([*(Path(os.path.realpath(directory)) for directory in near), *store.run_directories.paths()])
    runs: dict[str, Run] = {}
    written: dict[str, tuple[Written, ...]] = {}
    looked: list[Path] = []
    missing: list[Path] = []
    unreadable: list[Unreadable] = []
    failures: list[ReproEnvError | OSError] = []
    for directory in directories:
        if not directory.is_dir():
            missing.append(directory)
            continue
        try:
            readable, damaged = records.listing(directory)
        except (ReproEnvError, OSError) as error:
            failures.append(error)
            continue
        looked.append(directory)
        for run in readable:
            if run.id not in runs:
                runs[run.id] = run
                written[run.id] = files_written_by(run)
        unreadable += damaged
    return AllRuns(runs, written, tuple(looked), tuple(missing), tuple(unreadable), tuple(failures))


def files_written_by(run: Run) -> tuple[Written, ...]:
    """Return the outputs of a run, then its checkpoints."""
    outputs = [Written("output", output.path, output.sha256) for output in (run.end.outputs if run.end is not None else ())]
    return (*outputs, *(Written("checkpoints", file.shown, file.sha256) for file in written_files(run)))
