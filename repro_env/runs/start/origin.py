"""Where a run starts from. Each origin answers the same questions, and no other code asks which one it is.

`Origin` itself is a new run: its code is in the directory of the spec, and everything else is the caller's. Any origin may also
start with the outputs of another run (`resumed`), because a submitted run or a repeated one may have resumed it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from repro_env.runs.lineage import parents
from repro_env.runs.records import submissions
from repro_env.runs.records.records import Run
from repro_env.runs.start import launcher, repository, resumption, snapshot
from repro_env.runs.start.data import RunData
from repro_env.runs.start.repository import Repository
from repro_env.runs.start.request import RunOptions
from repro_env.runs.start.snapshot import Snapshot
from repro_env.runs.start.sourcedirectory import SourceDirectory
from repro_env.sandbox import plan
from repro_env.schema.progress import Tell
from repro_env.schema.run import Mount, Parent, Start
from repro_env.schema.spec import Spec
from repro_env.store.store import Store


class Project(msgspec.Struct, frozen=True):
    """The spec of a run, with the directories and the store that belong to it."""

    spec: Spec
    directory: Path
    """Of the spec and its blobs."""
    runs: Path
    store: Store

    @property
    def workspace(self) -> str:
        """The path of the source inside the run."""
        return plan.workspace_of(self.spec)

    def snapshot(self, directory: Path | None, *, without: Sequence[Path] = (), restore: bool = True) -> Snapshot:
        """Take a snapshot of the code in a directory, or of the captured files, as `snapshot.take`."""
        return snapshot.take(
            self.spec, self.directory, directory=directory, runs=self.runs, store=self.store, without=without, restore=restore
        )


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A new run. The other origins say in what they differ from it."""

    run_id: str
    resumed: Run | None = None
    """The run whose outputs are there when the command starts."""
    checks_command: bool = False
    """Whether the file that the command starts must be in the code now."""
    directory: Path | None = None
    """The directory of the run, if it exists."""
    follows_caller: ClassVar[bool] = True
    """Whether the code, the working directory and the variables are those of the caller."""
    records_start: ClassVar[bool] = True
    """Whether this process records the start of the run."""
    obeys_policy: ClassVar[bool] = True
    """Whether the project's policy is enforced before the start. It was already, for a run that is submitted or repeated."""

    def working_directory(self, options: RunOptions, code: SourceDirectory, workspace: str) -> Path:
        """Return the working directory inside the run, if it exists there."""
        return code.inside(options.here, workspace)

    def code(self, project: Project, code: SourceDirectory, mounts: Sequence[Mount], tell: Tell) -> Snapshot:
        """Return the code, which is in the store. Raises what `snapshot.take` and `snapshot.recall` raise."""
        checkpoints = [Path(mount.source) for mount in mounts if mount.kind == "checkpoints"]
        with tell.progress(0, "reading the source"):
            return project.snapshot(code.path, without=checkpoints)

    def repository(self, project: Project, code: SourceDirectory, source: Snapshot, mounts: Sequence[Mount]) -> Repository:
        """Return the git repository of the code."""
        return repository.show(project.spec, source, code.root, project.workspace, mounts, project.store)

    def parents(self, options: RunOptions, project: Project, data: RunData) -> tuple[Parent, ...]:
        """Return the runs that this one starts from. Raises `RecordError` if a named one does not exist."""
        resumed = () if self.resumed is None else (resumption.parent_of(self.resumed),)
        named = parents.from_options(options.parents, project.runs, options.here)
        return (*named, *resumed, *parents.from_data(data.facts, data.mounts, project.runs, project.store))

    def record(self, start: Start, options: RunOptions) -> Start:
        """Return the record of a new run's start with what this origin decides in place of the caller: seed, streams and times."""
        if self.resumed is None:
            return start
        return msgspec.structs.replace(
            start,
            seed=self.resumed.start.seed if options.seed is None else start.seed,
            source=resumption.with_times(start.source, self.resumed),
            resume_of=self.resumed.id,
            resumes=self.resumed.start.resumes + 1,
        )


class Submitted(Origin, frozen=True, kw_only=True):
    """A run that a job starts: its code is that of the submission, whatever the directory has now."""

    start: Start
    """The record of which this run has the code."""
    obeys_policy: ClassVar[bool] = False

    def record(self, start: Start, options: RunOptions) -> Start:
        """Return the record with the defaults that the submission used."""
        return msgspec.structs.replace(super().record(start, options), defaults=self.start.defaults)

    def code(self, project: Project, code: SourceDirectory, mounts: Sequence[Mount], tell: Tell) -> Snapshot:  # noqa: ARG002
        """Return the recorded code."""
        return snapshot.recall(self.start.source, project.store)

    def repository(self, project: Project, code: SourceDirectory, source: Snapshot, mounts: Sequence[Mount]) -> Repository:
        """Return the repository of the recorded code, with the history that is there now."""
        if self.start.git is None:
            return Repository()
        return repository.show(project.spec, source, code.root, project.workspace, mounts, project.store, self.start.git)


class Join(Submitted, frozen=True, kw_only=True):
    """A process of a running run, which another process has recorded: everything is that of the run."""

    records_start: ClassVar[bool] = False

    def parents(self, options: RunOptions, project: Project, data: RunData) -> tuple[Parent, ...]:  # noqa: ARG002
        """They are in the record."""
        return ()

    def record(self, start: Start, options: RunOptions) -> Start:
        """Return the record of the run. Raises `UsageError` if this process has another command or other options."""
        launcher.check_same(start, self.start, has_seed=isinstance(options.seed, int))
        return self.start


def find(options: RunOptions, project: Project) -> Origin:
    """Return the origin of a run that the user or a job starts. Raises as `resumption.find` and `resumption.require_outputs`."""
    run_id, resumed = resumption.find(options, project.spec, project.runs)
    if resumed is not None:
        resumption.require_outputs(resumed, project.store)
    submission = None if options.run_id is None else submissions.read(project.runs, options.run_id)
    if submission is None:
        return Origin(run_id=run_id, resumed=resumed, checks_command=resumed is None)  # outputs may be the file
    return Submitted(run_id=run_id, resumed=resumed, start=submission.start)
