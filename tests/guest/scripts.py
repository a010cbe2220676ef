"""Scripts that run with the hooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.parts import need

SEEDS = Path(__file__).parents[2] / "repro_env" / "guest" / "seeds"
PYTHONS = [sys.executable, *filter(None, os.environ.get("REPRO_ENV_TEST_PYTHONS", "").split(":"))]
"""The interpreters to test. REPRO_ENV_TEST_PYTHONS adds more, e.g. one with torch, or Python 3.8."""


@cache
def find_python(module: str) -> str | None:
    """The first interpreter that has a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    for python in PYTHONS:
        if not subprocess.run([python, "-c", code], capture_output=True, check=False).returncode:
            return python
    return None


def python_with(module: str) -> str:
    python = find_python(module)
    need(python, f"no interpreter with {module}: install it, or name one in REPRO_ENV_TEST_PYTHONS")
    assert python is not None
    return python


class Script:
    """A script in its own directory that runs with the hooks."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self.directory = directory
        self.python = python

    def run(
        self, code: str, *, seed: int = 1, extra: dict[str, str] | None = None, args: Sequence[str] = (), quiet: bool = True
    ) -> str:
        """Run the script, and return its output. With `quiet`, it must print nothing on stderr."""
        (self.directory / "script.py").write_text(textwrap.dedent(code))
        for path in (
            self.directory / "reports",
            *self.directory.glob("ids-*"),
        ):  # each real run has its own directory for these files
            path.unlink(missing_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SEEDS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "1",
            "REPRO_ENV_SEED": str(seed),
            "REPRO_ENV_REPORTS": str(self.directory / "reports"),
        }
        done = subprocess.run(
            [self.python, *args, "script.py"],
            cwd=self.directory,
            env=env | (extra or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert not quiet or not done.stderr, done.stderr
        return done.stdout

    @property
    def reports(self) -> list[dict[str, object]]:
        path = self.directory / "reports"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def generators(self) -> list[dict[str, object]]:
        """The reports of unseeded generators, and of problems."""
        return [note for note in self.reports if "library" in note or "problem" in note]

    @property
    def seeded(self) -> set[tuple[object, object, object]]:
        """(function, value, line) of the seeds that the script set itself."""
        assert all(note["file"] == str(self.directory / "script.py") for note in self.reports if "seeded" in note), self.reports
        return {(note["what"], note["value"], note["line"]) for note in self.reports if "seeded" in note}

    @property
    def entropy(self) -> dict[tuple[object, object], int]:
        """(function, line) -> count."""
        counts: dict[tuple[object, object], int] = {}
        for note in self.reports:
            if "system_randomness" in note:
                assert note["file"] == str(self.directory / "script.py"), note
                key = (note["system_randomness"], note["line"])
                counts[key] = counts.get(key, 0) + int(str(note["count"]))
        return counts

    @property
    def unseeded(self) -> set[tuple[object, object]]:
        """(what, line) of the unseeded generators."""
        assert all("problem" not in note for note in self.generators), self.generators
        return {(note["what"], note["line"]) for note in self.generators}
