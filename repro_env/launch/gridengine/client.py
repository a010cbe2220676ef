"""Grid Engine's commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from repro_env.io import process
from repro_env.launch.engine import State
from repro_env.launch.gridengine import states
from repro_env.launch.gridengine.states import Listed
from repro_env.launch.nodes import NodeClient
from repro_env.launch.nodescript import SCRIPT
from repro_env.schema.errors import EngineError

_FORGOTTEN = State(phase="forgotten", text="Grid Engine does not know the job any more")
_DELETED = State(phase="ended", text="deleted", exit_code=143)
"""A job that is deleted before its start leaves no trace."""


class GridEngine(NodeClient):
    """A job of Grid Engine, through its commands."""

    missing = "use a machine that has Grid Engine's commands and its variables, such as SGE_ROOT"
    _is_cancelled = False

    def submit(self, script: str) -> str:
        """See `Client`."""
        self.prepare(script)
        done = self._ask("qsub", "-terse", str(self.directory / SCRIPT))
        job = done.stdout.decode("ascii", "replace").strip()
        if done.code or not job.isdecimal():
            hint = "check the options; `qconf -sql` lists the queues, `qconf -sc` the resources"
            raise EngineError(f"Grid Engine refused the job: {_message(done)}", hint=hint)
        return job

    def state(self, job: str) -> State:
        """See `Client`."""
        return states_of([(self, job)])[0]

    def listing(self) -> dict[str, Listed]:
        """Return the user's jobs that wait or run, by their numbers. Raises `EngineError`."""
        done = self._ask("qstat", "-u", "$user", "-xml")
        if done.code:
            raise EngineError(_message(done), hint="try again later")
        return states.parse_jobs(done.stdout.decode("utf-8", "replace"))

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
        done = self._ask("qdel", job)
        if done.code and "does not exist" not in _message(done):
            raise EngineError(
                f"Grid Engine did not delete job {job}: {_message(done)}", hint=f"delete it with `{self.stop(job)}`"
            )
        self._is_cancelled = True

    def stop(self, job: str) -> str:
        """See `Client`."""
        return f"qdel {job}"

    def requeue(self, job: str) -> None:
        """See `Client`. Only `start.sh` can do it: Grid Engine queues a job again that ends with 99."""
        directory = self._environ.get("REPRO_ENV_JOB_DIRECTORY")
        if directory is None:
            raise EngineError(f"job {job} was not submitted by repro-env, so it is not queued again", hint="submit it again")
        Path(directory, "requeue").touch()


def states_of(jobs: Sequence[tuple[GridEngine, str]]) -> list[State]:
    """Return the states of jobs, by their clients and IDs. They are listed once for all."""
    try:
        listing = jobs[0][0].listing() if jobs else {}
        return [client.state_in(listing, job) for client, job in jobs]
    except EngineError as error:
        return [State(phase="unknown", text=error.what)] * len(jobs)


def _message(done: process.Done) -> str:
    """What a command of Grid Engine said, without what begins its messages."""
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    text = lines[0] if lines else f"exit code {done.code}"
    return text.removeprefix("error: ").removeprefix("Unable to run job: ").rstrip(".")
