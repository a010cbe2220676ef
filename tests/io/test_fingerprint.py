"""The fingerprint of a listing changes with every path, mode, symlink target and key, and not otherwise."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.io.files import fingerprint, walk
from repro_env.store import hashes


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "sub/a.py").write_bytes(b"a = 1\n")
    (root / "b.py").write_bytes(b"b = 1\n")
    (root / "link").symlink_to("b.py")
    return root


def _rewrite(root: Path) -> None:
    """Change the bytes, but not the size and mtime."""
    before = (root / "b.py").stat()
    time.sleep(0.02)
    (root / "b.py").write_bytes(b"b = 2\n")
    os.utime(root / "b.py", ns=(before.st_atime_ns, before.st_mtime_ns))


def _change_target(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("sub")


def _replace_link_by_file(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").write_bytes(b"b.py")


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewritten": _rewrite,
    "renamed": lambda root: (root / "b.py").rename(root / "c.py"),
    "executable": lambda root: (root / "b.py").chmod(0o755),
    "removed": lambda root: (root / "sub/a.py").unlink(),
    "new file": lambda root: (root / "sub/new.py").touch(),
    "new directory": lambda root: (root / "new").mkdir(),
    "new target": _change_target,
    "file for link": _replace_link_by_file,
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_changes_the_fingerprint(tree: Path, change: str) -> None:
    before = fingerprint(walk(tree))
    assert fingerprint(walk(tree)) == before
    CHANGES[change](tree)
    assert fingerprint(walk(tree)) != before


def test_skipped_bytecode_does_not_change_the_fingerprint(tree: Path) -> None:
    def skip(path: str, is_dir: bool) -> bool:
        return is_dir and path.endswith("__pycache__")

    before = fingerprint(walk(tree, skip=skip))
    (tree / "sub/__pycache__").mkdir()
    (tree / "sub/__pycache__/a.pyc").touch()
    assert fingerprint(walk(tree, skip=skip)) == before


def test_recently_changed_files_are_not_settled(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(walk(tree))
    newest = max(entry.key[4] for entry in found)
    monkeypatch.setattr(time, "time_ns", lambda: newest + hashes.SETTLED // 2)
    assert not hashes.settled(found)
    monkeypatch.setattr(time, "time_ns", lambda: newest + 2 * hashes.SETTLED)
    assert hashes.settled(found)
