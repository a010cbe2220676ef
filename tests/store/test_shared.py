"""A store on a file system that several machines share. No NFS server can be had here: what it does differently is made to happen."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from repro_env.io import files, filesystem
from repro_env.runs.records import records
from repro_env.schema.errors import DiskError, StoreError
from repro_env.store import temporary
from repro_env.store.bootmarks import Boot
from repro_env.store.store import Store
from repro_env.store.temporary import Temp
from tests.store.trees import diff_id, small

NFS = (
    "29 1 0:26 / / rw,relatime shared:1 - ext4 /dev/vda rw\n60 29 0:50 / {} rw - nfs4 server:/home rw,vers=3,{},addr=192.0.2.1\n"
)


@pytest.fixture
def local_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of the test is on NFS, with locks that only this machine sees."""
    monkeypatch.setattr(filesystem, "mounts", lambda: filesystem.parse(NFS.format(tmp_path, "local_lock=all")))


@pytest.mark.parametrize(
    ("options", "expected"),
    [("local_lock=none", ""), ("local_lock=posix", ""), ("local_lock=flock", "local_lock=flock"), ("nolock", "nolock")],
)
def test_mount_options_tell_whether_other_machines_see_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, expected: str
) -> None:
    monkeypatch.setattr(filesystem, "mounts", lambda: filesystem.parse(NFS.format(tmp_path, options)))
    assert filesystem.local_locks(tmp_path / "not" / "there") == expected
    assert filesystem.local_locks(Path("/usr")) == ""


@pytest.mark.usefixtures("local_locks")
def test_nothing_is_removed_if_other_machines_may_use_the_store(store: Store) -> None:
    with pytest.raises(StoreError, match="locks hold only on this one") as raised, store.lease.exclusive():
        pass
    assert raised.value.hint


def test_temporary_directories_of_another_machine_are_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = temporary._PREFIX
    for prefix in (".temp-another-", here):
        (tmp_path / f"{prefix}1").mkdir()
        (tmp_path / f"{prefix}1.lock").touch()
    Temp(tmp_path).clean()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".temp-another-1", ".temp-another-1.lock"]


def test_each_machine_checks_a_layer_once(tmp_path: Path) -> None:
    first, second = Boot(tmp_path), Boot(tmp_path)
    second.__dict__["_now"] = "another machine"
    first.mark("layer", "key")
    assert not second.is_marked("layer", "key")
    second.mark("layer", "key")
    assert first.is_marked("layer", "key")
    assert second.is_marked("layer", "key")
    assert not first.is_marked("layer", "another key")


def test_a_layer_that_another_machine_unpacked_meanwhile_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS may not show a new directory for a while."""
    there = store.layers.unpack(diff_id(small()), small())
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: path != there and is_dir(path))
    assert store.layers.unpack(diff_id(small()), small()) == there
    assert not list((store.root / "temp").iterdir())


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DiskError, match="No locks available") as raised:
        files.atomic_write(tmp_path / "x", b"")
    assert raised.value.where.startswith(str(tmp_path))
    assert "--runs DIR" in raised.value.hint


@pytest.mark.usefixtures("local_locks")
def test_a_run_on_another_machine_is_not_called_interrupted(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("another-node")
    assert records.is_running(tmp_path)
    (tmp_path / "lock").write_text(os.uname().nodename)
    assert not records.is_running(tmp_path)
