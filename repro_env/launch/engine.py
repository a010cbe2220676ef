"""What every engine does with a job."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Literal

from repro_env.io import process
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import EngineError

Phase = Literal["pending", "running", "ended", "forgotten", "unknown"]


def ask(words: Sequence[str], environ: Mapping[str, str], timeout: float, *, missing: str, stdin: bytes = b"") -> process.Done:
    """Run a command of an engine. `missing`: what to do if it is not on this machine. Raises `EngineError`."""
    try:
        done = process.run(words, env=environ, timeout=timeout, stdin=stdin)
    except (FileNotFoundError, PermissionError):
        raise EngineError(f"the command {words[0]} is not on this machine", hint=missing) from None
    if done.timed_out:
        raise EngineError(f"{words[0]} did not answer within {timeout:.0f} seconds", hint="try again later")
    return done


class State(Frozen, frozen=True, kw_only=True):
    """The state of a job, as its engine reports it."""

    phase: Phase
    """`unknown` if the engine does not answer. `forgotten` if it does not know the job any more: the run may still continue."""
    text: str
    """The engine's words, with the reason."""
    hint: str = ""
    """What to do about it."""
    exit_code: int | None = None
    """Of a job that has ended, 128 + signal if a signal ended it; or of a job that does not start without help."""


class Engine(abc.ABC):
    """A scheduler that runs one job. Use one object per job."""

    @abc.abstractmethod
    def submit(self, manifest: str) -> str:
        """Submit the job that a manifest describes; return the engine's ID of it. Raises `EngineError`."""

    @abc.abstractmethod
    def state(self, job: str) -> State:
        """Return the state of a job. A failure to ask is the phase `unknown`."""

    @abc.abstractmethod
    def cancel(self, job: str) -> None:
        """Stop a job: its command gets SIGTERM first. Raises `EngineError`."""

    @abc.abstractmethod
    def logs(self, job: str) -> tuple[bytes, bytes]:
        """Return what a job has printed on stdout and stderr since the last call."""

    @abc.abstractmethod
    def stop(self, job: str) -> str:
        """Return the command with which a user stops a job."""
