"""Run scripts in the environment of trainers, because the environment of the tests does not have torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.parts import need

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def python() -> str:
    path = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(path and Path(path).exists(), "the environment of trainers: run `make trainers`, and set REPRO_ENV_TEST_TRAINERS")
    return path


def environment() -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def start(script: str, *args: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a script in its own process group."""
    return subprocess.Popen(
        [python(), str(HERE / script), *args],
        cwd=cwd,
        env=environment() | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(
    script: str, *args: str, cwd: Path, env: dict[str, str] | None = None, codes: Sequence[int] = (0,), seconds: int = 300
) -> str:
    """Run a script, and return what it printed."""
    process = start(script, *args, cwd=cwd, env=env)
    out, err = process.communicate(timeout=seconds)
    assert process.returncode in codes, f"{process.returncode}\n{out[-2000:]}\n{err[-4000:]}"
    return out
