"""Scripts whose trace is read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from repro_env.compare.traces import trace
from repro_env.compare.traces.trace import Trace
from tests.guest.scripts import SEEDS


class Traced:
    """Scripts that run with the hooks."""

    def __init__(self, directory: Path, python: str) -> None:
        self.directory = directory
        self.python = python
        self.reports = directory / "reports"
        self.errors = ""
        """The output of the last script on stderr."""

    def run(self, code: str, *, trace: str = "") -> list[str]:
        """Run a script, and return the lines of its output. `trace`: the name of the directory for traces."""
        (self.directory / "script.py").write_text(code)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "PYTHONPATH": str(SEEDS),
            "PYTHONHASHSEED": "1",
            "OMP_NUM_THREADS": "1",
            "REPRO_ENV_SEED": "1",
            "REPRO_ENV_REPORTS": str(self.reports),
        }
        if trace:
            env["REPRO_ENV_TRACE"] = str(self.directory / trace)
        done = subprocess.run(
            (self.python, "script.py"), cwd=self.directory, env=env, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        self.errors = done.stderr
        return done.stdout.splitlines()

    def traces(self, name: str) -> dict[str, Trace]:
        files = sorted((self.directory / name).iterdir()) if (self.directory / name).is_dir() else []
        return {path.name: trace.parse(path.read_bytes().splitlines()) for path in files}

    @property
    def problems(self) -> list[str]:
        lines = [json.loads(line) for line in self.reports.read_text().splitlines()] if self.reports.exists() else []
        return [line["problem"] for line in lines if "problem" in line]
