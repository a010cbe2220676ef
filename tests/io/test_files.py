from __future__ import annotations

import hashlib
import os
import select
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from repro_env.image.entry import Entry
from repro_env.io import files
from repro_env.model.errors import ArtifactError, CaptureError, DiskError


def _walked(root: Path) -> list[str]:
    return [found.path for found in files.walk(root)]


def test_walk_lists_each_folder_before_what_is_in_it(tmp_path: Path) -> None:
    for name in ("b/z", "b/a/deep", "a.txt", "b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    assert _walked(tmp_path) == ["a.txt", "b", "b/a", "b/a/deep", "b/z", "b.txt"]


def test_walk_tells_what_each_path_is(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"12345")
    (tmp_path / "run").chmod(0o744)
    (tmp_path / "group").write_bytes(b"")
    (tmp_path / "group").chmod(0o654)
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")

    found = {one.path: one for one in files.walk(tmp_path)}

    assert (found["run"].kind, found["run"].executable, found["run"].size) == ("file", True, 5)
    assert not found["group"].executable, "only the owner's bit counts"
    assert (found["link"].kind, found["link"].target, found["link"].size) == ("link", "run", 0)
    assert found["loop"].kind == "link", "a symlink to a folder is not walked"
    assert found["pipe"].kind == "other"
    facts = (tmp_path / "run").stat()
    assert found["run"].key == (facts.st_dev, facts.st_ino, 5, facts.st_mtime_ns, facts.st_ctime_ns)


def test_walk_leaves_out_what_is_skipped_and_all_below(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/gone").mkdir()
    (tmp_path / "keep/gone/x").write_bytes(b"")
    (tmp_path / "keep/file").write_bytes(b"")
    asked: list[tuple[str, bool]] = []

    def skip(path: str, is_dir: bool) -> bool:
        asked.append((path, is_dir))
        return path == "keep/gone"

    assert [found.path for found in files.walk(tmp_path, skip=skip)] == ["keep", "keep/file"]
    assert asked == [("keep", True), ("keep/file", False), ("keep/gone", True)]


def test_walk_goes_deeper_than_it_holds_folders_open(tmp_path: Path) -> None:
    wanted, path = [], tmp_path
    for _ in range(files._HELD + 20):
        path = path / "d"
        path.mkdir()
        (path / "f").write_bytes(b"x")
        (path / "g").symlink_to("f")
        here = path.relative_to(tmp_path).as_posix()
        wanted += [here, f"{here}/f", f"{here}/g"]

    found = {one.path: one for one in files.walk(tmp_path)}

    assert sorted(found) == sorted(wanted)
    assert all(found[name].target == "f" for name in wanted if name.endswith("g"))


def test_a_walk_that_is_given_up_leaves_no_folder_open(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    before = sorted(Path("/proc/self/fd").iterdir())

    walked = files.walk(tmp_path)
    assert next(walked).path == "a"
    assert next(walked).path == "a/b"
    walked.close()  # type: ignore[attr-defined]

    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_walk_names_what_is_not_utf8(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad-\xff")).write_bytes(b"")

    with pytest.raises(CaptureError, match=r"bad-\\xff"):
        _walked(tmp_path)


def test_walk_names_a_symlink_whose_target_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(os.fsdecode(b"\xff"))

    with pytest.raises(CaptureError, match="link: is a symlink whose target"):
        _walked(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_walk_refuses_an_unreadable_folder(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o000)

    with pytest.raises(PermissionError):
        _walked(tmp_path)


def test_atomic_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    files.atomic_write(path, b"first")
    files.atomic_write(path, b"second")

    assert path.read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]


def test_atomic_write_keeps_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.mkdir()

    with pytest.raises(OSError, match="directory"):
        files.atomic_write(path, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]


def test_atomic_write_takes_over_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / ".spec.json.tmp").write_bytes(b"half of something longer")

    files.atomic_write(tmp_path / "spec.json", b"whole")

    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]
    assert (tmp_path / "spec.json").read_bytes() == b"whole"


def test_atomic_writes_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    texts = [bytes([number]) * 50_000 for number in range(4)]
    failed: list[BaseException] = []

    def write(text: bytes) -> None:
        try:
            for _ in range(10):
                files.atomic_write(path, text)
                assert path.read_bytes() in texts
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]


def test_atomic_write_of_any_size(tmp_path: Path) -> None:
    for size in (0, 1, 5_000_000):
        files.atomic_write(tmp_path / "file", bytes(size))
        assert (tmp_path / "file").stat().st_size == size


def test_sha256_of_a_file_and_not_of_a_symlink(tmp_path: Path) -> None:
    data = os.urandom(3 * files.CHUNK + 7)
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "link").symlink_to("file")

    assert files.sha256_of(tmp_path / "file") == hashlib.sha256(data).hexdigest()
    with pytest.raises(OSError, match="symbolic"):
        files.sha256_of(tmp_path / "link")


