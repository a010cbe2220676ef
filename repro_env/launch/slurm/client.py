"""Slurm's commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from repro_env.io import process
from repro_env.launch.engine import State
from repro_env.launch.nodes import NodeClient
from repro_env.launch.nodescript import SCRIPT, directives_of
from repro_env.launch.slurm.script import PREFIX
from repro_env.launch.slurm.states import FIELDS, FORGOTTEN, explain, parse_accounting, parse_jobs
from repro_env.schema.errors import EngineError

_VARIABLES = {"time": "SBATCH_TIMELIMIT"}
"""Variables of sbatch whose names are not those of their options. They take precedence over the lines of a script."""


class Slurm(NodeClient):
    """A job of Slurm, through its commands."""

    missing = "use a machine that has Slurm's commands, such as the cluster's login machine"

    def submit(self, script: str) -> str:
        """See `Client`."""
        self.prepare(script)
        given = {words[0].partition("=")[0][2:] for words in map(str.split, directives_of(script, PREFIX))}
        unset = {_VARIABLES.get(name, f"SBATCH_{name.upper().replace('-', '_')}") for name in given}
        environ = {name: value for name, value in self._environ.items() if name not in unset}
        done = self._ask("sbatch", "--parsable", "--export=ALL", str(self.directory / SCRIPT), environ=environ)
        job = done.stdout.decode("ascii", "replace").strip().partition(";")[0]
        if done.code or not job.isdecimal():
            hint = "check the options; `sinfo` lists the partitions"
            raise EngineError(f"Slurm refused the job: {_message(done)}", hint=hint)
        return job

    def state(self, job: str) -> State:
        """See `Client`."""
        return self.states({self.directory: job})[self.directory]

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, State]:
        """Return the states of jobs by their directories. Slurm is asked once for all, and its accounting for those that it forgot."""
        try:
            done = self._ask(
                "squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(jobs.values())}",
                f"--Format={','.join(f'{field}:|' for field in FIELDS)}",
            )  # fmt: skip
            if done.code and "Invalid job id" not in _message(done):  # as of a single job
                return dict.fromkeys(jobs, State(phase="unknown", text=_message(done)))
            found = parse_jobs(done.stdout.decode("utf-8", "replace"), jobs)
            # slurmctld forgets a job some minutes after its end (MinJobAge).
            if lost := {directory: job for directory, job in jobs.items() if directory not in found}:
                words = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode")
                done = self._ask("sacct", *words, f"--jobs={','.join(lost.values())}")
                found |= parse_accounting(done.stdout.decode("utf-8", "replace"), lost) if not done.code else {}
        except EngineError as error:
            return dict.fromkeys(jobs, State(phase="unknown", text=error.what))
        return {directory: explain(found.get(directory, FORGOTTEN), directory) for directory in jobs}

    def largest_array(self) -> int:
        """Return how many tasks an array job can have; 0 if Slurm does not say so. Raises `EngineError`."""
        text = self._ask("scontrol", "show", "config").stdout.decode("utf-8", "replace")
        match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0

    def cancel(self, job: str) -> None:
        """See `Client`."""
        done = self._ask("scancel", job)
        if done.code:
            raise EngineError(f"Slurm did not cancel the job {job}: {_message(done)}", hint=f"cancel it with `{self.stop(job)}`")

    def stop(self, job: str) -> str:
        """See `Client`."""
        return f"scancel {job}"

    def requeue(self, job: str) -> None:
        """Queue a running job again, which ends it here. Raises `EngineError`."""
        done = self._ask("scontrol", "requeue", job)
        if done.code:
            hint = f"queue it again with `scontrol requeue {job}`"
            raise EngineError(f"Slurm did not queue the job {job} again: {_message(done)}", hint=hint)


def _message(done: process.Done) -> str:
    """What a command of Slurm said, without the name of the command."""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return re.sub(r"^.*?\b(?:error|fatal): ", "", lines[-1]) if lines else f"exit code {done.code}"
