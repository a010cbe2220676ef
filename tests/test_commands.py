"""A forked `repro-env` answers as the installed command does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import commands

CALLS = (["--version"], ["runs", "list"], ["exec", "--no-such-option"], ["store"], ["capture", "--python", "nowhere/python"])


def test_a_fork_answers_as_the_installed_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_servers", {})
    env = {**os.environ, "REPRO_ENV_STORE": str(tmp_path / "store")}
    started = [
        subprocess.run([commands.COMMAND, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        for words in CALLS
    ]
    commands.run(["--version"], cwd=tmp_path, env=env)
    assert list(commands._servers.values()) == [None], "the first command with these variables is not a fork"
    forked = [commands.run(words, cwd=tmp_path, env=env) for words in CALLS]
    (server,) = commands._servers.values()
    assert server
    assert forked == [(done.returncode, done.stdout, done.stderr) for done in started]
    assert len({done.code for done in forked}) >= 3
    server.control.close()
    assert server.process.wait(100) == 0
