from __future__ import annotations

import os
from pathlib import Path

from repro_env.store.seen import Seen


def test_folders_are_remembered_by_where_they_really_are(tmp_path: Path) -> None:
    root, runs = tmp_path / "seen", tmp_path / "b" / "runs"
    root.mkdir()
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
    seen = Seen(tmp_path)
    seen.see(tmp_path)
    (note,) = tmp_path.iterdir()
    note.write_bytes(note.read_bytes()[:3])
    (tmp_path / "sub").mkdir()
    assert seen.folders() == []
    Seen(tmp_path / "none").see(tmp_path)
    assert Seen(tmp_path / "none").folders() == []
