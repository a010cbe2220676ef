"""The embedded runner: uses namespaces, mounts and its own init, without an engine, a daemon or a setuid program.

    supervisor (this process)       forwards signals and keys, and waits; stays in the caller's namespaces
      `- intermediate process       enters user, PID, IPC, UTS and network namespaces (`supervisor`)
           `- first process, PID 1  makes the root, then becomes `guest/init.py`, which reaps (`firstprocess`)
                `- the command

Each process dies with its parent (PR_SET_PDEATHSIG), so nothing survives a killed supervisor. When PID 1 reports the end of the
command, all other processes of the run have ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path

from repro_env.sandbox import doctor
from repro_env.sandbox.embedded.joined import JoinedStage, Neighbours
from repro_env.sandbox.embedded.stage import Stage
from repro_env.sandbox.embedded.supervisor import supervise
from repro_env.sandbox.image import Image, image_means
from repro_env.sandbox.limits import Group
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.session import Result
from repro_env.sandbox.streams import Streams
from repro_env.schema.errors import SandboxError
from repro_env.schema.run import Launch
from repro_env.schema.rundirectory import SCRATCH


class EmbeddedRunner(Runner):
    """Runs a launch on this machine."""

    name = "embedded"

    def __init__(self, image: Image, *, overlay: bool = True, hidden: Collection[str] | None = None) -> None:
        """Set up a runner. Without `overlay`, the image is a tree of links, as on kernels that refuse overlay."""
        super().__init__(image, hidden=hidden)
        self._overlay = overlay

    def execute(self, launch: Launch, directory: Path, streams: Streams, group: Group, stack: contextlib.ExitStack) -> Result:
        """See `Runner`."""
        directory = directory.resolve()
        try:
            stage, started = self._stage(launch, directory, streams, stack)
            result = supervise(launch, stage, group, started)
            if result.refused and self._overlay:
                stage = Stage(launch, directory, self._image, streams, stack, overlay=False)
                result = supervise(launch, stage, group, started)
            if result.refused:
                raise SandboxError(f"the kernel refuses to mount the image ({result.refused.why})", hint="run `repro-env doctor`")
        except SandboxError as error:
            raise doctor.explain(error, self._image.store, directory) from None
        result.methods = (*stage.means, *image_means(self._image, launch), stage.user)
        return result

    def _stage(
        self, launch: Launch, directory: Path, streams: Streams, stack: contextlib.ExitStack
    ) -> tuple[Stage, Callable[[int], None] | None]:
        """The first attempt to start the run, and what is called when the root is ready."""
        started = None
        if not launch.member.is_alone:
            scratch = launch.member.host_directory(directory) / SCRATCH
            neighbours = Neighbours(scratch, launch.member.rank, stack)
            started = neighbours.started
            if neighbours.namespaces:
                return JoinedStage(launch, neighbours, self._image, streams), started
        return Stage(launch, directory, self._image, streams, stack, overlay=self._overlay), started
