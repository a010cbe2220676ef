"""What a run starts from, as one value: made once, before the command starts, and read by everything after it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.runs.records.checkpointstate import Listing
from repro_env.runs.start.repository import Repository
from repro_env.runs.start.request import RunOptions
from repro_env.runs.start.snapshot import Snapshot
from repro_env.runs.start.sourcedirectory import SourceDirectory
from repro_env.schema.run import Launch, Start
from repro_env.schema.spec import Spec


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run starts from: the user's options, all that was read for them, and the record and the launch made of both."""

    options: RunOptions
    spec: Spec
    spec_directory: Path
    code: SourceDirectory
    """Where the code is on this machine."""
    source: Snapshot
    """The code in the store."""
    repository: Repository
    """The git repository of the code."""
    bytecode: Path | None
    """The compiled modules of the image in the store; None if the run has none."""
    checkpoints: Listing | None
    """The files of the `--checkpoints` directories; None without `--checkpoints`."""
    start: Start
    launch: Launch

    @property
    def run_directory(self) -> Path:
        """The directory of the run, which the caller makes."""
        return Path(self.launch.notes).parent

    @property
    def runs(self) -> Path:
        """The directory with all runs of the project."""
        return self.run_directory.parent
