"""The store's contents are measured; damaged items are found, removed and built again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from repro_env.api import store as story
from repro_env.api.rebuild import rebuild
from repro_env.api.store import Usage
from repro_env.runs.records import ids, records
from repro_env.runs.records.index import Index
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Spec
from repro_env.store.bootmarks import FRESH
from repro_env.store.garbage import DAY
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.runs.records.test_records import start


@pytest.fixture
def made(tmp_path: Path) -> Spec:
    files = {"demo": wheels.make(tmp_path / "wheels", "demo"), "more": wheels.make(tmp_path / "wheels", "more")}
    return specs.make(tmp_path / "repro", files, carry=["demo", "more"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def build(spec: Spec, tmp_path: Path, store: Store) -> str:
    return rebuild(spec, tmp_path / "repro", store=store, dry_run=False, tell=Silent()).image_id


def test_shared_bytes_are_counted_separately(made: Spec, tmp_path: Path, store: Store) -> None:
    other = specs.make(
        tmp_path / "other", {"third": wheels.make(tmp_path / "wheels", "third")}, carry=["third"], prefix="/home/bob/.venv"
    )
    build(made, tmp_path, store)
    before: Usage = story.measure(store)
    rebuild(other, tmp_path / "other", store=store, dry_run=False, tell=Silent())
    found = story.measure(store)
    assert {image.image_id for image in found.images} == {made.expected.image_id, other.expected.image_id}
    assert before.images[0].shared == 0
    shared = {image.shared for image in found.images}
    assert len(shared) == 1
    assert shared.pop() > 0, "base and interpreter"
    layers = found.kinds["layer"][1]
    assert sum(image.own - 4096 for image in found.images) + found.images[0].shared + found.unbound == layers
    assert found.unbound > 0, "the source"
    with store.lease.restrict_to([other.expected.image_id]):
        assert {image.image_id: image.running for image in story.measure(store).images} == {
            made.expected.image_id: False,
            other.expected.image_id: True,
        }


def layer_file(spec: Spec, store: Store, kind: str = "distributions") -> Path:
    """Return the largest file of a layer."""
    layer = next(layer for layer in spec.expected.layers if layer.kind == kind)
    root = store.root / "layers" / layer.diff_id.removeprefix("sha256:")
    return max((path for path in root.rglob("*") if path.is_file()), key=lambda path: (path.stat().st_size, path))


def flip(path: Path) -> None:
    """Flip a bit without changing the file's times, as a failing disk does."""
    facts = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(facts.st_mode & 0o777)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def truncate(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size // 2)


def remove(path: Path) -> None:
    path.unlink()


def add(path: Path) -> None:
    path.with_name("zzz.py").write_text("import os\n")


@pytest.mark.parametrize(
    ("kind", "damage"),
    [(kind, damage) for kind in ("layer", "image", "blob", "spec") for damage in (flip, truncate, remove)] + [("layer", add)],
)
def test_verify_names_damaged_items_and_repair_removes_them(
    made: Spec, tmp_path: Path, store: Store, kind: str, damage: Callable[[Path], None]
) -> None:
    image = build(made, tmp_path, store)
    assert story.verify(store, repair=False, tell=Silent()).damaged == ()
    path = item_file(kind, made, tmp_path, store)
    missing = damage is remove and kind in ("blob", "image", "spec")
    damage(path)
    found = story.verify(store, repair=False, tell=Silent())
    assert [item.kind for item in found.damaged] == ([] if missing else [kind]), "and nothing else"
    story.verify(store, repair=True, tell=Silent())
    assert story.verify(store, repair=False, tell=Silent()).damaged == ()
    assert build(made, tmp_path, store) == image
    assert story.verify(store, repair=False, tell=Silent()).damaged == ()


def item_file(kind: str, spec: Spec, tmp_path: Path, store: Store) -> Path:
    """Return a file of an item of this kind."""
    image = spec.expected.image_id
    if kind == "layer":
        return layer_file(spec, store)
    if kind == "image":
        return store.root / "images" / image.removeprefix("sha256:")
    if kind == "blob":
        wheel = spec.identity.distributions[0]
        return store.blobs.put([next((tmp_path / "wheels").glob("demo*")).read_bytes()], wheel.sha256, where="test")
    directory = store.spec_directories.make("d" * 64, _fill)
    return next((directory / "blobs").glob("[0-9a-f]*"))


def _fill(directory: Path) -> None:
    specs.make(directory, {})


@pytest.mark.parametrize("damage", [truncate, remove, add])
@pytest.mark.parametrize("kind", ["base", "interpreter", "distributions", "marker"])
def test_a_changed_layer_is_built_again_before_it_is_used(
    made: Spec, tmp_path: Path, store: Store, kind: str, damage: Callable[[Path], None]
) -> None:
    image = build(made, tmp_path, store)
    path = layer_file(made, store, kind)
    content = path.read_bytes()
    damage(path)
    age(store)
    assert build(made, tmp_path, store) == image
    assert path.read_bytes() == content
    assert not path.with_name("zzz.py").exists()


def test_the_times_of_an_otherwise_unchanged_layer_are_restored(made: Spec, tmp_path: Path, store: Store) -> None:
    build(made, tmp_path, store)
    path = layer_file(made, store)
    facts = path.stat()
    path.touch()
    age(store)
    build(made, tmp_path, store)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (facts.st_ino, facts.st_mtime_ns)


@pytest.mark.parametrize("running", [True, False])
def test_a_run_keeps_a_layer_that_is_replaced_and_links_are_removed(
    made: Spec, tmp_path: Path, store: Store, running: bool
) -> None:
    image = build(made, tmp_path, store)
    links = store.root / "merged" / image.removeprefix("sha256:")
    links.mkdir(parents=True)
    path = layer_file(made, store)
    runner = Store.open(store.root)
    with (
        path.open("rb") as file,
        runner.lease.restrict_to([image, *(layer.diff_id for layer in made.expected.layers)] if running else []),
    ):
        truncate(path)
        age(store)
        build(made, tmp_path, store)
        assert os.fstat(file.fileno()).st_nlink == int(running)
    assert not links.exists()
    assert len(list((store.root / "damaged").iterdir())) == 2 * running
    assert not (store.root / "temp").exists()


@pytest.mark.parametrize("damage", [flip, truncate, remove])
def test_a_damaged_wheel_is_replaced(made: Spec, tmp_path: Path, store: Store, damage: Callable[[Path], None]) -> None:
    path = item_file("blob", made, tmp_path, store)
    content = path.read_bytes()
    damage(path)
    assert build(made, tmp_path, store) == made.expected.image_id
    if path.exists():
        assert path.read_bytes() == content


def age(store: Store) -> None:
    """Set the last use to a time in the past."""
    for path in (store.root / "boot").iterdir():
        when = path.stat().st_mtime - 2 * FRESH
        os.utime(path, (when, when))


@pytest.mark.parametrize("limit", [{"keep_days": 0.0, "max_size": None}, {"keep_days": None, "max_size": 0}])
def test_the_source_of_a_recorded_run_stays(tmp_path: Path, store: Store, limit: dict[str, float | None]) -> None:
    """The source of a run may not be in a commit, so it may exist nowhere else."""
    trees = {name: store.layers.add(specs.tree({"train.py": name.encode()})) for name in ("kept", "free", "away", "gone", "torn")}
    directories = {}
    for number, name in enumerate(("kept", "away", "gone", "torn")):
        run_id = ids.uuid7(number, bytes(10))
        recording = records.begin(tmp_path / name / "runs", f"20260701T10153{number}Z-train-00000000")
        record = start(run_id)
        source = msgspec.structs.replace(record.source, digest=trees[name])
        recording.start(msgspec.structs.replace(record, source=source))
        recording.close()
        store.run_directories.add(recording.directory.parent)
        directories[name] = recording.directory
    for name in ("away", "gone"):
        Index(store.runs).listing(tmp_path / name / "runs")
        (tmp_path / name).rename(tmp_path / f"no {name}")
    note = store.root / "runs" / hashlib.sha256(os.fsencode(tmp_path / "gone" / "runs")).hexdigest()
    os.utime(note, (time.time() - 200 * DAY,) * 2)
    (directories["torn"] / "start.json").unlink()
    lines: list[str] = []

    class Messages(Silent):
        def __call__(self, text: str, /) -> None:
            lines.append(text)

    story.collect(store, dry_run=False, tell=Messages(), **limit)  # type: ignore[arg-type]
    assert [name for name in trees if store.layers.path(trees[name]) is not None] == ["kept", "away"]
    printed = "\n".join(lines)
    assert f"the source code of runs in a missing directory may be removed: {tmp_path / 'gone' / 'runs'}" in printed
    assert "this run cannot be read, so its source code may be removed" in printed
    records.remove(directories["kept"])
    story.collect(store, dry_run=False, tell=Silent(), **limit)  # type: ignore[arg-type]
    assert store.layers.path(trees["kept"]) is None
