"""What goes and what stays: decided by a pure function, done by renames."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from repro_env.flows.store import collect as story
from repro_env.model.errors import StoreError
from repro_env.model.talk import Silent
from repro_env.store import gc
from repro_env.store.store import Store
from repro_env.store.usage import Held, Inventory, Kind, Thing, inventory
from tests.store.trees import diff_id, member, small

NOW = 1_000_000.0 * gc.DAY


def thing(kind: Kind, name: str, days: float, size: int = 10) -> Thing:
    return Thing(kind, name * 64, size, NOW - days * gc.DAY)


def found(*things: Thing, images: Sequence[Held] = ()) -> Inventory:
    return Inventory(things, tuple(images), 0)


def chosen(
    inventory: Inventory, named: Sequence[str] = (), keep_days: float | None = None, max_size: int | None = None
) -> list[tuple[str, str]]:
    going = gc.choose(inventory, {name * 64 for name in named}, now=NOW, keep_days=keep_days, max_size=max_size)
    return [(one.kind, one.name[0]) for one in going]


def test_what_was_not_used_for_long_goes() -> None:
    all_of_them = found(thing("blob", "a", 31), thing("blob", "b", 29), thing("fact", "c", 40), thing("layer", "d", 0))
    assert chosen(all_of_them, keep_days=30) == [("fact", "c"), ("blob", "a")]
    assert len(chosen(all_of_them, keep_days=0)) == 3  # the last one is used right now
    assert chosen(all_of_them, keep_days=365) == []


def test_down_to_a_size_the_least_recently_used_first_and_no_more() -> None:
    things = [thing("blob", "a", 3), thing("layer", "b", 2), thing("fact", "c", 9), thing("blob", "d", 1)]
    random.Random(7).shuffle(things)
    assert chosen(found(*things), max_size=40) == []
    assert chosen(found(*things), max_size=39) == [("blob", "a")]
    assert chosen(found(*things), max_size=20) == [("blob", "a"), ("layer", "b")]
    assert chosen(found(*things), max_size=0) == [("blob", "a"), ("layer", "b"), ("blob", "d")]


def test_what_a_run_names_stays() -> None:
    things = found(thing("layer", "a", 99), thing("image", "b", 99), thing("damaged", "c", 99))
    assert chosen(things, named="ab", keep_days=1, max_size=0) == [("damaged", "c")]
    assert chosen(things, named="abc", keep_days=1, max_size=0) == []


def test_an_image_without_a_layer_goes_with_all_that_is_its_own() -> None:
    image, other = Held("1" * 64, ("a" * 64, "b" * 64), "", NOW), Held("2" * 64, ("b" * 64,), "", NOW)
    things = [thing("layer", "a", 50), thing("layer", "b", 1)]
    for name in "12":
        things += [thing("image", name, 1), thing("bytecode", name, 1), thing("links", name, 1)]
    going = chosen(found(*things, images=[image, other]), keep_days=30)
    assert sorted(going) == [("bytecode", "1"), ("image", "1"), ("layer", "a"), ("links", "1")]


@pytest.fixture
def full(store: Store) -> Store:
    """Two images that share a layer, bytecode and links of the first, a wheel, a source tree, a spec folder, a fact."""
    shared, one, two = (_layer(store, name) for name in ("shared", "one", "two"))
    _layer(store, "source")
    first = store.images.put(_config(shared, one))
    store.images.put(_config(shared, two))
    name = first.removeprefix("sha256:")
    made = store.root / "made"
    made.mkdir()
    (made / "a.pyc").write_bytes(bytes([0, 0, 0, 0, 1]) + bytes(20))
    with store.bytecode.adding(first):
        store.bytecode.add(first, made, ["a.pyc"])
    for path in made.iterdir():
        path.unlink()
    made.rmdir()
    (store.root / "merged").mkdir()
    (store.root / "merged" / name).mkdir()
    os.link(store.root / "layers" / one.removeprefix("sha256:") / "one", store.root / "merged" / name / "one")
    (store.root / "merged" / f"{name}.lock").touch()
    store.blobs.put([b"wheel"], "sha256:" + sha256(b"wheel"), where="test")
    store.folders.make("c" * 64, _spec)
    store.facts.put("test", "key", b"value")
    return store


def _spec(folder: Path) -> None:
    (folder / "spec.json").write_text("{}")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _layer(store: Store, name: str) -> str:
    return store.layers.add([member(name, os.urandom(20_000))])


def _config(*diff_ids: str) -> bytes:
    return json.dumps({"config": {}, "rootfs": {"diff_ids": diff_ids, "type": "layers"}}).encode()


def kinds(store: Store) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in inventory(store).things:
        counts[one.kind] = counts.get(one.kind, 0) + 1
    return counts


WHOLE = {"blob": 1, "bytecode": 1, "fact": 5, "image": 2, "layer": 4, "links": 1, "spec": 1}
"""Four facts are the layers' sizes."""


