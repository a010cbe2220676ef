from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from repro_env.schema.errors import DiskError, StoreError
from repro_env.store import temporary
from repro_env.store.store import Store
from tests.parts import need


def test_a_new_store_is_private(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a" / "store")

    assert store.root == tmp_path / "a" / "store"
    for directory in (store.root, *filter(Path.is_dir, store.root.iterdir())):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory


def test_the_path_of_the_store_follows_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("REPRO_ENV_STORE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Store.open().root == tmp_path / "home/.cache/repro-env"

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert Store.open().root == tmp_path / "home/.cache/repro-env"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Store.open().root == tmp_path / "cache/repro-env"

    monkeypatch.setenv("REPRO_ENV_STORE", str(tmp_path / "given"))
    assert Store.open().root == tmp_path / "given"

    assert Store.open(tmp_path / "argument").root == tmp_path / "argument"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_store_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(mode)

    with pytest.raises(StoreError, match="can be written by other users") as raised:
        Store.open(tmp_path / "store")
    assert "chmod" in raised.value.hint


def test_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "uid 0: only root can give a directory away")
    (tmp_path / "store").mkdir(mode=0o700)
    os.chown(tmp_path / "store", 1234, 1234)

    with pytest.raises(StoreError, match="another user"):
        Store.open(tmp_path / "store")


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")

    for place in (tmp_path / "store", tmp_path / "store" / "below"):
        with pytest.raises(StoreError, match="cannot be used") as raised:
            Store.open(place)
        assert "REPRO_ENV_STORE" in raised.value.hint


def test_a_store_on_a_full_disk_is_refused(small_disk: Path) -> None:
    for number in range(58):
        (small_disk / f"{number}").write_bytes(b"")

    with pytest.raises(DiskError, match="inodes"):
        Store.open(small_disk / "store")


def test_only_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    with store.temp.directory() as living:
        (living / "file").write_bytes(b"")
        dead = store.root / "temp" / f"{temporary._PREFIX}dead"
        (dead / "tree").mkdir(parents=True)
        (dead / "tree").chmod(0o500)
        Path(f"{dead}.lock").write_bytes(b"")

        Store.open(tmp_path / "store")

        assert sorted(path.name for path in living.parent.iterdir()) == sorted([living.name, f"{living.name}.lock"])
        assert (living / "file").exists()
    assert list(living.parent.iterdir()) == []


def test_facts_are_stored_by_kind_and_key(store: Store) -> None:
    assert store.facts.get("layer", "a") is None
    store.facts.put("layer", "a", b"one\ntwo")
    store.facts.put("layer", "a", b"three\n\0four")
    store.facts.put("layer", "b/../\0", b"")

    assert store.facts.get("layer", "a") == b"three\n\0four"
    assert store.facts.get("layer", "b/../\0") == b""
    assert store.facts.get("wheel", "a") is None
    with pytest.raises(ValueError, match="kind"):
        store.facts.put("../layers", "a", b"")


def test_a_damaged_fact_counts_as_missing(store: Store) -> None:
    store.facts.put("layer", "a", b"value")
    (path,) = (store.root / "facts" / "layer").iterdir()
    whole = path.read_bytes()
    for torn in (b"", whole[:-1], whole[:64], whole + b"x", whole[:-1] + b"f"):
        path.write_bytes(torn)
        assert store.facts.get("layer", "a") is None, torn
    store.facts.put("list", "b", b"[1]")
    assert store.facts.recall("list", "b", list[int]) == [1]
    assert store.facts.recall("list", "b", int) is None, "another format"
