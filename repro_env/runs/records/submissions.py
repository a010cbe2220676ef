"""The runs that were submitted to a scheduler. Each has a directory next to those of the runs.

runs/.jobs/<run id>/
    submission.json   what the run would start from, written before the job is submitted
    job.json          the ID of the job, written after that
    state.json        the last state that the scheduler reported before the run started; the only file that is replaced
    job.sh, manifest.json    the job script (Slurm), the manifest (Kubernetes)
    stdout.log, stderr.log   what the job printed, also if the run did not start
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.io.files import read_regular, remove_tree, room
from repro_env.runs.records import ids, records
from repro_env.runs.records.files import write_once
from repro_env.runs.records.records import Run
from repro_env.schema import codec
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import RecordError, ReproEnvError, os_errors_as
from repro_env.schema.run import Start
from repro_env.schema.text import Digest, Line

_SUBMISSION, _JOB, _STATE = "submission.json", "job.json", "state.json"


class Submission(Frozen, frozen=True, kw_only=True):
    """A run that was submitted."""

    schema: Literal["repro-env/submission/1"] = "repro-env/submission/1"
    engine: Line
    """As in `launch.engines`."""
    start: Start
    """What the run starts from. The facts of the machine are those of the one that submitted it."""
    catalog: Line = ""
    """Where the job pushes the run, if its node does not share this directory."""
    settings: dict[Line, Line | bool | int | tuple[Line, ...]] = msgspec.field(default_factory=dict)
    """Those of the engine that are not the default, by their keys (`exec --job`)."""
    template: Digest | None = None
    """sha256 of the site's template of the job (`exec --job-template`)."""


class _JobFile(Frozen, frozen=True, kw_only=True):
    id: Line


class Submitted(msgspec.Struct, frozen=True):
    """A submission, and what became of it."""

    directory: Path
    submission: Submission
    job: str
    """The engine's ID of the job; empty if it was not submitted."""
    runs: tuple[Run, ...] = ()
    """The run, and those that resumed it after the job was queued again; the newest last."""

    @property
    def id(self) -> str:
        return self.submission.start.id

    @property
    def is_finished(self) -> bool:
        """Whether the last attempt ended without an interruption, so that the job's state need not be asked for."""
        end = self.runs[-1].end if self.runs else None
        return end is not None and not end.outcome.interrupted


def directory_of(runs: Path, run_id: str) -> Path:
    """Return the directory of a job."""
    return runs / records.JOBS / run_id


def write(runs: Path, submission: Submission) -> Path:
    """Create the directory of a job with its submission; return it. Raises `RecordError`, `DiskError`."""
    directory = directory_of(runs, submission.start.id)
    hint = "name another directory with --runs DIR"
    with os_errors_as(RecordError, "the directory of the job cannot be created", where=directory, hint=hint), room(runs):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
    write_once(directory / _SUBMISSION, codec.pretty(submission), "the submission of the run")
    return directory


def write_job(directory: Path, job: str) -> None:
    """Write the ID of a submitted job. Raises `RecordError`, `DiskError`."""
    write_once(directory / _JOB, codec.pretty(_JobFile(id=job)), "the ID of the job")


def write_state(directory: Path, data: bytes) -> None:
    """Replace the last state of a job. A failure is not an error: it is only a help for later questions."""
    temporary = directory / f".{_STATE}.{os.getpid()}"
    with contextlib.suppress(OSError):
        temporary.write_bytes(data)
        temporary.replace(directory / _STATE)


def read_state(directory: Path) -> bytes:
    """Return the last state of a job; empty if none was kept."""
    with contextlib.suppress(OSError):
        return read_regular(directory / _STATE, 1 << 16)
    return b""


def read(runs: Path, run_id: str) -> Submission | None:
    """Return the submission of a run; None if it was not submitted. Raises `RecordError`, `SpecError`."""
    path = directory_of(runs, run_id) / _SUBMISSION
    with os_errors_as(RecordError, "the submission of the run cannot be read", where=path):
        try:
            data = read_regular(path, records.LARGEST)
        except FileNotFoundError:
            return None
    return codec.decode(data, Submission, where=str(path))


def listing(runs: Path, recorded: Sequence[Run]) -> list[Submitted]:
    """Return the readable submissions in a directory of runs, newest first. `recorded`: its runs, newest first."""
    try:
        names = sorted(os.listdir(runs / records.JOBS), reverse=True)  # noqa: PTH208
    except OSError:
        return []
    found = []
    for name in names:
        try:
            submission = read(runs, name)
        except ReproEnvError:
            continue
        if submission is not None and submission.start.id == name:
            directory = directory_of(runs, name)
            found.append(Submitted(directory, submission, _job(directory), tuple(records.attempts(recorded, name))))
    return found


def find(submitted: Sequence[Submitted], word: str) -> Submitted | None:
    """Return the submission that `word` names, by its ID, short ID or the start of one, if there is only one."""
    matches = [item for item in submitted if word and ids.short(item.id).startswith(word)]
    matches = matches or [item for item in submitted if word and item.id.startswith(word)]
    return matches[0] if len(matches) == 1 else None


def remove(directory: Path) -> None:
    """Remove the directory of a job."""
    remove_tree(directory)


def _job(directory: Path) -> str:
    try:
        return codec.decode(read_regular(directory / _JOB, 1 << 16), _JobFile, where=str(directory / _JOB)).id
    except (OSError, ReproEnvError):
        return ""
