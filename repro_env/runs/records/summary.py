"""The facts about a run that lists and lineage need, which are a small part of its record."""

from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.runs.records import annotation, ids
from repro_env.runs.records.records import Run, State, Unreadable
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Parent

_LARGEST = 2**63 - 1
"""The largest integer in JSON. A record may claim any size."""


class Datum(msgspec.Struct, frozen=True):
    """An input of a run and its digest."""

    role: str
    """`data` or `checkpoints`."""
    path: str
    digest: str
    """Empty for checkpoints, which change during a run."""


class Summary(msgspec.Struct, frozen=True):
    """The facts about a run that lists and lineage need."""

    id: str
    started: str
    command: tuple[str, ...]
    cwd: str
    runner: str
    spec: str
    image: str
    source: str
    """The digest of the source tree; `source_path` is its path."""
    source_path: str
    seed: int
    data: tuple[Datum, ...]
    parents: tuple[Parent, ...]
    """The parents known before the run started, then those that it resumed from."""
    start: str
    """The current sha256 of `start.json`."""
    end: str
    """The current sha256 of `end.json`; empty if there is none."""
    intact: bool
    """False if `start.json` does not have the sha256 in `end.json`."""
    state: State
    exit_code: int | None
    """This field and those up to `size` are None, 0 or False without `end.json`."""
    signal: int
    out_of_memory: bool
    seconds: float | None
    outputs: int | None
    size: int | None
    tags: tuple[str, ...] | None
    """None if the annotations cannot be read."""
    spec_file: str = ""
    """The digest of the spec file; empty if the record does not have it."""
    directory: str = ""
    """The directory of the run."""

    @property
    def short(self) -> str:
        return ids.short(self.id)

    @property
    def files(self) -> Path:
        return Path(self.directory, "files")

    @property
    def ending(self) -> str:
        """How the run ended, or its state if it did not end."""
        if self.exit_code is None:
            return self.state
        return describe_ending(self.exit_code, self.signal, out_of_memory=self.out_of_memory)


def describe_ending(exit_code: int, signal: int, *, out_of_memory: bool) -> str:
    """Describe in a few words how a command ended."""
    text = f"signal {signal}" if signal else f"exit {exit_code}"
    return f"{text}, out of memory" if out_of_memory else text


class Listing(msgspec.Struct, frozen=True):
    """The runs in one directory of runs, newest first, and the unreadable ones with their reasons."""

    runs: tuple[Summary, ...]
    unreadable: tuple[Unreadable, ...]


def summarize(run: Run) -> Summary:
    """Return the summary of a run."""
    start, end = run.start, run.end
    return Summary(
        id=start.id,
        started=start.started,
        command=start.command,
        cwd=start.cwd,
        runner=start.runner,
        spec=start.spec,
        image=start.image,
        source=start.source.digest,
        source_path=start.source.directory or start.source.path,
        seed=start.seed,
        data=tuple(Datum(fact.kind, fact.source, fact.digest or "") for fact in start.data),
        parents=(*start.parents, *(end.resumed if end is not None else ())),
        start=run.start_digest,
        end=run.end_digest,
        intact=run.intact is not False,
        state=run.state,
        exit_code=None if end is None else end.outcome.exit_code,
        signal=0 if end is None else end.outcome.signal,
        out_of_memory=end is not None and end.outcome.out_of_memory,
        seconds=None if end is None else end.seconds,
        outputs=None if end is None else len(end.outputs),
        size=None if end is None else min(sum(output.size for output in end.outputs), _LARGEST),
        tags=_tags(run.directory),
        spec_file=start.spec_file or "",
        directory=str(run.directory),
    )


def _tags(directory: Path) -> tuple[str, ...] | None:
    try:
        return annotation.tags(annotation.of(directory))
    except ReproEnvError:
        return None
