"""What the first capture on a machine makes, once for all hostile environments and repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import parts
from tests.hostile.ground import Ground


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: the base is cut once."""
    return tmp_path_factory.mktemp("hostile-store") / "store"


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory, store: Path) -> list[Path]:
    """The base and the interpreter as a capture carries them."""
    first = Ground(tmp_path_factory.mktemp("hostile-first") / "ground", store)
    ended = first.capture()
    assert ended.code == 0, ended.output
    assert not first.carries(b"canary-7c1e9a")
    return parts.large_blobs(first.project)
