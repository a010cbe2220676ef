"""repro-env, captured by itself: rebuilt from an empty store, its environment has the captured image ID and runs (decision 0077)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from repro_env.version import __version__
from tests.e2e import parts


@pytest.mark.index
def test_the_environment_of_repro_env_is_rebuilt_from_an_empty_store_and_works(tmp_path: Path) -> None:
    python = parts.venv(tmp_path / "tool", own_pip=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, parts.ROOT], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    uv: list[str | Path] = [
        parts.COMMAND.with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--no-config",
        "--link-mode",
        "copy",
        "--python",
        python,
    ]
    into: list[str | Path] = [*pip, "--python", python, "install", "-qq", "--no-deps", "--no-compile"]
    locked: list[str | Path] = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", parts.lock("tool")]
    if subprocess.run([*uv, *locked], check=False, capture_output=True).returncode:  # uv does not ask every index of pip
        subprocess.run([*into, *locked], check=True)
    subprocess.run([*into, wheel], check=True)
    project = parts.project(tmp_path / "project", python, tmp_path / "store")
    spec = project.capture()
    elsewhere = project.elsewhere(tmp_path / "empty")
    assert elsewhere.rebuild() == spec["image_id"]
    assert elsewhere.run("exec", "repro-env", "--version").out == f"repro-env {__version__}\n"
