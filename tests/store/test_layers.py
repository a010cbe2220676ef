from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from repro_env.oci import tar
from repro_env.oci.entry import Entry, Member
from repro_env.schema.errors import ArtifactError, BuildError, DiskError, StoreError
from repro_env.store.layers import Layers
from repro_env.store.store import Store
from tests.store import trees
from tests.store.trees import diff_id, directory, gone, link, member, small


def _leftovers(store: Store) -> list[str]:
    """Return everything in the store except complete layers and empty directories."""
    return [str(path) for directory in ("layers", "temp") for path in (store.root / directory).glob("**/*")]


def _count(directory: Path) -> int:
    return sum(1 for _ in directory.iterdir())


def _opened(store: Store) -> list[str]:
    """The paths in the store that this process has open."""
    paths = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(path for path in paths if path.startswith(f"{store.root.resolve()}/"))


def test_a_layer_is_unpacked_to_the_tree_of_its_tar(store: Store) -> None:
    path = store.layers.unpack(diff_id(small()), small())

    assert path == store.layers.path(diff_id(small())) == store.root / "layers" / diff_id(small()).removeprefix("sha256:")
    shown = trees.shown(path)
    assert set(shown) == {".", *(entry.path for entry, _ in small())}
    for entry, chunks in small():
        kind, mode, mtime, text = shown[entry.path]
        assert mtime == tar.MTIME, entry.path
        if entry.kind == "file":
            assert (kind, mode, text) == ("-", 0o755 if entry.executable else 0o644, b"".join(chunks).hex())
        elif entry.kind == "link":
            assert (kind, text) == ("l", entry.target)
        else:
            assert (kind, mode) == ("d", 0o755)
    assert shown["."] == ("d", 0o755, tar.MTIME, "")
    assert list((store.root / "temp").iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077, 0o777])
def test_the_umask_does_not_change_the_tree(store: Store, tmp_path: Path, umask: int) -> None:
    expected = trees.shown(store.layers.unpack(diff_id(small()), small()))
    if umask == 0o777 and os.geteuid() != 0:
        pytest.skip("nothing can be made under umask 777")
    before = os.umask(umask)
    try:
        other = Store.open(tmp_path / "other")
        path = other.layers.unpack(diff_id(small()), small())
    finally:
        os.umask(before)

    assert trees.shown(path) == expected


