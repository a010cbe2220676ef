"""Held against git itself: what it says of an index that was changed here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from repro_env.capture.gitindex import assume_valid
from tests.parts import need


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("format_", ["sha1", "sha256"])
def test_git_takes_marked_files_as_they_were_committed(tmp_path: Path, format_: str) -> None:
    need(shutil.which("git"), "there is no git program")
    git(tmp_path, "init", "--quiet", f"--object-format={format_}")
    for number in range(20):  # paths of every length modulo eight
        (tmp_path / ("a" * (number + 1))).write_text(str(number))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    (tmp_path / "new").write_text("x")
    git(tmp_path, "add", "--intent-to-add", "new")  # an entry with extended flags
    gone = {"a" * number for number in range(1, 10)}
    for name in gone:
        (tmp_path / name).unlink()
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    assert assume_valid(before, lambda path: False, name=20) == before
    index.write_bytes(assume_valid(before, gone.__contains__, name=20 if format_ == "sha1" else 32))
    assert git(tmp_path, "status", "--porcelain") == " A new\n"
    git(tmp_path, "fsck")


@pytest.mark.parametrize("damaged", [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff", b"DIRC\0\0\0\4\0\0\0\1" + b"x" * 99])
def test_an_index_that_is_not_understood_stays(damaged: bytes) -> None:
    assert assume_valid(damaged, lambda path: True, name=20) == damaged
