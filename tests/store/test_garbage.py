"""Garbage collection: a pure function chooses, and renames remove."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from repro_env.api.store import collect as story
from repro_env.schema.errors import StoreError
from repro_env.schema.progress import Silent
from repro_env.store import garbage
from repro_env.store.store import Store
from repro_env.store.usage import Inventory, Kind, StoredImage, StoreItem, inventory
from tests.store.trees import diff_id, member, small

NOW = 1_000_000.0 * garbage.DAY


def thing(kind: Kind, name: str, days: float, size: int = 10) -> StoreItem:
    return StoreItem(kind, name * 64, size, NOW - days * garbage.DAY)


def found(*things: StoreItem, images: Sequence[StoredImage] = ()) -> Inventory:
    return Inventory(things, tuple(images), 0)


def chosen(
    inventory: Inventory, named: Sequence[str] = (), keep_days: float | None = None, max_size: int | None = None
) -> list[tuple[str, str]]:
    items = garbage.choose(inventory, {name * 64 for name in named}, now=NOW, keep_days=keep_days, max_size=max_size)
    return [(item.kind, item.name[0]) for item in items]


def test_items_that_were_not_used_for_long_are_removed() -> None:
    all_of_them = found(thing("blob", "a", 31), thing("blob", "b", 29), thing("fact", "c", 40), thing("layer", "d", 0))
    assert chosen(all_of_them, keep_days=30) == [("fact", "c"), ("blob", "a")]
    assert len(chosen(all_of_them, keep_days=0)) == 3  # the last item is in use
    assert chosen(all_of_them, keep_days=365) == []


def test_the_least_recently_used_items_are_removed_down_to_a_size() -> None:
    things = [thing("blob", "a", 3), thing("layer", "b", 2), thing("fact", "c", 9), thing("blob", "d", 1)]
    random.Random(7).shuffle(things)
    assert chosen(found(*things), max_size=40) == []
    assert chosen(found(*things), max_size=39) == [("blob", "a")]
    assert chosen(found(*things), max_size=20) == [("blob", "a"), ("layer", "b")]
    assert chosen(found(*things), max_size=0) == [("blob", "a"), ("layer", "b"), ("blob", "d")]


def test_items_in_use_are_kept() -> None:
    things = found(thing("layer", "a", 99), thing("image", "b", 99), thing("damaged", "c", 99))
    assert chosen(things, named="ab", keep_days=1, max_size=0) == [("damaged", "c")]
    assert chosen(things, named="abc", keep_days=1, max_size=0) == []


def test_an_image_without_a_layer_is_removed_with_its_items() -> None:
    image, other = StoredImage("1" * 64, ("a" * 64, "b" * 64), "", NOW), StoredImage("2" * 64, ("b" * 64,), "", NOW)
    things = [thing("layer", "a", 50), thing("layer", "b", 1)]
    for name in "12":
        things += [thing("image", name, 1), thing("links", name, 1)]
    going = chosen(found(*things, images=[image, other]), keep_days=30)
    assert sorted(going) == [("image", "1"), ("layer", "a"), ("links", "1")]


@pytest.fixture
def full(store: Store) -> Store:
    """Two images that share a layer, links of the first, a wheel, a source tree, a spec directory, a fact."""
    shared, first_layer, second_layer = (_layer(store, name) for name in ("shared", "one", "two"))
    _layer(store, "source")
    first = store.images.put(_config(shared, first_layer))
    store.images.put(_config(shared, second_layer))
    name = first.removeprefix("sha256:")
    (store.root / "merged").mkdir()
    (store.root / "merged" / name).mkdir()
    os.link(store.root / "layers" / first_layer.removeprefix("sha256:") / "one", store.root / "merged" / name / "one")
    (store.root / "merged" / f"{name}.lock").touch()
    store.blobs.put([b"wheel"], "sha256:" + sha256(b"wheel"), where="test")
    store.spec_directories.make("c" * 64, _spec)
    store.facts.put("test", "key", b"value")
    return store


def _spec(directory: Path) -> None:
    (directory / "spec.json").write_text("{}")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _layer(store: Store, name: str) -> str:
    return store.layers.add([member(name, os.urandom(20_000))])


def _config(*diff_ids: str) -> bytes:
    return json.dumps({"config": {}, "rootfs": {"diff_ids": diff_ids, "type": "layers"}}).encode()


def kinds(store: Store) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in inventory(store).things:
        counts[item.kind] = counts.get(item.kind, 0) + 1
    return counts


WHOLE = {"blob": 1, "fact": 5, "image": 2, "layer": 4, "links": 1, "spec": 1}
"""Four facts are the layers' sizes."""