def test_a_file_takes_one_call_to_open_write_set_its_time_and_close(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes are right from the start under the usual umask, and the finished tree is not listed again for its mark."""
    files = [directory("a"), *(member(f"a/{number:03}", b"x") for number in range(200))]
    calls: dict[str, int] = {}

    def counted(name: str, patch: pytest.MonkeyPatch) -> None:
        original = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            calls[name] = calls.get(name, 0) + 1
            return original(*args, **kwargs)

        patch.setattr(os, name, call)

    before = os.umask(0o022)
    try:
        expected = diff_id(files)
        with monkeypatch.context() as patch:
            for name in ("open", "write", "close", "fchmod", "utime", "stat", "lstat", "fstat", "scandir", "mkdir", "lseek"):
                counted(name, patch)
            path = store.layers.unpack(expected, files)
    finally:
        os.umask(before)
    per_file = ("open", "write", "close", "utime")
    assert all(200 <= calls[name] < 225 for name in per_file), calls
    assert sum(count for name, count in calls.items() if name not in per_file) < 25, calls
    again = Store.open(store.root)
    monkeypatch.setattr(again.layers, "verify", lambda _: pytest.fail("the mark of the new layer is not that of its inodes"))
    assert again.layers.path(expected) == path


def test_an_unpacked_layer_is_not_unpacked_again(store: Store) -> None:
    store.layers.unpack(diff_id(small()), small())

    def never() -> Iterator[Member]:
        pytest.fail("the members were read")
        yield directory("x")

    assert store.layers.unpack(diff_id(small()), never()) == store.layers.path(diff_id(small()))


def test_a_tree_with_an_unknown_diff_id_can_be_added(store: Store) -> None:
    assert store.layers.add(small()) == diff_id(small())
    assert store.layers.add(small()) == diff_id(small())
    path = store.layers.path(diff_id(small()))
    assert path is not None
    assert (path / "opt/env.txt").read_bytes() == b"sorts between"


def test_a_wrong_layer_is_refused_with_both_diff_ids(store: Store) -> None:
    other = [*small()[:-1], member("opt/env/\N{GREEK SMALL LETTER PI}", b"3.15")]

    with pytest.raises(BuildError) as raised:
        store.layers.unpack(diff_id(small()), other)

    assert diff_id(small()) in str(raised.value)
    assert diff_id(other) in str(raised.value)
    assert _leftovers(store) == []
    assert store.layers.path(diff_id(small())) is None


def test_content_of_a_wrong_size_is_refused(store: Store) -> None:
    for data in (b"123", b"12345", b""):
        broken: list[Member] = [(Entry("file", "file", size=4), [data])]
        with pytest.raises(ArtifactError, match=r"file: the file has \S+ bytes instead of the expected 4"):
            store.layers.unpack("0" * 64, broken)
    assert _leftovers(store) == []


def test_a_source_that_fails_leaves_nothing(store: Store) -> None:
    def failing() -> Iterator[bytes]:
        yield b"12"
        raise ArtifactError("is damaged", where="wheel")

    with pytest.raises(ArtifactError, match="wheel: is damaged"):
        store.layers.unpack("0" * 64, [(Entry("file", "file", size=4), failing())])
    assert _leftovers(store) == []


HOSTILE: dict[str, Callable[[Path], list[Member]]] = {
    "up": lambda _: [directory(".."), member("../evil", b"x")],
    "up in the middle": lambda _: [directory("a"), member("a/../../evil", b"x")],
    "up as a name": lambda _: [directory("a"), member("a/..", b"x")],
    "absolute": lambda outside: [member(f"{outside}/evil", b"x")],
    "empty": lambda _: [member("", b"x")],
    "empty part": lambda _: [directory("a"), member("a//b", b"x")],
    "dot": lambda _: [member("./b", b"x")],
    "nul": lambda _: [member("a\0b", b"x")],
    "nul in a target": lambda _: [link("a", "b\0c")],
    "no target": lambda _: [link("a", "")],
    "through a symlink": lambda outside: [link("a", str(outside)), member("a/evil", b"x")],
    "through a symlink made a directory": lambda outside: [link("a", str(outside)), directory("a"), member("a/evil", b"x")],
    "over a symlink": lambda outside: [link("a", f"{outside}/evil"), member("a", b"x")],
    "directory over a symlink": lambda outside: [link("a", str(outside)), directory("a/b")],
    "link through a symlink": lambda outside: [link("a", str(outside)), link("a/evil", "x")],
    "whiteout through a symlink": lambda outside: [link("a", str(outside)), gone("a/evil")],
    "symlink to the parent": lambda _: [link("a", ".."), member("a/evil", b"x")],
    "below a file": lambda _: [member("a", b"x"), member("a/b", b"x")],
    "no directory": lambda _: [member("a/b", b"x")],
    "twice": lambda _: [member("a", b"x"), member("a", b"y")],
    "directory twice": lambda _: [directory("a"), directory("a")],
    "out of order": lambda _: [member("b", b"x"), member("a", b"y")],
    "long name": lambda _: [member("a" * 300, b"x")],
    "very deep": lambda _: [directory("/".join("a" * depth)) for depth in range(1, 300)],
    "very long": lambda _: [directory("/".join(["a" * 250] * depth)) for depth in range(1, 30)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_members_never_leave_the_directory(store: Store, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    before = sorted(str(path) for path in tmp_path.rglob("*"))

    with pytest.raises(BuildError):
        store.layers.unpack("0" * 64, HOSTILE[name](outside))

    (store.root / "locks" / ("0" * 64)).unlink()
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_a_whiteout_is_a_device_that_hides_a_lower_path(store: Store) -> None:
    members = [directory("usr"), gone("usr/old"), member("usr/older", b"x")]

    path = store.layers.unpack(diff_id(members), members)

    facts = (path / "usr/old").lstat()
    assert stat.S_ISCHR(facts.st_mode)
    assert facts.st_rdev == 0
    assert store.layers.verify(diff_id(members))


def test_a_kernel_that_refuses_whiteouts_is_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refused)
    members = [gone("old")]

    with pytest.raises(StoreError, match="whiteout") as raised:
        store.layers.unpack(diff_id(members), members)
    assert "5.8" in raised.value.hint
    assert _leftovers(store) == []


def test_more_directories_than_descriptors_are_written(store: Store) -> None:
    members = [made for number in range(300) for made in (directory(f"d{number:03}"), member(f"d{number:03}/f", b"x"))]
    members.append(directory("deep"))
    members.extend(directory("deep/" + "/".join("abcdefghij"[: depth + 1])) for depth in range(10))
    members.sort(key=lambda member: member[0].key)
    before = _opened(store)

    store.layers.unpack(diff_id(members), members)

    assert store.layers.verify(diff_id(members))
    assert _opened(store) == before


@pytest.mark.parametrize("damage", ["byte", "missing", "extra", "mode", "target"])
def test_verify_finds_any_damage(store: Store, damage: str) -> None:
    path = store.layers.unpack(diff_id(small()), small())
    assert store.layers.verify(diff_id(small()))
    if damage == "byte":
        (path / "opt/env/big").write_bytes(trees.BIG[:-1] + b"\0")
    elif damage == "missing":
        (path / "opt/env/empty").rmdir()
    elif damage == "extra":
        (path / "opt/env/new").mkdir()
    elif damage == "mode":
        (path / "opt/env.txt").chmod(0o755)
    else:
        (path / "opt/env/dangling").unlink()
        (path / "opt/env/dangling").symlink_to("elsewhere")

    assert not store.layers.verify(diff_id(small()))


def _next_boot(store: Store) -> Store:
    """The same store after the machine was restarted."""
    other = Store.open(store.root)
    other.boot._now = "another boot"
    return other


def test_a_layer_of_an_earlier_boot_is_checked_once(store: Store) -> None:
    path = store.layers.unpack(diff_id(small()), small())

    after = _next_boot(store)
    assert after.layers.path(diff_id(small())) == path
    (path / "opt/env.txt").write_bytes(b"edited after!")
    assert after.layers.path(diff_id(small())) == path, "it was checked in this boot"


def _edit(path: Path, content: bytes) -> None:
    """Write to a file, and put its time back."""
    facts = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def test_a_change_is_found_although_its_time_was_put_back(store: Store) -> None:
    path = store.layers.unpack(diff_id(small()), small())
    content = (path / "opt/env.txt").read_bytes()
    _edit(path / "opt/env.txt", content[::-1])
    assert Store.open(store.root).layers.path(diff_id(small())) is None
    assert not path.exists()


def test_a_layer_is_read_once_after_a_harmless_change_of_its_inodes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.layers.unpack(diff_id(small()), small())
    reads: list[str] = []
    verify = Layers.verify

    def counted(self: Layers, diff_id: str) -> bool:
        reads.append(diff_id)
        return verify(self, diff_id)

    monkeypatch.setattr(Layers, "verify", counted)
    os.link(path / "opt/env.txt", store.root / "link")
    (path / "opt/env/big").chmod(0o644)
    for _ in range(3):
        assert Store.open(store.root).layers.path(diff_id(small())) == path
    assert len(reads) == 1
    os.link(path / "opt/env.txt", store.root / "other-link")
    store.layers.mark(diff_id(small()))  # as after a merge
    assert Store.open(store.root).layers.path(diff_id(small())) == path
    assert len(reads) == 1


def test_a_layer_damaged_by_a_power_cut_counts_as_missing(store: Store) -> None:
    path = store.layers.unpack(diff_id(small()), small())
    (path / "opt/env/big").write_bytes(b"")

    after = _next_boot(store)
    assert after.layers.path(diff_id(small())) is None
    assert not path.exists()
    assert after.layers.unpack(diff_id(small()), small()) == path
    assert after.layers.verify(diff_id(small()))


@pytest.mark.parametrize("digest", ["", "../../etc", "sha256:" + "G" * 64, "md5:" + "0" * 32, "0" * 63])
def test_only_a_digest_is_accepted_as_a_name(store: Store, digest: str) -> None:
    with pytest.raises(StoreError, match="not a sha256"):
        store.layers.path(digest)


@pytest.mark.parametrize("full", ["bytes", "inodes"])
def test_a_full_disk_is_reported_and_nothing_is_left_behind(small_disk: Path, full: str) -> None:
    store = Store.open(small_disk / "store")
    if full == "bytes":
        members = [member(f"f{number}", bytes(500_000)) for number in range(9)]
    else:
        members = [member(f"f{number:03}", b"x") for number in range(100)]
    before = os.statvfs(small_disk)

    with pytest.raises(DiskError, match="4,500,000 bytes needed" if full == "bytes" else "no free inodes"):
        store.layers.unpack("0" * 64, members, size=4_500_000)

    after = os.statvfs(small_disk)
    assert before.f_ffree - after.f_ffree <= 1, "the lock file may stay"
    assert before.f_bfree == after.f_bfree
    store.layers.unpack(diff_id(small()[:1]), small()[:1])  # and it can be used again


_UNPACK = """
import sys, time
from pathlib import Path
from repro_env.store.store import Store
from tests.store import trees
def slowly():
    for number, one in enumerate(trees.small()):
        if number == 5:
            print("half", flush=True)
            if sys.argv[2] == "hang":
                time.sleep(300)
            sys.stdin.readline()
        yield one
print(Store.open(Path(sys.argv[1])).layers.unpack(trees.diff_id(trees.small()), slowly()), flush=True)
"""


def _unpacking(store: Store, how: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", _UNPACK, str(store.root), how]
    directory = Path(__file__).parent.parent.parent
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory)


def test_a_killed_process_leaves_no_layer_and_no_lock(store: Store) -> None:
    with _unpacking(store, "hang") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        assert _count(store.root / "temp") == 2, "a directory and its lock"
        Store.open(store.root)
        assert _count(store.root / "temp") == 2, "another process does not remove it"
        child.send_signal(signal.SIGKILL)
    assert store.layers.path(diff_id(small())) is None

    again = Store.open(store.root)
    assert _leftovers(again) == []
    path = again.layers.unpack(diff_id(small()), small())
    assert again.layers.verify(diff_id(small()))
    assert path == again.layers.path(diff_id(small()))


def test_two_processes_unpack_the_same_layer_once(store: Store) -> None:
    children = [_unpacking(store, "go"), _unpacking(store, "go")]
    try:
        outputs = _first_half_line(children)
        assert outputs.count(b"half\n") == 1, "the second waits for the first"
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"go\n")
            child.stdin.flush()
        outputs.extend(child.communicate(timeout=200)[0] for child in children)
        layer = str(store.root / "layers" / diff_id(small()).removeprefix("sha256:")).encode() + b"\n"
        assert sorted(outputs) == sorted([b"half\n", layer, layer])
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert store.layers.verify(diff_id(small()))


def _first_half_line(children: Iterable[subprocess.Popen[bytes]]) -> list[bytes]:
    import select

    pipes = [child.stdout for child in children if child.stdout is not None]
    ready, _, _ = select.select(pipes, [], [], 200)
    lines = [pipe.readline() for pipe in ready]
    time.sleep(0.3)  # gives the second process time to continue if it does not wait
    others = [pipe for pipe in pipes if pipe not in ready]
    ready, _, _ = select.select(others, [], [], 0.3)
    return lines + [pipe.readline() for pipe in ready]
