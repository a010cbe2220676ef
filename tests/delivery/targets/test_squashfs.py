"""`squashfs:FILE`: the same bytes each time, and the merged layers for unsquashfs and the kernel."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repro_env.delivery.targets import squashfs
from repro_env.oci import imagetree, layerreader, tar
from repro_env.oci.entry import Entry
from repro_env.schema.errors import BuildError, UsageError
from repro_env.store.store import Store
from tests.fakes import images
from tests.fakes.images import Layered
from tests.parts import need


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Layered:
    return images.sample(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def trees(sample: Layered) -> list[Path]:
    """Unpack the layers as in the store."""
    need(shutil.which(squashfs.PROGRAM), "mksquashfs: apt-get install squashfs-tools")
    store = Store.open()
    found = []
    for data in sample.layers:
        rest = memoryview(gzip.decompress(data))

        def take(count: int, rest: list[memoryview] = [rest]) -> bytes:  # noqa: B006
            piece, rest[0] = rest[0][:count], rest[0][count:]
            return bytes(piece)

        diff_id = store.layers.add(tar.read(take, where="layer"))
        path = store.layers.path(diff_id)
        assert path is not None
        found.append(path)
    return found


def shown(sample: Layered) -> dict[str, Entry]:
    nodes = [layerreader.scan([data], where="").nodes for data in sample.layers]
    return {entry.path: entry for entry in imagetree.flatten(nodes).entries()}


def there(root: Path) -> dict[str, Entry]:
    found = {}
    for directory, directories, names in os.walk(root):
        for name in [*directories, *names]:
            path = Path(directory) / name
            inside, facts = path.relative_to(root).as_posix(), path.lstat()
            assert (facts.st_uid, facts.st_gid, facts.st_mtime) == (0, 0, tar.MTIME), path
            if path.is_symlink():
                found[inside] = Entry(inside, "link", target=str(path.readlink()))
            elif path.is_dir():
                assert facts.st_mode & 0o7777 == 0o755
                found[inside] = Entry(inside, "dir")
            else:
                data = path.read_bytes()
                assert facts.st_mode & 0o7777 in (0o644, 0o755)
                found[inside] = Entry(inside, "file", bool(facts.st_mode & 0o100), len(data), hashlib.sha256(data).hexdigest())
    return found


def test_the_same_layers_give_the_same_bytes(trees: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert squashfs.write(trees, tmp_path / "one.sqfs") == f"squashfs:{tmp_path}/one.sqfs"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "77")
    old = os.umask(0o077)
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, [min(cores)])
        (tmp_path / "ünï").mkdir()
        squashfs.write(trees, tmp_path / "ünï/two.sqfs")
    finally:
        os.sched_setaffinity(0, cores)
        os.umask(old)
    assert (tmp_path / "one.sqfs").read_bytes() == (tmp_path / "ünï/two.sqfs").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.sqfs", "ünï"]


def test_unsquashfs_gives_the_merged_layers(sample: Layered, trees: list[Path], tmp_path: Path) -> None:
    need(shutil.which("unsquashfs") and os.geteuid() == 0, "unsquashfs, as root: apt-get install squashfs-tools")
    squashfs.write(trees, tmp_path / "image.sqfs")
    listed = subprocess.run(["unsquashfs", "-ll", tmp_path / "image.sqfs"], check=True, capture_output=True).stdout
    assert b"/etc/link -> ../usr/bin/tool" in listed
    assert b"/etc/old" not in listed
    subprocess.run(["unsquashfs", "-q", "-n", "-d", tmp_path / "out", tmp_path / "image.sqfs"], check=True, capture_output=True)
    assert there(tmp_path / "out") == shown(sample)


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir()
    done = subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", image, at], capture_output=True, text=True, check=False)
    need(done.returncode == 0, f"loop devices and a kernel with squashfs: {done.stderr}")
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def test_the_kernel_mounts_the_file(sample: Layered, trees: list[Path], tmp_path: Path) -> None:
    squashfs.write(trees, tmp_path / "image.sqfs")
    with mounted(tmp_path / "image.sqfs", tmp_path / "at") as at:
        assert there(at) == shown(sample)


def test_later_layers_replace_directories_and_files(tmp_path: Path) -> None:
    """Test `merge_trees` alone: a path changes its kind in a later layer."""
    lower, upper = tmp_path / "one", tmp_path / "two"
    for path in (lower / "a/deep/x", lower / "b", upper / "b/y"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name != "b":
            path.write_text("x")
    (lower / "b").write_text("a file")
    (upper / "a").symlink_to("b")
    assert {path: item.node.kind for path, item in squashfs.merge_trees([lower, upper]).placed.items()} == {
        "a": "link",
        "b": "dir",
        "b/y": "file",
    }


def test_a_missing_program_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="the program mksquashfs is needed"):
        squashfs.write([tmp_path], tmp_path / "image.sqfs")


def test_a_failing_program_is_reported_and_the_old_file_is_kept(
    trees: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / squashfs.PROGRAM
    program.write_text("#!/bin/sh\necho 'it is broken' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "image.sqfs").write_bytes(b"old")
    with pytest.raises(BuildError, match=r"exit status 3\): it is broken"):
        squashfs.write(trees, tmp_path / "image.sqfs")
    assert (tmp_path / "image.sqfs").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "image.sqfs"]


@pytest.mark.parametrize("name", ["", "no/such/directory/image.sqfs"])
def test_an_invalid_path_is_reported(trees: list[Path], tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="directory"):
        squashfs.write(trees, tmp_path / name)
