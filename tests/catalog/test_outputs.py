from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from repro_env.catalog import outputs


def test_plain_files_are_hashed_and_sorted(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.txt").write_bytes(b"x")
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "a").mkdir()
    left = outputs.collect(tmp_path)
    assert [(one.path, one.size) for one in left.outputs] == [("b.txt", 0), ("b/x.txt", 1)]
    assert left.outputs[1].sha256 == "sha256:" + hashlib.sha256(b"x").hexdigest()
    assert left.others == ()


def test_many_bytes_are_hashed_the_same_on_all_cores(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 400_000)
    for number, one in enumerate(outputs.collect(tmp_path).outputs):
        assert one.sha256 == "sha256:" + hashlib.sha256(bytes([number]) * 400_000).hexdigest()


def test_what_is_no_plain_file_is_named_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
    left = outputs.collect(tmp_path)
    assert left.outputs == ()
    assert left.others == ("folder -> /etc", "link -> /etc/passwd", "pipe (pipe)", "s (socket)")


def test_names_that_no_record_holds_are_named(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).write_bytes(b"1")
    (tmp_path / "two\nlines").write_bytes(b"2")
    (tmp_path / "good").write_bytes(b"3")
    left = outputs.collect(tmp_path)
    assert [one.path for one in left.outputs] == ["good"]
    assert len(left.others) == 2
    assert all("no record holds" in one and "\n" not in one for one in left.others)


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert outputs.collect(tmp_path / "none") == outputs.Left((), ())