@pytest.mark.parametrize("size", [0, 1, files.CHUNK - 1, files.CHUNK, files.CHUNK + 1, 3 * files.CHUNK])
def test_contents_are_all_bytes_of_a_file(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    contents = files.FileContents(tmp_path, strip="/opt/env")

    chunks = list(contents.chunks(Entry("opt/env/file", "file", size=size)))

    assert b"".join(chunks) == data
    assert all(0 < len(chunk) <= files.CHUNK for chunk in chunks)


@pytest.mark.parametrize("size", [3, files.CHUNK])
def test_contents_refuse_a_file_that_became_longer(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(bytes(size + 1))

    with pytest.raises(ArtifactError, match="longer"):
        list(files.FileContents(tmp_path).chunks(Entry("file", "file", size=size)))


def test_contents_never_follow_a_symlink_or_wait_for_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    contents = files.FileContents(tmp_path)

    for name in ("link", "gone"):
        with pytest.raises(ArtifactError, match="cannot be read"):
            list(contents.chunks(Entry(name, "file", size=6)))
    assert list(contents.chunks(Entry("pipe", "file", size=6))) == []
    with pytest.raises(ArtifactError, match="below"):
        list(files.FileContents(tmp_path, "opt/env").chunks(Entry("opt/environment/x", "file", size=6)))


_HOLD = """
import sys, time
from pathlib import Path
from repro_env.io.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_held_against_another_process_and_freed_when_it_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _HOLD, str(tmp_path / "lock")]
    started: list[subprocess.Popen[bytes]] = []
    try:
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(holder)
        assert _line(holder, 60) == b"held\n"
        waiter = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(waiter)
        assert _line(waiter, 0.5) == b"", "both hold it"
        holder.kill()
        assert _line(waiter, 60) == b"held\n"
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """What it prints within that time."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else b""


def test_free_room_of_a_place_that_is_not_there_yet(tmp_path: Path) -> None:
    size, inodes = files.free(tmp_path / "not" / "yet")

    assert size > 0
    assert inodes > 0


def test_room_turns_a_full_disk_into_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="1,234 bytes needed"), files.room(tmp_path, 1234):
        raise OSError(28, "No space left on device")
    with pytest.raises(DiskError, match="quota"), files.room(tmp_path):
        raise OSError(122, "Disk quota exceeded")
    with pytest.raises(OSError, match="refused"), files.room(tmp_path):
        raise OSError(13, "refused")


def test_remove_tree_takes_read_only_folders_too_and_follows_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o555)
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/file").write_bytes(b"")
    (tree / "a/link").symlink_to(kept)
    (tree / "a/b").chmod(0o555)
    (tree / "a").chmod(0o000)

    files.remove_tree(tree)
    files.remove_tree(tree)

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o555


def test_a_file_with_another_key_than_when_it_was_hashed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    keys = files.keys_of(files.walk(tmp_path))
    contents = files.FileContents(tmp_path, keys=keys)
    assert b"".join(contents.chunks(Entry("file", "file", size=6))) == b"before"
    (tmp_path / "file").write_bytes(b"after!")  # as long as before
    os.utime(tmp_path / "file", ns=(keys["file"][3], keys["file"][3]))  # and as old; its ctime tells
    with pytest.raises(CaptureError, match="changed while it was captured"):
        list(contents.chunks(Entry("file", "file", size=6)))


def test_so_is_one_that_changes_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (2 * files.CHUNK))
    chunks = files.FileContents(tmp_path, keys=files.keys_of(files.walk(tmp_path))).chunks(
        Entry("file", "file", size=2 * files.CHUNK)
    )
    assert len(next(chunks)) == files.CHUNK
    with (tmp_path / "file").open("r+b") as file:
        file.write(b"y")
    os.utime(tmp_path / "file")
    with pytest.raises(CaptureError, match="changed while it was captured"):
        list(chunks)


def test_only_a_regular_file_below_its_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "own" / "below").mkdir(parents=True)
    (tmp_path / "own" / "below" / "file").write_bytes(b"12345")
    (tmp_path / "own" / "link").symlink_to("below/file")
    (tmp_path / "own" / "out").symlink_to("below")
    os.mkfifo(tmp_path / "own" / "pipe")
    os.truncate(os.open(tmp_path / "own" / "sparse", os.O_CREAT | os.O_RDWR), 1 << 40)
    own = tmp_path / "own"
    assert files.read_regular(own / "below" / "file", 5, below=own) == b"12345"
    wrong = {
        "link": "a symbolic link, not a regular file",
        "out/file": "a symbolic link, not a directory",
        "pipe": "a named pipe",
        "below": "a directory, not",
        "sparse": "larger than 5 bytes",
        "below/../../own/below/file": "leads out",
        "below/none": "No such file",
    }
    for name, why in wrong.items():
        with pytest.raises(OSError, match=why) as caught:
            files.read_regular(own / name, 5, below=own)
        assert caught.value.filename == str(own / name)
    with pytest.raises(OSError, match="larger than 4 bytes"):
        files.read_regular(own / "below" / "file", 4)
