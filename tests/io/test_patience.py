"""After a signal, files are read for two more seconds."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.io import patience
from repro_env.io.files import Found, entry_at, sha256_of
from repro_env.io.patience import PATIENCE
from repro_env.sandbox import outputs
from repro_env.schema.errors import CaptureError
from repro_env.store.store import Store


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    PATIENCE.restore()


def file(tmp_path: Path) -> tuple[Path, Found]:
    path = tmp_path / "x"
    path.write_text("x")
    return path, entry_at(str(path), "x")


def test_what_is_read_soon_after_a_signal_is_complete(tmp_path: Path) -> None:
    path, _ = file(tmp_path)
    PATIENCE.limit(signal.SIGINT)
    assert sha256_of(path) == hashlib.sha256(b"x").hexdigest()
    assert PATIENCE.ended_by == 0


def test_what_is_not_read_in_time_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = file(tmp_path)
    monkeypatch.setattr(patience, "_SECONDS", -1.0)
    PATIENCE.limit(signal.SIGTERM)
    PATIENCE.limit(signal.SIGINT)
    with pytest.raises(OSError, match="SIGTERM ended the reading"):
        sha256_of(path)
    with pytest.raises(CaptureError, match="SIGTERM ended the reading"):
        Store.open(tmp_path / "store").hashes.of(tmp_path, [found])
    assert outputs.collect(tmp_path / "other") == outputs.Contents((), ())
    (tmp_path / "other").mkdir()
    path.rename(tmp_path / "other" / "x")
    assert outputs.collect(tmp_path / "other").others == ("x (SIGTERM ended the reading)",)
    assert PATIENCE.ended_by == signal.SIGTERM
    PATIENCE.restore()
    assert len(outputs.collect(tmp_path / "other").outputs) == 1
