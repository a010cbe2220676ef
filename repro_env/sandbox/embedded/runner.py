"""The embedded runner: uses namespaces, mounts and its own init, without an engine, a daemon or a setuid program.

    supervisor (this process)       forwards signals and keys, and waits; stays in the caller's namespaces
      `- intermediate process       enters user, PID, IPC, UTS and network namespaces (`supervisor`)
           `- first process, PID 1  makes the root, then becomes `guest/init.py`, which reaps (`firstprocess`)
                `- the command

Each process dies with its parent (PR_SET_PDEATHSIG), so nothing survives a killed supervisor. When PID 1 reports the end of the
command, all other processes of the run have ended. Unmounting flushes the disk of the workspace, so it is not waited for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from repro_env.sandbox import externaloutputs, memory
from repro_env.sandbox.embedded.channel import Refused
from repro_env.sandbox.embedded.stage import BEST, Stage, Strategy, choose
from repro_env.sandbox.embedded.supervisor import CompletedRun, supervise
from repro_env.sandbox.externaloutputs import Bound
from repro_env.sandbox.runner import Image, Runner, check, outcome
from repro_env.schema.errors import SandboxError
from repro_env.schema.run import Launch, Outcome


class EmbeddedRunner(Runner):
    """Runs a launch on this machine."""

    def __init__(
        self,
        image: Image,
        *,
        strategy: Strategy | None = None,
        hidden: Collection[str] | None = None,
        bound: Bound = externaloutputs.DEFAULT,
    ) -> None:
        """Set up a runner. A given `strategy` is the only one used; by default the runner tries all of them, the best first."""
        super().__init__(hidden=hidden, bound=bound)
        self._image = image
        self._strategy = strategy

    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        """See `Runner`."""
        check(launch)
        directory = directory.resolve()
        strategy: Strategy | None = self._strategy or BEST
        refusals: list[str] = []
        while strategy is not None:
            try:
                result = self._attempt(launch, directory, strategy)
            except SandboxError as error:
                from repro_env.sandbox.doctor import trials

                raise trials.explain(error, self._image.store, directory) from None
            if isinstance(result, Outcome):
                return result
            refusals += [f"{refusal.what}: {refusal.why}" for refusal in result]
            strategy = None if self._strategy else choose(strategy, frozenset(refusal.what for refusal in result))
        raise SandboxError(
            f"the kernel refused every way to mount the image and the workspace: {'; '.join(refusals)}",
            hint="run `repro-env doctor` for the cause and its fix",
        )

    def _attempt(self, launch: Launch, directory: Path, strategy: Strategy) -> Outcome | list[Refused]:
        with contextlib.ExitStack() as stack:
            stage = Stage(launch, directory, self._image, strategy, self._hidden, stack)
            has_starved = memory.watch_oom_kills()
            try:
                completed = supervise(launch, stage)
            except BaseException:
                externaloutputs.drop(directory)
                raise
            starved = has_starved()
            if isinstance(completed, CompletedRun):
                rules = externaloutputs.rules_of(launch)
                self.lost = externaloutputs.keep(directory, [*stage.sources()], rules, self._image.trees(launch), self._bound)
        if not isinstance(completed, CompletedRun):
            externaloutputs.drop(directory)
            return completed
        means = [f"root: {stage.root.means}", f"workspace: {stage.workspace.means}"]
        means += [*([] if self._image.bytecode else ["bytecode: none"]), stage.user, *completed.notes]
        return outcome(os.waitstatus_to_exitcode(completed.status), "embedded", means, starved=starved)
