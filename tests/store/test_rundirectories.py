from __future__ import annotations

import os
from pathlib import Path

from repro_env.store.rundirectories import RunDirectories


def test_directories_are_recorded_by_their_real_path(tmp_path: Path) -> None:
    root, runs = tmp_path / "store" / "runs", tmp_path / "b" / "runs"
    root.mkdir(parents=True)
    runs.mkdir(parents=True)
    (tmp_path / "link").symlink_to("b/runs")
    odd = tmp_path / os.fsdecode(b"a\n\xff")
    odd.mkdir()
    directories = RunDirectories(root)
    for directory in (runs, tmp_path / "link", runs, odd):
        directories.add(directory)
    assert directories.paths() == sorted([odd, runs])
    runs.rmdir()
    assert directories.paths() == sorted([odd, runs]), "a disk may be mounted again"
    directories.add(tmp_path / "yet to be made")
    assert len(directories.paths()) == 3


def test_directories_inside_the_store_are_not_recorded(tmp_path: Path) -> None:
    """`verify` repeats a run there and removes it afterwards."""
    (tmp_path / "runs").mkdir()
    directories = RunDirectories(tmp_path / "runs")
    directories.add(tmp_path / "temp" / "x" / "runs")
    assert directories.paths() == []


def test_the_last_use_is_recorded(tmp_path: Path) -> None:
    root = tmp_path / "store" / "runs"
    root.mkdir(parents=True)
    directories = RunDirectories(root)
    assert directories.last_used(tmp_path) == 0
    directories.add(tmp_path)
    (note,) = root.iterdir()
    os.utime(note, (1, 1), follow_symlinks=False)
    assert directories.last_used(tmp_path) == 1
    directories.add(tmp_path)
    assert directories.last_used(tmp_path) > 1


def test_the_source_trees_of_the_runs_in_a_directory_are_remembered(tmp_path: Path) -> None:
    root = tmp_path / "store" / "runs"
    root.mkdir(parents=True)
    directories = RunDirectories(root)
    assert directories.sources(tmp_path / "a") == []
    for sources in (("sha256:1", "sha256:2"), (), ("sha256:3",)):
        directories.add(tmp_path / "a", sources)
    assert directories.sources(tmp_path / "a") == ["sha256:1", "sha256:2", "sha256:3"]
    assert directories.sources(tmp_path / "b") == []
    assert directories.paths() == [tmp_path / "a"]
