"""The embedded runner: namespaces, mounts and an init of our own; no engine, no daemon, no setuid program.

    supervisor (this process)      waits; passes signals and keys on; never changes its own namespaces
      `- between                   enters user, process, IPC, host name and network namespaces
           `- inner (PID 1)        makes the root, then becomes `inside/init.py`, which reaps; the whole run dies with it
                `- the command

Each dies with the one above it (PR_SET_PDEATHSIG), so nothing survives a killed supervisor. When the inner process
reports the end, no other process of the run is alive. Nothing waits for the removal of its mounts, which flushes the disk of
the workspace.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from repro_env.model.errors import CaptureError, SandboxError, StoreError
from repro_env.model.run import Launch, Lost, Outcome
from repro_env.run import memory, outside
from repro_env.run.channel import Refused
from repro_env.run.interface import Runner, check
from repro_env.run.outside import Bound
from repro_env.run.stage import Stage
from repro_env.run.strategy import BEST, Strategy, choose
from repro_env.run.supervisor import Supervised, supervise


class EmbeddedRunner:
    """Runs launches on this machine, from layers unpacked in the store."""

    def __init__(
        self,
        layers: Callable[[str], Path | None],
        *,
        merged: Path,
        interpreter: str,
        strategy: Strategy | None = None,
        bytecode: Path | None = None,
        bound: Bound = outside.DEFAULT,
        hidden: Collection[str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """`layers` gives the unpacked tree of a diff ID. `merged` is where trees of links are kept, on the same disk.
        `interpreter`: the image's Python, by its path inside.

        With a `strategy` only that one is used; else the best that the kernel allows, found by trying. `bytecode`
        is a tree laid out as PYTHONPYCACHEPREFIX, for the image to start with; it is only read. `bound`: how much is kept of
        what the command writes outside its project. `hidden`: as of `Stage`. `before`: called once, before the terminal gets
        the command's first output; at the start where stdout is no terminal.
        """
        self._layers = layers
        self._merged = merged.resolve()
        self._interpreter = interpreter
        self._strategy = strategy
        self._bytecode = None if bytecode is None else bytecode.resolve()
        self._bound = bound
        self._hidden = hidden
        self._before = before
        self.lost: Lost | None = None
        """After a run: what was not kept of what it wrote outside its project."""
        self.compiled: tuple[str, ...] = ()
        """After a run: the files that it wrote below PYTHONPYCACHEPREFIX. Names, from a place where a script may write too."""

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """See `interface.Runner`. For the main thread, whose signals are heard; not to be called twice for one folder."""
        check(launch)
        folder = folder.resolve()
        trees = [self._tree(diff_id) for diff_id in (*launch.layers, launch.siblings) if diff_id is not None]
        snapshot = self._tree(launch.snapshot)
        strategy: Strategy | None = self._strategy or BEST
        refusals: list[str] = []
        while strategy is not None:
            try:
                outcome = self._attempt(launch, folder, trees, snapshot, strategy)
            except SandboxError as error:
                from repro_env.run import doctor

                raise doctor.explain(error, self._merged.parent, folder) from None
            if isinstance(outcome, Outcome):
                return outcome
            refusals += [f"{one.what}: {one.why}" for one in outcome]
            strategy = None if self._strategy else choose(strategy, frozenset(one.what for one in outcome))
        raise SandboxError(
            f"the kernel refuses every way of mounting: {'; '.join(refusals)}",
            hint="run `repro-env doctor` for the cause and its fix",
        )

    def _tree(self, diff_id: str) -> Path:
        path = self._layers(diff_id)
        if path is None:
            raise StoreError("is not in the store", where=diff_id, hint="run `repro-env rebuild`")
        return path.resolve()

    def _attempt(
        self, launch: Launch, folder: Path, trees: Sequence[Path], snapshot: Path, strategy: Strategy
    ) -> Outcome | list[Refused]:
        with contextlib.ExitStack() as stack:
            stage = Stage(
                launch, folder, trees, snapshot, strategy, self._merged, self._bytecode, self._interpreter, self._hidden, stack
            )
            if stage.terminal is not None and 1 in stage.terminal.streams:
                stage.terminal.before = self._before
            elif self._before is not None:
                self._before()
            before = memory.kills()
            try:
                supervised = supervise(launch, stage)
            except BaseException:
                outside.drop(folder)
                raise
            after = memory.kills()
            with contextlib.suppress(OSError, CaptureError):  # what a script did there must not cost the run its end
                self.compiled = tuple(stage.pycache.written())
            if isinstance(supervised, Supervised):
                self.lost = outside.keep(folder, [*stage.written()], outside.rules_of(launch), trees, self._bound)
        if not isinstance(supervised, Supervised):
            outside.drop(folder)
            return supervised
        code = os.waitstatus_to_exitcode(supervised.status)
        starved = code != 0 and before is not None and after is not None and after > before
        return Outcome(
            exit_code=code if code >= 0 else 128 - code,
            signal=max(0, -code),
            out_of_memory=starved,
            isolation="embedded",
            means=(
                f"root: {stage.root.means}",
                f"workspace: {stage.workspace.means}",
                stage.pycache.means,
                stage.user,
                *supervised.notes,
            ),
        )


_: type[Runner] = EmbeddedRunner
