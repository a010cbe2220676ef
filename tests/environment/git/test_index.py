"""Git accepts an adapted index."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from repro_env.environment.git.index import of_snapshot
from tests.parts import need

TIME = 315532800


def git(directory: Path, *args: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *args], cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("format_", ["sha1", "sha256"])
def test_git_reports_no_changes_with_an_adapted_index(tmp_path: Path, format_: str) -> None:
    need(shutil.which("git"), "git is not installed")
    git(tmp_path, "init", "--quiet", f"--object-format={format_}")
    for number in range(20):  # paths of every length modulo eight
        (tmp_path / ("a" * (number + 1))).write_text(str(number))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    (tmp_path / "new").write_text("x")
    git(tmp_path, "add", "--intent-to-add", "new")  # an entry with extended flags
    absent = {"a" * number for number in range(1, 10)}
    for name in absent:
        (tmp_path / name).unlink()
    index = tmp_path / ".git" / "index"
    changed = of_snapshot(
        index.read_bytes(), absent.__contains__, name=20 if format_ == "sha1" else 32, time=lambda path: TIME * 10**9
    )
    index.write_bytes(changed)
    assert git(tmp_path, "status", "--porcelain") == " A new\n"
    git(tmp_path, "rm", "--quiet", "--cached", "new")
    git(tmp_path, "config", "core.checkStat", "minimal")
    before = index.read_bytes()
    index.write_bytes(
        of_snapshot(before, absent.__contains__, name=20 if format_ == "sha1" else 32, time=lambda path: TIME * 10**9)
    )
    for path in (*tmp_path.glob("[an]*"), index):
        os.utime(path, (TIME, TIME))
    same = "diff-index", "--name-only", "HEAD"  # compares only times
    assert git(tmp_path, *same) == ""
    (tmp_path / ("a" * 15)).write_text("XX")  # same length and time: only the content differs
    os.utime(tmp_path / ("a" * 15), (TIME, TIME))
    assert git(tmp_path, *same) == "a" * 15 + "\n"
    git(tmp_path, "fsck")


@pytest.mark.parametrize("damaged", [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff", b"DIRC\0\0\0\4\0\0\0\1" + b"x" * 99])
def test_an_unsupported_index_is_returned_unchanged(damaged: bytes) -> None:
    assert of_snapshot(damaged, lambda path: True, name=20, time=lambda path: TIME * 10**9) == damaged
