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

from repro_env.api import store as use_case
from repro_env.schema.errors import StoreError
from repro_env.schema.progress import Silent
from repro_env.store import garbage
from repro_env.store.garbage import Inventory, Kind, StoreItem, inventory
from repro_env.store.store import Store
from tests.store.trees import diff_id, member, small

DAY = 86400.0
NOW = 1_000_000.0 * DAY


def thing(kind: Kind, name: str, days: float, layers: str = "") -> StoreItem:
    return StoreItem(kind, name * 64, 10, NOW - days * DAY, tuple(layer * 64 for layer in layers))


def found(*items: StoreItem) -> Inventory:
    return Inventory(tuple(sorted(items, key=lambda item: item.used)), 0)


def chosen(
    inventory: Inventory, named: Sequence[str] = (), keep_days: float | None = None, max_size: int | None = None
) -> list[tuple[str, str]]:
    items = garbage.choose(inventory, {name * 64 for name in named}, now=NOW, keep_days=keep_days, max_size=max_size)
    return [(item.kind, item.name[0]) for item in items]


def test_items_that_were_not_used_for_long_are_removed() -> None:
    all_of_them = found(thing("blob", "a", 31), thing("blob", "b", 29), thing("fact", "c", 40), thing("layer", "d", 0))
    assert chosen(all_of_them, keep_days=30) == [("blob", "a"), ("fact", "c")]
    assert len(chosen(all_of_them, keep_days=0)) == 3  # the last item is in use
    assert chosen(all_of_them, keep_days=365) == []


def test_the_least_recently_used_items_are_removed_down_to_a_size() -> None:
    things = [thing("blob", "a", 3), thing("layer", "b", 2), thing("fact", "c", 9), thing("blob", "d", 1)]
    random.Random(7).shuffle(things)
    assert chosen(found(*things), max_size=40) == []
    assert chosen(found(*things), max_size=39) == [("blob", "a")]
    assert chosen(found(*things), max_size=20) == [("blob", "a"), ("layer", "b")]
    assert chosen(found(*things), max_size=0) == [("blob", "a"), ("blob", "d"), ("layer", "b")]


def test_items_in_use_are_kept() -> None:
    things = found(thing("layer", "a", 99), thing("image", "b", 99), thing("damaged", "c", 99))
    assert chosen(things, named="ab", keep_days=1, max_size=0) == [("damaged", "c")]
    assert chosen(things, named="abc", keep_days=1, max_size=0) == []


def test_an_image_without_a_layer_is_removed_with_its_items() -> None:
    things = [thing("layer", "a", 50), thing("layer", "b", 1), thing("image", "1", 1, "ab"), thing("image", "2", 1, "b")]
    things += [thing("links", "1", 1), thing("links", "2", 1)]
    things += [StoreItem("links", f"{name * 64}.bytecode", 10, NOW) for name in "12"]
    assert chosen(found(*things), keep_days=30) == [("image", "1"), ("links", "1"), ("links", "1"), ("layer", "a")]


@pytest.fixture
def full(store: Store) -> Store:
    """Two images that share a layer, links of the first, a wheel, a source tree, a spec directory, a fact."""
    shared, first_layer, second_layer = (_layer(store, name) for name in ("shared", "one", "two"))
    _layer(store, "source")
    name = store.images.add([_config(shared, first_layer)])[0].name
    store.images.add([_config(shared, second_layer)])
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
    for item in inventory(store).items:
        counts[item.kind] = counts.get(item.kind, 0) + 1
    return counts


WHOLE = {"blob": 1, "fact": 1, "image": 2, "layer": 4, "links": 1, "spec": 1}


def age(store: Store, days: float) -> None:
    """Set the times of all uses back by some days."""
    when = time.time() - days * DAY
    for directory in ("boot", "facts", "merged"):
        for path in (store.root / directory).rglob("*"):
            if path.name != "one":  # a file of a layer
                os.utime(path, (when, when))


def collect(store: Store, **rule: float | None) -> list[StoreItem]:
    rules = {"keep_days": None, "max_size": None, **rule}
    result = use_case.collect(store, **rules, dry_run=False, tell=Silent())  # type: ignore[arg-type]
    return list(result.items)


def images(store: Store) -> list[StoreItem]:
    return [item for item in inventory(store).items if item.kind == "image"]


def test_the_inventory_has_all_kinds_and_sizes(full: Store) -> None:
    found = inventory(full)
    assert kinds(full) == WHOLE
    by_kind = {item.kind: item for item in found.items}
    assert 20_000 <= by_kind["layer"].size < 60_000
    assert by_kind["links"].size < 8_192, "its files belong to the layer"
    assert abs(found.size - _du(full.root)) <= 4096 * 9  # the directories themselves


def _du(root: Path) -> int:
    sizes = {}
    for path in (root, *root.rglob("*")):
        facts = path.lstat()
        sizes[facts.st_ino] = facts.st_blocks * 512
    return sum(sizes.values())


def test_everything_can_be_removed(full: Store) -> None:
    assert collect(full, keep_days=30) == []
    assert kinds(full) == WHOLE
    age(full, 31)
    collect(full, keep_days=30)
    assert kinds(full) == {}
    remaining = {str(path.relative_to(full.root)) for path in full.root.rglob("*") if not path.is_dir()}
    assert remaining == {"CACHEDIR.TAG", "uses/all"}


def test_only_items_in_use_are_kept(full: Store) -> None:
    age(full, 31)
    image, other = images(full)
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
    del builder
    assert kinds(full) == {**WHOLE}


def test_a_use_is_recorded(full: Store) -> None:
    image = images(full)[0]
    age(full, 31)
    assert full.images.get(image.name) is not None
    for name in image.layers:
        assert full.layers.path(name) is not None
    assert full.blobs.path(sha256(b"wheel")) is not None
    collect(full, keep_days=30)
    counts = kinds(full)
    assert (counts["image"], counts["layer"], counts["blob"]) == (1, 2, 1)


def test_incomplete_images_are_removed(full: Store) -> None:
    image, _ = images(full)
    full.layers.discard(image.layers[-1])
    assert {(item.kind, item.name) for item in collect(full, keep_days=99)} >= {("image", image.name)}
    assert full.images.get(image.name) is None


def test_a_damaged_layer_in_use_is_removed_after_the_run(store: Store) -> None:
    layer = store.layers.unpack(diff_id(small()), small())
    runner = Store.open(store.root)
    with runner.lease.restrict_to([layer.name]):
        store.layers.discard(layer.name)
        assert collect(store, keep_days=99) == []
        (kept,) = (store.root / "damaged").iterdir()
        assert (kept / "opt").is_dir()
    del runner
    assert [item.kind for item in collect(store, keep_days=99)] == ["damaged"]
    assert list((store.root / "damaged").iterdir()) == []
