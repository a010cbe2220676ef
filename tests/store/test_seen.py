from __future__ import annotations

import os
from pathlib import Path

from repro_env.store.seen import Seen


def test_folders_are_remembered_by_where_they_really_are(tmp_path: Path) -> None:
    root, runs = tmp_path / "store" / "runs", tmp_path / "b" / "runs"
    root.mkdir(parents=True)
    runs.mkdir(parents=True)
    (tmp_path / "link").symlink_to("b/runs")
    odd = tmp_path / os.fsdecode(b"a\n\xff")
    odd.mkdir()
    seen = Seen(root)
    for folder in (runs, tmp_path / "link", runs, odd):
        seen.see(folder)
    assert seen.folders() == sorted([odd, runs])
    runs.rmdir()
    assert seen.folders() == sorted([odd, runs]), "a disk may come back"
    seen.see(tmp_path / "yet to be made")
    assert len(seen.folders()) == 3


def test_torn_notes_and_a_folder_that_is_gone_hold_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store" / "runs"
    root.mkdir(parents=True)
    seen = Seen(root)
    seen.see(tmp_path)
    (note,) = root.iterdir()
    note.write_bytes(note.read_bytes()[:3])
    (root / "sub").mkdir()
    assert seen.folders() == []
    Seen(tmp_path / "none").see(tmp_path)
    assert Seen(tmp_path / "none").folders() == []


def test_runs_in_the_store_itself_are_for_a_while_only(tmp_path: Path) -> None:
    """`verify` repeats a run there, and removes it."""
    (tmp_path / "runs").mkdir()
    seen = Seen(tmp_path / "runs")
    seen.see(tmp_path / "temp" / "x" / "runs")
    assert seen.folders() == []


def test_the_last_use_is_noted(tmp_path: Path) -> None:
    root = tmp_path / "store" / "runs"
    root.mkdir(parents=True)
    seen = Seen(root)
    assert seen.last(tmp_path) == 0
    seen.see(tmp_path)
    (note,) = root.iterdir()
    os.utime(note, (1, 1))
    assert seen.last(tmp_path) == 1
    seen.see(tmp_path)
    assert seen.last(tmp_path) > 1
