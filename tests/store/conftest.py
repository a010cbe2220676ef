from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.io.process import run
from repro_env.oci import inflate
from repro_env.store.store import Store
from tests.parts import need


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB and 60 inodes. Needs root."""
    directory = tmp_path / "small"
    directory.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small tmpfs")
    done = run(["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=60,mode=0700", "tmpfs", str(directory)])
    need(done.code == 0, f"leave to mount a tmpfs: {done.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        run(["umount", "-l", str(directory)])


@pytest.fixture(params=["zlib", "isal.isal_zlib"])
def inflater(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with both libraries."""
    try:
        module = importlib.import_module(request.param)
    except ImportError:
        need(False, f"{request.param} is missing: it has no wheel for this Python")
    else:
        monkeypatch.setattr(inflate, "ZLIB", module)
