"""Temporary folders beside other processes that make and remove the same root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro_env.store.temp import Temp


def test_a_root_that_goes_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes an empty root away between the two steps of `mkdir(exist_ok=True)`, which then says that it exists."""
    real, left = Path.mkdir, [2]

    def mkdir(path: Path, *words: Any, **more: Any) -> None:
        if path == tmp_path / "root" and left[0]:
            left[0] -= 1
            raise FileExistsError
        real(path, *words, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with Temp(tmp_path / "root").folder() as folder:
        assert folder.is_dir()
    assert left == [0]


def test_a_file_in_the_place_of_the_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(FileExistsError), Temp(tmp_path / "root").folder():
        pass
