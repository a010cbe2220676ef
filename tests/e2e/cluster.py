"""A Slurm cluster and a project on its nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e import parts
from tests.slurm import Slurm


class Cluster(NamedTuple):
    slurm: Slurm
    project: parts.Project

    def run(self, *words: str | Path, code: int | None = 0, env: dict[str, str] | None = None, **options: Any) -> parts.Done:
        return self.project.run(*words, code=code, env={**self.slurm.environ, **(env or {})}, **options)

    def submit(self, *words: str, **options: Any) -> str:
        """Submit without waiting. Returns the ID of the job."""
        answer = json.loads(self.run("exec", "--on", "slurm", "--json", *words, **options).out)
        return str(answer["job"])

    def record(self, run_id: str = "latest") -> dict[str, Any]:
        answer = json.loads(self.run("runs", "show", run_id, "--json").out)
        assert isinstance(answer, dict)
        return answer

    def ask(self, job: str) -> str:
        return self.slurm.ask("scontrol", "--oneliner", "show", "job", job)

    def wait_for(self, condition: Callable[[], object], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.slurm.ask("squeue", "--long")
            time.sleep(0.1)

    def started(self, job: str) -> bool:
        return any("starting" in path.read_text() for path in self.directories(job) for path in path.glob("stdout.log"))

    def directories(self, job: str) -> list[Path]:
        found = (self.project.directory / "runs/.jobs").glob("*/job.json")
        return [path.parent for path in found if json.loads(path.read_text())["id"] == job]
