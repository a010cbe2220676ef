"""The processes that share one run. The first one makes its directory, and the last one records its end.

    runs/.processes/<key>      locked for each step below; names the directory of the run while it is running
    runs/<run>/ranks/<rank>/
        lock         locked while the process runs
        ready.json   written when it could start its command
        end.json     written when its command has ended
        stdout.log, stderr.log

No command starts before all processes are there, so a process that is missing costs no time of the others. The files of the project
are one directory for all of them, as in a run of torchrun.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.io import filesystem
from repro_env.io.files import lock, read_regular, room
from repro_env.runs.records import records
from repro_env.runs.records.files import write_once
from repro_env.schema import codec
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import RecordError, RunError, os_errors_as
from repro_env.schema.run import Member, Outcome, Process
from repro_env.schema.rundirectory import END, LOCK, RANKS, READY

DIRECTORY = ".processes"
PATIENCE = 600.0
"""Seconds for which a process waits for the others, whose machines may have to read the image first."""
_PAUSE = 0.1
_KILLED = 128 + 9
_FILES = (READY, END, LOCK)


class _Part(Frozen, frozen=True, kw_only=True):
    """What a process records."""

    process: Process
    outcome: Outcome | None = None


class Gathering:
    """The processes with one key. Use as a context manager: no other process of them is in the same block at the same time."""

    def __init__(self, runs: Path, key: str) -> None:
        self._path = runs / DIRECTORY / key
        self._handle = -1

    def __enter__(self) -> None:
        hint = "name another directory with --runs DIR, on a file system with locks"
        with os_errors_as(RecordError, "the processes of the run cannot find each other", where=self._path, hint=hint):
            with room(self._path.parent.parent):
                self._path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                lock(self._handle)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(self._handle), self._path.stat()):
                        return
                os.close(self._handle)  # the last process of an ended run has removed it

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def current(self) -> Path | None:
        """Return the directory of the run that these processes share, if one of them has made it and it has not ended."""
        name = os.pread(self._handle, 1 << 10, 0).decode("utf-8", "replace")
        directory = self._path.parent.parent / name
        return directory if records.NAME.fullmatch(name) and records.is_running(directory) else None

    def announce(self, directory: Path) -> None:
        """Let the other processes join the run in a directory."""
        os.truncate(self._handle, 0)
        os.pwrite(self._handle, directory.name.encode(), 0)

    def remove(self) -> None:
        """Forget the run, which has ended."""
        self._path.unlink(missing_ok=True)


class Place:
    """The place of this process in a run that it shares with others."""

    def __init__(self, directory: Path, member: Member) -> None:
        """Take it. Call in the block of the `Gathering`. Raises `RecordError` if another process has this rank."""
        self.directory = directory
        self._ranks = directory / RANKS
        self._own = self._ranks / str(member.rank)
        self._member = member
        try:
            with room(directory):
                self._own.mkdir(parents=True)
                self._lock = os.open(self._own / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            hint = "give each process its own rank from 0, or start them with srun"
            raise RecordError(
                f"another process of this run has the rank {member.rank}", where=directory.name, hint=hint
            ) from None
        lock(self._lock)

    def wait(self, process: Process, gathering: Gathering, patience: float = PATIENCE) -> tuple[Process, ...]:
        """Report that this process is ready, and wait until all others are; return them, sorted by rank.

        Raises `RunError` if one of them has ended, or does not come.
        """
        write_once(self._own / READY, codec.pretty(_Part(process=process)))
        size, deadline = self._member.size, time.monotonic() + patience
        while len(ready := [*self._ranks.glob(f"*/{READY}")]) < size:
            missing = sorted(set(map(str, range(size))) - {path.parent.name for path in ready}, key=int)
            which = f"rank{'s' * (len(missing) > 1)} {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"
            with gathering:
                ended = [path.parent for path in self._ranks.glob(f"*/{LOCK}") if not records.is_locked(path)]
            ended = [path for path in ended if not (path / END).exists()]  # else all have come since, and it has finished
            if ended and (option := filesystem.local_locks(self.directory)):
                hint = "use a file system whose locks hold on all machines, or start all processes on one machine"
                what = f"the processes cannot see each other's locks, because this file system is mounted with {option}"
                raise RunError(what, where=str(self.directory), hint=hint)
            if ended:
                hint = "look at the messages of that process"
                raise RunError(f"rank {ended[0].name} ended before its command could start", where=self.directory.name, hint=hint)
            if time.monotonic() > deadline:
                hint = f"start all {size} processes at the same time; the command of none of them has started"
                raise RunError(f"{which} of {size} did not start within {patience:.0f} s", where=self.directory.name, hint=hint)
            time.sleep(_PAUSE)
        return tuple(_read(path).process for path in sorted(ready, key=lambda path: int(path.parent.name)))

    def leave(self, gathering: Gathering, process: Process | None, outcome: Outcome | None) -> bool:
        """Record the end of this process; return whether it is the last one, which then records the end of the run.

        `process` and `outcome`: None if its command did not start. If no command has started, the last one removes the run.
        """
        with gathering:
            if process is not None:
                write_once(self._own / END, codec.pretty(_Part(process=process, outcome=outcome)))
            others = [path for path in self._ranks.glob(f"*/{LOCK}") if path.parent != self._own]
            if any(map(records.is_locked, others)):
                self.close()
                return False
            gathering.remove()
            return True

    @property
    def has_started(self) -> bool:
        """Whether the command of any process has ended, so that the run has something to record."""
        return any(self._ranks.glob(f"*/{END}"))

    def parts(self) -> tuple[tuple[Process, ...], Outcome]:
        """Return all processes and their common outcome. Call this as the last process."""
        found = []
        for rank in range(self._member.size):
            paths = (self._ranks / str(rank) / name for name in (END, READY))
            part = next((_read(path) for path in paths if path.exists()), None)
            found.append(part or _Part(process=Process(rank=rank, local_rank=0, node="", exit_code=None)))
        return tuple(part.process for part in found), combine([part.outcome for part in found])

    def tidy(self) -> None:
        """Remove what is in the record of the end. The logs of the processes stay."""
        for directory in self._ranks.iterdir():
            for name in _FILES:
                (directory / name).unlink(missing_ok=True)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _read(path: Path) -> _Part:
    return codec.decode(read_regular(path, records.LARGEST), _Part, where=str(path))


def combine(outcomes: Sequence[Outcome | None]) -> Outcome:
    """Return the outcome of processes together. Pure.

    It is that of the first rank that failed by itself, else of one that was killed, else of one that was interrupted: if a process
    fails, launchers stop the others. None for a process that was killed or did not start its command. At least one is not None.
    """
    known = [outcome for outcome in outcomes if outcome is not None]
    failed = [outcome for outcome in known if outcome.exit_code and not outcome.interrupted]
    killed = (
        [] if len(known) == len(outcomes) else [msgspec.structs.replace(known[0], exit_code=_KILLED, signal=9, interrupted=0)]
    )
    stopped = sorted((outcome for outcome in known if outcome.interrupted), key=lambda outcome: not outcome.exit_code)
    first = (*failed, *killed, *stopped, known[0])[0]
    return msgspec.structs.replace(
        first,
        out_of_memory=any(outcome.out_of_memory for outcome in known),
        methods=tuple(dict.fromkeys(means for outcome in known for means in outcome.methods)),
        timed_out=any(outcome.timed_out for outcome in known),
    )
