"""What all runners share: the questions that the rest of the program has for them, and the outcome of a command.

Each runner is a class. `sandbox.runners` finds it, and `schema.runners` has the traits that need no machine to tell.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import ClassVar

from repro_env.sandbox import command, limits, memory, workspace
from repro_env.sandbox.doctor import Finding
from repro_env.sandbox.image import Image
from repro_env.sandbox.limits import Group
from repro_env.sandbox.session import Result
from repro_env.sandbox.streams import Streams
from repro_env.schema.run import Launch, Limits, Outcome
from repro_env.schema.runners import TRAITS, RunnerName
from repro_env.schema.spec import Spec


class Runner(abc.ABC):
    """Runs the command of a launch. Use one object per run."""

    name: ClassVar[RunnerName]
    reads_ahead: ClassVar[bool] = False
    """Whether standard input that is not a terminal is copied, because the command cannot have the caller's own."""
    enforces_limits: ClassVar[bool] = True
    """Whether this process limits the command, and not an engine."""

    def __init__(self, image: Image, *, hidden: Collection[str] | None = None) -> None:
        """Set up a runner. `hidden` are secret values that must not be in the logs of what the command prints; None for no logs."""
        self._image = image
        self._hidden = hidden

    @classmethod
    def find(cls) -> Finding | None:
        """What this machine has of the programs that the runner needs; None if it needs none. Starts no run."""
        return None

    @classmethod
    def check(cls, spec: Spec, requested: Limits) -> tuple[str, ...]:  # noqa: ARG003  for the runner that needs it
        """Check this machine before anything is prepared. Returns a line for each limit that will not hold.

        Raises `SandboxError`, `EngineError` or `RunError` for what the runner needs and this machine does not have.
        """
        return limits.find(requested).deviations if cls.enforces_limits else ()

    @classmethod
    @contextlib.contextmanager
    def tiny_image(cls, tree: Path, digest: str) -> Iterator[str]:  # noqa: ARG003
        """The ID of an image with one tree, whose layer has `digest`, as long as the block runs."""
        yield digest

    @classmethod
    def project_path(cls, directory: Path, path: str) -> str:  # noqa: ARG003
        """The path that the project at `path` had for the command of a run in `directory`."""
        return path

    @classmethod  # noqa: B027  most runners move nothing
    def restore(cls, directory: Path, run_id: str, path: str) -> None:
        """Move the project at `path` to `files` in the run's `directory`: after the command, or later for a killed run."""

    def prepare(self, launch: Launch, directory: Path) -> None:
        """Prepare the directories of a run. If processes share it, the first one does this. Raises `StoreError`, `DiskError`."""
        workspace.prepare(launch, directory, self._image.tree(launch.snapshot))

    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        """Run a launch and wait for its end. Must be called in the main thread, because it handles signals.

        `directory` is the run's directory; call `workspace.collect` on it afterwards. Raises `SandboxError` if the kernel refuses
        what the runner needs, and `RunError`, `DataError` or `CommandMissingError` if the command cannot be started.
        """
        self.prepare(launch, directory)
        with contextlib.ExitStack() as stack:
            logs = launch.member.logs_directory(directory)
            streams = Streams(logs, self._hidden, stack, launch.streams, replace_stdin=self.reads_ahead)
            has_starved = memory.watch_oom_kills()
            group = stack.enter_context(limits.group(launch.limits if self.enforces_limits else Limits(), launch.run_id))
            result = self.execute(launch, directory, streams, group, stack)
            starved = has_starved() or group.has_starved or (result.ended is not None and result.ended.starved)
        if result.ended is not None and result.ended.refused is not None:
            raise command.refusal(launch, *result.ended.refused)
        return Outcome(
            exit_code=result.code if result.code >= 0 else 128 - result.code,
            signal=max(0, -result.code),
            interrupted=result.interrupted,
            out_of_memory=starved and result.code != 0,
            isolation=self.name if TRAITS[self.name].is_isolated else "none",
            methods=(*result.methods, *group.deviations, *result.deviations),
            timed_out=result.timed_out,
        )

    @abc.abstractmethod
    def execute(self, launch: Launch, directory: Path, streams: Streams, group: Group, stack: contextlib.ExitStack) -> Result:
        """Run the command in prepared directories. Its processes join the `group`; what is needed until its end is in `stack`."""
