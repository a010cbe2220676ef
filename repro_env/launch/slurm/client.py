"""Slurm's commands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from repro_env.io import process
from repro_env.launch.engine import State
from repro_env.launch.nodes import NodeClient
from repro_env.launch.nodescript import directives_of
from repro_env.launch.slurm.settings import PREFIX
from repro_env.launch.slurm.states import FIELDS, FORGOTTEN, explain, parse_accounting, parse_jobs
from repro_env.schema.errors import EngineError

_VARIABLES = {"time": "SBATCH_TIMELIMIT"}
"""Variables of sbatch whose names are not those of their options. They take precedence over the lines of a script."""


class Slurm(NodeClient):
    """A job of Slurm, through its commands."""

    scheduler = "Slurm"
    submits = ("sbatch", "--parsable", "--export=ALL")
    cancels = "scancel"
    missing = "use a machine that has Slurm's commands, such as the cluster's login machine"
    refused = "check the options; `sinfo` lists the partitions"

    def submit(self, script: str) -> str:
        """See `Client`."""
        given = {words[0].partition("=")[0][2:] for words in map(str.split, directives_of(script, PREFIX))}
        unset = {_VARIABLES.get(name, f"SBATCH_{name.upper().replace('-', '_')}") for name in given}
        self._environ = {name: value for name, value in self._environ.items() if name not in unset}
        return super().submit(script)

    def find_states(self, jobs: Sequence[tuple[Slurm, str]]) -> list[State]:
        """See `NodeClient`. The accounting is asked for jobs that Slurm forgot, which it does some minutes after their end (MinJobAge)."""
        numbers = {client.directory: job for client, job in jobs}
        done = self._ask(
            "squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(numbers.values())}",
            f"--Format={','.join(f'{field}:|' for field in FIELDS)}",
        )  # fmt: skip
        if done.code and "Invalid job id" not in self.message(done):  # as of a single job
            raise EngineError(self.message(done), hint="try again later")
        found = parse_jobs(done.stdout.decode("utf-8", "replace"), numbers)
        if lost := {directory: job for directory, job in numbers.items() if directory not in found}:
            words = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode")
            done = self._ask("sacct", *words, f"--jobs={','.join(lost.values())}")
            found |= parse_accounting(done.stdout.decode("utf-8", "replace"), lost) if not done.code else {}
        return [explain(found.get(directory, FORGOTTEN), directory) for directory in numbers]

    def largest_array(self) -> int:
        """Return how many tasks an array job can have; 0 if Slurm does not say so. Raises `EngineError`."""
        text = self._ask("scontrol", "show", "config").stdout.decode("utf-8", "replace")
        match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0

    def requeue(self, job: str) -> None:
        """Queue a running job again, which ends it here. Raises `EngineError`."""
        done = self._ask("scontrol", "requeue", job)
        if done.code:
            hint = f"queue it again with `scontrol requeue {job}`"
            raise EngineError(f"Slurm did not queue the job {job} again: {self.message(done)}", hint=hint)

    @staticmethod
    def message(done: process.Done) -> str:
        """See `NodeClient`."""
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return re.sub(r"^.*?\b(?:error|fatal): ", "", lines[-1]) if lines else f"exit code {done.code}"
