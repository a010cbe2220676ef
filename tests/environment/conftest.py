"""Fixtures with small real environments and git repositories."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parts import BASE_PYTHON


def make_venv(python: str, directory: Path, *options: str) -> Path:
    subprocess.run([python, "-m", "venv", "--without-pip", *options, str(directory)], check=True, capture_output=True)
    return directory


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return the directory of a new venv, made with the Python that runs the tests."""
    return make_venv(BASE_PYTHON, tmp_path / "venv")


Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Return a function `git(directory, *args)` that runs git as a user without any configuration."""
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

    def run(directory: Path, *args: str) -> str:
        done = subprocess.run(["git", *identity, "-C", str(directory), *args], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    return run
