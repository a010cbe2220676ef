from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from repro_env.sandbox import outputs


def test_regular_files_are_hashed_and_sorted(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.txt").write_bytes(b"x")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "a").mkdir()
    contents = outputs.collect(tmp_path)
    assert [(output.path, output.size) for output in contents.outputs] == [("b.txt", 0), ("b/x.txt", 1)]
    assert contents.outputs[1].sha256 == "sha256:" + hashlib.sha256(b"x").hexdigest()
    assert contents.others == ()


def test_large_files_are_hashed_on_all_cores(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 400_000)
    assert [output.sha256 for output in outputs.collect(tmp_path).outputs] == [
        "sha256:" + hashlib.sha256(bytes([number]) * 400_000).hexdigest() for number in range(4)
    ]


def test_links_pipes_and_sockets_are_listed_but_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "directory").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
    contents = outputs.collect(tmp_path)
    assert contents.outputs == ()
    assert contents.others == ("directory -> /etc", "link -> /etc/passwd", "pipe (not a regular file)", "s (not a regular file)")


def test_files_with_names_that_a_record_cannot_hold_are_listed_separately(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).write_bytes(b"1")
    (tmp_path / "two\nlines").write_bytes(b"2")
    (tmp_path / "good").write_bytes(b"3")
    contents = outputs.collect(tmp_path)
    assert [output.path for output in contents.outputs] == ["good"]
    assert len(contents.others) == 2
    assert all("(a record cannot hold its name)" in line and "\n" not in line for line in contents.others)


def test_a_missing_directory_has_no_outputs(tmp_path: Path) -> None:
    assert outputs.collect(tmp_path / "none") == outputs.Contents((), ())
