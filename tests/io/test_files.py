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

from repro_env.io import files
from repro_env.oci.entry import Entry
from repro_env.schema.errors import ArtifactError, CaptureError, DiskError


def _paths(root: Path) -> list[str]:
    return [entry.path for entry in files.walk(root)]


def test_walk_lists_each_directory_before_its_entries(tmp_path: Path) -> None:
    for name in ("b/z", "b/a/deep", "a.txt", "b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    assert _paths(tmp_path) == ["a.txt", "b", "b/a", "b/a/deep", "b/z", "b.txt"]


def test_walk_reports_the_kind_and_facts_of_each_path(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"12345")
    (tmp_path / "run").chmod(0o744)
    (tmp_path / "group").write_bytes(b"")
    (tmp_path / "group").chmod(0o654)
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")

    found = {entry.path: entry for entry in files.walk(tmp_path)}

    assert (found["run"].kind, found["run"].executable, found["run"].size) == ("file", True, 5)
    assert not found["group"].executable, "only the owner's bit counts"
    assert (found["link"].kind, found["link"].target, found["link"].size) == ("link", "run", 0)
    assert found["loop"].kind == "link", "a symlink to a directory is not followed"
    assert found["pipe"].kind == "other"
    facts = (tmp_path / "run").stat()
    assert found["run"].key == (facts.st_dev, facts.st_ino, 5, facts.st_mtime_ns, facts.st_ctime_ns)


def test_walk_omits_skipped_directories_and_everything_below(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/gone").mkdir()
    (tmp_path / "keep/gone/x").write_bytes(b"")
    (tmp_path / "keep/file").write_bytes(b"")
    calls: list[tuple[str, bool]] = []

    def skip(path: str, is_dir: bool) -> bool:
        calls.append((path, is_dir))
        return path == "keep/gone"

    assert [entry.path for entry in files.walk(tmp_path, skip=skip)] == ["keep", "keep/file"]
    assert calls == [("keep", True), ("keep/file", False), ("keep/gone", True)]


def test_walk_supports_more_levels_than_it_keeps_open(tmp_path: Path) -> None:
    expected, path = [], tmp_path
    for _ in range(100):
        path = path / "d"
        path.mkdir()
        (path / "f").write_bytes(b"x")
        (path / "g").symlink_to("f")
        relative = path.relative_to(tmp_path).as_posix()
        expected += [relative, f"{relative}/f", f"{relative}/g"]

    found = {entry.path: entry for entry in files.walk(tmp_path)}

    assert sorted(found) == sorted(expected)
    assert all(found[name].target == "f" for name in expected if name.endswith("g"))


def test_an_abandoned_walk_closes_its_directories(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    before = sorted(Path("/proc/self/fd").iterdir())

    entries = files.walk(tmp_path)
    assert next(entries).path == "a"
    assert next(entries).path == "a/b"
    entries.close()  # type: ignore[attr-defined]

    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_walk_names_a_file_whose_name_is_not_utf8(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad-\xff")).write_bytes(b"")

    with pytest.raises(CaptureError, match=r"bad-\\xff"):
        _paths(tmp_path)


def test_walk_names_a_symlink_whose_target_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(os.fsdecode(b"\xff"))

    with pytest.raises(CaptureError, match="link: the target of this symlink"):
        _paths(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every directory")
def test_walk_raises_for_an_unreadable_directory(tmp_path: Path) -> None:
    (tmp_path / "unreadable").mkdir(mode=0o000)

    with pytest.raises(PermissionError):
        _paths(tmp_path)


def test_atomic_write_replaces_the_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
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


def test_atomic_write_reuses_the_temporary_file_of_a_killed_process(tmp_path: Path) -> None:
    (tmp_path / ".spec.json.tmp").write_bytes(b"half of something longer")

    files.atomic_write(tmp_path / "spec.json", b"whole")

    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]
    assert (tmp_path / "spec.json").read_bytes() == b"whole"


def test_concurrent_atomic_writes_never_mix(tmp_path: Path) -> None:
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


def test_atomic_write_supports_empty_and_large_files(tmp_path: Path) -> None:
    for size in (0, 1, 5_000_000):
        files.atomic_write(tmp_path / "file", bytes(size))
        assert (tmp_path / "file").stat().st_size == size


def test_sha256_refuses_a_symlink(tmp_path: Path) -> None:
    data = os.urandom(3 * files.CHUNK + 7)
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "link").symlink_to("file")

    assert files.sha256_of(tmp_path / "file") == hashlib.sha256(data).hexdigest()
    with pytest.raises(OSError, match="symbolic"):
        files.sha256_of(tmp_path / "link")


@pytest.mark.parametrize("size", [0, 1, files.CHUNK - 1, files.CHUNK, files.CHUNK + 1, 3 * files.CHUNK])
def test_contents_yield_all_bytes_of_a_file(tmp_path: Path, size: int) -> None:
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


def test_contents_do_not_follow_symlinks_or_wait_for_named_pipes(tmp_path: Path) -> None:
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


def test_a_lock_excludes_other_processes_until_its_holder_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _HOLD, str(tmp_path / "lock")]
    started: list[subprocess.Popen[bytes]] = []
    try:
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(holder)
        assert _read_line(holder, 60) == b"held\n"
        waiter = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(waiter)
        assert _read_line(waiter, 0.5) == b"", "both processes hold the lock"
        holder.kill()
        assert _read_line(waiter, 60) == b"held\n"
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _read_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return the line that the process prints within that time, or nothing."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else b""


def test_free_space_of_a_missing_directory_is_that_of_its_parent(tmp_path: Path) -> None:
    size, inodes = files.free(tmp_path / "not" / "yet")

    assert size > 0
    assert inodes > 0


def test_room_translates_a_full_disk_and_an_exceeded_quota(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="1,234 bytes needed"), files.room(tmp_path, 1234):
        raise OSError(28, "No space left on device")
    with pytest.raises(DiskError, match="quota"), files.room(tmp_path):
        raise OSError(122, "Disk quota exceeded")
    with pytest.raises(OSError, match="refused"), files.room(tmp_path):
        raise OSError(13, "refused")


def test_remove_tree_removes_read_only_directories_and_follows_no_symlink(tmp_path: Path) -> None:
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


def test_contents_refuse_a_file_that_changed_after_hashing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    keys = files.keys_of(files.walk(tmp_path))
    contents = files.FileContents(tmp_path, keys=keys)
    assert b"".join(contents.chunks(Entry("file", "file", size=6))) == b"before"
    (tmp_path / "file").write_bytes(b"after!")  # as long as before
    os.utime(tmp_path / "file", ns=(keys["file"][3], keys["file"][3]))  # and the same mtime; only ctime differs
    with pytest.raises(CaptureError, match="changed while it was captured"):
        list(contents.chunks(Entry("file", "file", size=6)))


def test_contents_refuse_a_file_that_changes_during_reading(tmp_path: Path) -> None:
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


def test_read_head_reads_the_first_bytes_of_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert files.read_head(tmp_path / "file", 3) == b"123"
    assert files.read_head(tmp_path / "file", 9) == b"12345"
    assert not any(files.read_head(tmp_path / name, 9) for name in ("link", "pipe", ".", "none"))


def test_read_regular_reads_only_regular_files_below_the_directory(tmp_path: Path) -> None:
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


def test_a_small_text_is_read_through_symlinks_and_otherwise_empty(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"caf\xe9\n")
    (tmp_path / "link").symlink_to("text")
    os.mkfifo(tmp_path / "pipe")
    assert files.read_text(tmp_path / "link") == "caf\udce9\n"
    assert files.read_text(tmp_path / "text", 3) == ""
    assert [files.read_text(tmp_path / name) for name in ("pipe", "missing", ".")] == ["", "", ""]


@pytest.mark.parametrize("parts", [(), (0,), (1 << 20,), (5 << 20,), (0, 3 << 20), ((7 << 20) + 3,), (0, (8 << 20) - 1)])
def test_files_with_holes_are_read_as_if_they_had_none(parts: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(8 << 20)
        for position in parts:
            file.seek(position)
            file.write(b"d")
    assert files.sha256_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert b"".join(files.chunks_of(path)) == path.read_bytes()
