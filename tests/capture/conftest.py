"""Real environments and real repositories, small and cheap."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def make_venv(python: str, folder: Path, *options: str) -> Path:
    subprocess.run([python, "-m", "venv", "--without-pip", *options, str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A venv of its own, made by the Python that runs the tests; its folder."""
    return make_venv(getattr(sys, "_base_executable", sys.executable), tmp_path / "venv")


Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """`git(folder, *args)`: run git as a user without any configuration."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    identity = (
        "-c",
        "user.name=Ann",
        "-c",
        "user.email=ann@example.org",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "protocol.file.allow=always",
    )

    def run(folder: Path, *args: str) -> str:
        done = subprocess.run(["git", *identity, "-C", str(folder), *args], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    return run
