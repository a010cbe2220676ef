"""A tree has the same listing from a blob, the store and the machine, and every change between two listings is found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from repro_env.compare.environments import trees
from repro_env.compare.environments.trees import FileTree, changes, describe
from repro_env.environment.system.tree import Tree
from repro_env.oci.entry import Entry, members, sort_with_parents
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import ArtifactError
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store
from tests.fakes import specs

FILES = {"a/bin/x": b"program", "a/y": b"text", "z": b""}


@pytest.fixture
def store() -> Store:
    return Store.open()


@pytest.fixture
def entries() -> list[Entry]:
    files = [entry for entry, _ in specs.tree(FILES)]
    return sort_with_parents([*files, Entry("a/link", "link", target="/etc"), Entry("a/empty", "dir"), Entry("b/gone", "gone")])


@pytest.fixture
def blob(entries: list[Entry], tmp_path: Path) -> TreeBlob:
    return SpecBlobs(tmp_path / "blobs").add_tree(members(entries, specs._Held(FILES)))


def check(tree: FileTree, entries: list[Entry]) -> None:
    assert list(tree.entries.values()) == entries
    assert tree.contents({"a/y", "a/link", "nothing"}) in ({"a/y": b"text"}, {})


def test_a_blob_the_store_and_the_machine_give_the_same_listing(
    blob: TreeBlob, entries: list[Entry], tmp_path: Path, store: Store
) -> None:
    check(trees.spec_tree(blob, tmp_path, store), entries)
    store.layers.unpack(blob.sha256, SpecBlobs(tmp_path / "blobs").tree(blob))
    found = trees.spec_tree(blob, tmp_path / "elsewhere", store)
    check(found, entries)
    assert found.contents({"a/y"}) == {"a/y": b"text"}
    check(trees.live_tree(Tree(entries=tuple(entries), contents=specs._Held(FILES))), entries)


def test_an_absent_tree_is_empty_and_a_missing_tree_is_an_error(blob: TreeBlob, tmp_path: Path, store: Store) -> None:
    assert trees.spec_tree(None, tmp_path, store).entries == {}
    with pytest.raises(ArtifactError, match="neither next to the spec nor in the store"):
        trees.spec_tree(blob, tmp_path / "elsewhere", store)


def test_a_symlink_of_a_layer_does_not_lead_out_of_it(blob: TreeBlob, tmp_path: Path, store: Store) -> None:
    """`a/link` leads to /etc, so a path below it is on this machine and not in the layer."""
    store.layers.unpack(blob.sha256, SpecBlobs(tmp_path / "blobs").tree(blob))
    found = trees.spec_tree(blob, tmp_path, store)
    assert Path("/etc/passwd").exists()
    assert "a/link/passwd" not in found.entries
    assert found.contents({"a/link/passwd"}) == {}


def test_a_damaged_blob_is_an_error(blob: TreeBlob, tmp_path: Path, store: Store) -> None:
    path = specs.blob(tmp_path, blob)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ArtifactError):
        trees.spec_tree(blob, tmp_path, store)


def test_large_files_are_not_read_into_memory(tmp_path: Path, store: Store) -> None:
    data = bytes(trees.SMALL + 1)
    digest = hashlib.sha256(data).hexdigest()
    entries = [Entry("big", "file", False, len(data), digest)]
    blob = SpecBlobs(tmp_path / "blobs").add_tree(members(entries, specs._Held({"big": data})))
    found = trees.spec_tree(blob, tmp_path, store)
    assert found.entries["big"].sha256 == digest
    assert found.contents({"big"}) == {}


def listing(*entries: Entry) -> dict[str, Entry]:
    return {entry.path: entry for entry in entries}


def test_each_kind_of_change_is_found() -> None:
    left = listing(
        Entry("a", "dir"),
        Entry("a/content", "file", False, 1, "1"),
        Entry("a/gone", "file", False, 1, "1"),
        Entry("a/kind", "file", False, 1, "1"),
        Entry("a/link", "link", target="x"),
        Entry("a/mode", "file", False, 1, "1"),
        Entry("a/same", "file", False, 1, "1"),
    )
    right = listing(
        Entry("a", "dir"),
        Entry("a/content", "file", False, 1, "2"),
        Entry("a/kind", "link", target="same"),
        Entry("a/link", "link", target="y"),
        Entry("a/mode", "file", True, 1, "1"),
        Entry("a/new", "file", False, 1, "1"),
        Entry("a/same", "file", False, 1, "1"),
    )
    assert [(change.path, change.how) for change in changes(left, right)] == [
        ("a/content", "content"),
        ("a/gone", "gone"),
        ("a/kind", "kind"),
        ("a/link", "target"),
        ("a/mode", "mode"),
        ("a/new", "new"),
    ]


def test_only_an_empty_directory_is_a_change() -> None:
    empty = listing(Entry("a", "dir"), Entry("a/b", "dir"))
    full = listing(Entry("a", "dir"), Entry("a/b", "dir"), Entry("a/b/file", "file", False, 1, "1"))
    assert [(change.path, change.how) for change in changes(empty, full)] == [("a/b/file", "new")]
    assert [(change.path, change.how) for change in changes({}, empty)] == [("a/b", "new")]
    file = listing(Entry("a", "dir"), Entry("a/b", "file", False, 1, "1"))
    assert [(change.path, change.how) for change in changes(file, full)] == [("a/b", "kind"), ("a/b/file", "new")]
    assert changes(listing(Entry("a", "dir")), {}) != ()
    assert changes(full, full) == ()


def test_a_path_is_described_in_a_few_words() -> None:
    assert describe(None) == ""
    assert describe(Entry("a", "link", target="b c")) == "link to b c"
    assert describe(Entry("a", "gone")) == "removed"
    assert describe(Entry("a", "file", True, 1234, "0123456789abcdef")) == "program, 1,234 bytes, sha256 0123456789ab"
