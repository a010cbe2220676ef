"""Temporary directories while other processes create and remove the same root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro_env.store.temporary import Temp


def test_a_root_that_is_removed_meanwhile_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes the empty root between the two steps of `mkdir(exist_ok=True)`, which then raises."""
    real, failures = Path.mkdir, [2]

    def mkdir(path: Path, *words: Any, **more: Any) -> None:
        if path == tmp_path / "root" and failures[0]:
            failures[0] -= 1
            raise FileExistsError
        real(path, *words, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with Temp(tmp_path / "root").directory() as directory:
        assert directory.is_dir()
    assert failures == [0]


def test_a_file_in_the_place_of_the_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(FileExistsError), Temp(tmp_path / "root").directory():
        pass
