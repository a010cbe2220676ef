"""Grid Engine's commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from repro_env.io import process
from repro_env.launch.engine import State
from repro_env.launch.gridengine import states
from repro_env.launch.gridengine.states import Listed
from repro_env.launch.nodes import NodeClient
from repro_env.schema.errors import EngineError

_FORGOTTEN = State(phase="forgotten", text="Grid Engine does not know the job any more")
_DELETED = State(phase="ended", text="deleted", exit_code=143)
"""A job that is deleted before its start leaves no trace."""


class GridEngine(NodeClient):
    """A job of Grid Engine, through its commands."""

    scheduler = "Grid Engine"
    submits = ("qsub", "-terse")
    cancels = "qdel"
    missing = "use a machine that has Grid Engine's commands and its variables, such as SGE_ROOT"
    refused = "check the options; `qconf -sql` lists the queues, `qconf -sc` the resources"
    _is_cancelled = False

    def find_states(self, jobs: Sequence[tuple[GridEngine, str]]) -> list[State]:
        """See `NodeClient`."""
        done = self._ask("qstat", "-u", "$user", "-xml")
        if done.code:
            raise EngineError(self.message(done), hint="try again later")
        listing = states.parse_jobs(done.stdout.decode("utf-8", "replace"))
        return [client.state_in(listing, job) for client, job in jobs]

    def state_in(self, listing: Mapping[str, Listed], job: str) -> State:
        """Return the state of a job; `listing`: of all jobs. Raises `EngineError`."""
        suffix, listed = self.directory.name[-8:], listing.get(job)  # numbers are reused: the name has the short ID of the run
        if listed is not None and listed.name.endswith(suffix):
            reason = (
                "" if listed.is_running else states.parse_reason(self._ask("qstat", "-j", job).stdout.decode("utf-8", "replace"))
            )
            return states.state_of(listed, reason, job)
        found = states.parse_accounting(self._ask("qacct", "-j", job).stdout.decode("utf-8", "replace"), suffix)
        return found or (_DELETED if self._is_cancelled else _FORGOTTEN)

    def cancel(self, job: str) -> None:
        """See `Client`."""
        super().cancel(job)
        self._is_cancelled = True

    def requeue(self, job: str) -> None:
        """See `Client`. Only `start.sh` can do it: Grid Engine queues a job again that ends with 99."""
        directory = self._environ.get("REPRO_ENV_JOB_DIRECTORY")
        if directory is None:
            raise EngineError(f"job {job} was not submitted by repro-env, so it is not queued again", hint="submit it again")
        Path(directory, "requeue").touch()

    @staticmethod
    def message(done: process.Done) -> str:
        """See `NodeClient`."""
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        text = lines[0] if lines else f"exit code {done.code}"
        return text.removeprefix("error: ").removeprefix("Unable to run job: ").rstrip(".")