def age(store: Store, days: float) -> None:
    """Set the times of all uses back by some days."""
    when = time.time() - days * garbage.DAY
    for directory in ("boot", "images", "facts", "specs"):
        for path in (store.root / directory).rglob("*"):
            os.utime(path, (when, when))


def collect(store: Store, **rule: float | None) -> list[StoreItem]:
    rules = {"keep_days": None, "max_size": None, **rule}
    result = story(store, **rules, dry_run=False, tell=Silent(), patience=0.2)  # type: ignore[arg-type]
    return list(result.things)


def test_the_inventory_has_all_kinds_and_sizes(full: Store) -> None:
    found = inventory(full)
    assert kinds(full) == WHOLE
    by_kind = {item.kind: item for item in found.things}
    assert 20_000 <= by_kind["layer"].size < 60_000
    assert by_kind["links"].size < 8_192, "its files belong to the layer"
    assert abs(found.size - _du(full.root)) <= 4096 * 3  # the directories themselves


def _du(root: Path) -> int:
    sizes = {}
    for path in (root, *root.rglob("*")):
        facts = path.lstat()
        sizes[facts.st_ino] = facts.st_blocks * 512
    for directory in ("blobs", "layers", "images", "merged", "specs", "facts"):
        sizes.pop((root / directory).stat().st_ino)
    return sum(sizes.values())


def test_everything_can_be_removed(full: Store) -> None:
    assert collect(full, keep_days=30) == []
    assert kinds(full) == WHOLE
    age(full, 31)
    collect(full, keep_days=30)
    assert kinds(full) == {}
    remaining = {str(path.relative_to(full.root)) for path in full.root.rglob("*") if not path.is_dir()}
    assert remaining == {"CACHEDIR.TAG", "uses/all"}
    assert not (full.root / "temp").exists()


def test_only_items_in_use_are_kept(full: Store) -> None:
    age(full, 31)
    image, other = inventory(full).images
    runner = Store.open(full.root)
    with runner.lease.restrict_to([image.name, *image.layers]):
        collect(full, keep_days=0)
        assert full.images.get(image.name) is not None
        assert all(full.layers.verify(name) for name in image.layers)
        assert full.images.get(other.name) is None
        assert kinds(full)["layer"] == 2


def test_nothing_is_removed_while_a_build_is_running(full: Store) -> None:
    age(full, 31)
    builder = Store.open(full.root)
    with pytest.raises(StoreError, match="other commands"):
        collect(full, keep_days=0)
    builder.lease.close()
    assert kinds(full) == {**WHOLE}


def test_a_use_is_recorded(full: Store) -> None:
    image = inventory(full).images[0]
    age(full, 31)
    assert full.images.get(image.name) is not None
    for name in image.layers:
        assert full.layers.path(name) is not None
    assert full.blobs.path(sha256(b"wheel")) is not None
    collect(full, keep_days=30)
    counts = kinds(full)
    assert (counts["image"], counts["layer"], counts["blob"]) == (1, 2, 1)


def test_items_used_after_the_inventory_are_kept(full: Store) -> None:
    age(full, 31)
    since = time.time()
    things = inventory(full).things
    os.utime(full.root / "boot" / sha256(b"wheel"), (since + 5, since + 5))
    removed = garbage.remove(full, things, since=since, patience=0)
    assert len(removed) == len(things) - 1
    assert kinds(full) == {"blob": 1}


def test_incomplete_images_and_files_are_removed(full: Store) -> None:
    image, _ = inventory(full).images
    full.layers.discard(image.layers[-1])
    (full.root / "facts" / "test" / ".x.tmp").write_bytes(b"half")
    assert {(item.kind, item.name) for item in collect(full, keep_days=99)} >= {("image", image.name)}
    assert full.images.get(image.name) is None
    assert not list((full.root / "facts").rglob(".*.tmp"))


def test_a_damaged_layer_in_use_is_removed_after_the_run(store: Store) -> None:
    layer = store.layers.unpack(diff_id(small()), small())
    runner = Store.open(store.root)
    with runner.lease.restrict_to([layer.name]):
        store.layers.discard(layer.name)
        assert collect(store, keep_days=99) == []
        (kept,) = (store.root / "damaged").iterdir()
        assert (kept / "opt").is_dir()
    runner.lease.close()
    assert [item.kind for item in collect(store, keep_days=99)] == ["damaged"]
    assert list((store.root / "damaged").iterdir()) == []
