"""A tree by its paths, from each place that can have it: the same listing from all of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from repro_env.base.tree import Tree
from repro_env.flows import trees
from repro_env.flows.trees import Held
from repro_env.image.entry import Entry, members, ordered
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import ArtifactError
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from tests.fakes import specs

FILES = {"a/bin/x": b"program", "a/y": b"text", "z": b""}


@pytest.fixture
def store() -> Store:
    return Store.open()


@pytest.fixture
def entries() -> list[Entry]:
    found = [entry for entry, _ in specs.tree(FILES)]
    return ordered([*found, Entry("a/link", "link", target="/etc"), Entry("a/empty", "dir"), Entry("b/gone", "gone")])


@pytest.fixture
def blob(entries: list[Entry], tmp_path: Path) -> TreeBlob:
    return Carried(tmp_path / "blobs").add_tree(members(entries, specs._Held(FILES)))


def same(held: Held | None, entries: list[Entry]) -> None:
    assert held is not None
    assert list(held.entries().values()) == entries
    assert [held.entry(entry.path) for entry in entries] == entries
    assert held.entry("nothing") is held.entry("z/below") is None
    assert held.contents({"a/y", "a/link", "nothing"}) in ({"a/y": b"text"}, {})


def test_the_same_listing_from_a_blob_the_store_and_the_machine(
    blob: TreeBlob, entries: list[Entry], tmp_path: Path, store: Store
) -> None:
    same(trees.captured(blob, tmp_path, store), entries)
    store.layers.unpack(blob.sha256, Carried(tmp_path / "blobs").tree(blob))
    found = trees.captured(blob, tmp_path / "elsewhere", store)
    same(found, entries)
    assert found is not None
    assert found.contents({"a/y"}) == {"a/y": b"text"}
    same(trees.Live(Tree(entries=tuple(entries), contents=specs._Held(FILES))), entries)
    same(trees.Listed(entries), entries)


def test_no_tree_and_a_tree_that_is_nowhere(blob: TreeBlob, tmp_path: Path, store: Store) -> None:
    nothing = trees.captured(None, tmp_path, store)
    assert nothing is not None
    assert nothing.entries() == {}
    assert trees.captured(blob, tmp_path / "elsewhere", store) is None


def test_a_symlink_of_a_layer_does_not_lead_out_of_it(blob: TreeBlob, tmp_path: Path, store: Store) -> None:
    """`a/link` is /etc: what a path below it names is this machine's, and no part of the layer."""
    store.layers.unpack(blob.sha256, Carried(tmp_path / "blobs").tree(blob))
    found = trees.captured(blob, tmp_path, store)
    assert found is not None
    assert Path("/etc/passwd").exists()
    assert found.entry("a/link/passwd") is None
    assert found.contents({"a/link/passwd"}) == {}


def test_a_damaged_blob_is_an_error(blob: TreeBlob, tmp_path: Path, store: Store) -> None:
    path = specs.blob(tmp_path, blob)
    path.write_bytes(path.read_bytes()[:-20])
    found = trees.captured(blob, tmp_path, store)
    assert found is not None
    with pytest.raises(ArtifactError):
        found.entries()


def test_large_files_are_not_read_into_memory(tmp_path: Path, store: Store) -> None:
    data = bytes(trees.SMALL + 1)
    digest = hashlib.sha256(data).hexdigest()
    entries = [Entry("big", "file", False, len(data), digest)]
    blob = Carried(tmp_path / "blobs").add_tree(members(entries, specs._Held({"big": data})))
    found = trees.captured(blob, tmp_path, store)
    assert found is not None
    assert found.entries()["big"].sha256 == digest
    assert found.contents({"big"}) == {}