def age(store: Store, days: float) -> None:
    """As if nothing had been used for so long."""
    when = time.time() - days * gc.DAY
    for folder in ("boot", "images", "facts", "specs"):
        for path in (store.root / folder).rglob("*"):
            os.utime(path, (when, when))


def collect(store: Store, **rule: float | None) -> list[Thing]:
    given = {"keep_days": None, "max_size": None, **rule}
    done = story(store, **given, dry_run=False, tell=Silent(), patience=0.2)  # type: ignore[arg-type]
    return list(done.things)


def test_sizes_and_kinds(full: Store) -> None:
    found = inventory(full)
    assert kinds(full) == WHOLE
    by_kind = {one.kind: one for one in found.things}
    assert 20_000 <= by_kind["layer"].size < 60_000
    assert by_kind["links"].size < 8_192, "its files are the layer's own"
    assert abs(found.size - _du(full.root)) <= 4096 * 3  # the folders themselves


def _du(root: Path) -> int:
    seen = {}
    for path in (root, *root.rglob("*")):
        facts = path.lstat()
        seen[facts.st_ino] = facts.st_blocks * 512
    for folder in ("blobs", "layers", "images", "bytecode", "merged", "specs", "facts"):
        seen.pop((root / folder).stat().st_ino)
    return sum(seen.values())


def test_all_of_it_goes_and_nothing_is_left_behind(full: Store) -> None:
    assert collect(full, keep_days=30) == []
    assert kinds(full) == WHOLE
    age(full, 31)
    collect(full, keep_days=30)
    assert kinds(full) == {}
    left = {str(path.relative_to(full.root)) for path in full.root.rglob("*") if not path.is_dir()}
    assert left == {"uses/all"}
    assert not (full.root / "temp").exists()


def test_what_is_used_now_stays_and_the_rest_goes(full: Store) -> None:
    age(full, 31)
    image, other = inventory(full).images
    runner = Store.open(full.root)
    with runner.lease.only([image.name, *image.layers]):
        collect(full, keep_days=0)
        assert full.images.get(image.name) is not None
        assert all(full.layers.verify(name) for name in image.layers)
        assert full.images.get(other.name) is None
        assert kinds(full)["layer"] == 2


def test_while_a_build_is_at_work_nothing_goes(full: Store) -> None:
    age(full, 31)
    builder = Store.open(full.root)
    with pytest.raises(StoreError, match="other commands"):
        collect(full, keep_days=0)
    builder.lease.close()
    assert kinds(full) == {**WHOLE}


def test_a_use_is_noted(full: Store) -> None:
    image = inventory(full).images[0]
    age(full, 31)
    assert full.images.get(image.name) is not None
    for name in image.layers:
        assert full.layers.path(name) is not None
    assert full.blobs.path(sha256(b"wheel")) is not None
    collect(full, keep_days=30)
    counts = kinds(full)
    assert (counts["image"], counts["layer"], counts["blob"]) == (1, 2, 1)


def test_what_was_used_after_it_was_looked_at_stays(full: Store) -> None:
    age(full, 31)
    since = time.time()
    things = inventory(full).things
    os.utime(full.root / "boot" / sha256(b"wheel"), (since + 5, since + 5))
    gone = gc.remove(full, things, since=since, patience=0)
    assert len(gone) == len(things) - 1
    assert kinds(full) == {"blob": 1}


def test_an_image_whose_layer_is_gone_goes_and_what_is_half_written_too(full: Store) -> None:
    image, _ = inventory(full).images
    full.layers.remove(image.layers[-1])
    (full.root / "facts" / "test" / ".x.tmp").write_bytes(b"half")
    assert {(one.kind, one.name) for one in collect(full, keep_days=99)} >= {("image", image.name)}
    assert full.images.get(image.name) is None
    assert not list((full.root / "facts").rglob(".*.tmp"))


def test_a_damaged_layer_that_a_run_still_has_goes_when_the_run_is_over(store: Store) -> None:
    layer = store.layers.unpack(diff_id(small()), small())
    runner = Store.open(store.root)
    with runner.lease.only([layer.name]):
        store.layers.discard(layer.name)
        assert collect(store, keep_days=99) == []
        (kept,) = (store.root / "damaged").iterdir()
        assert (kept / "opt").is_dir()
    runner.lease.close()
    assert [one.kind for one in collect(store, keep_days=99)] == ["damaged"]
    assert list((store.root / "damaged").iterdir()) == []
