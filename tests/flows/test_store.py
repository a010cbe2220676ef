"""What is in a store, told; and what is damaged, found, put away and made again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import ids, records
from repro_env.catalog.index import Index
from repro_env.flows import store as story
from repro_env.flows.rebuild import rebuild
from repro_env.flows.store import Usage
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent
from repro_env.store.boot import FRESH
from repro_env.store.gc import DAY
from repro_env.store.store import Store
from tests.catalog.test_records import start
from tests.fakes import specs, wheels


@pytest.fixture
def made(tmp_path: Path) -> Spec:
    files = {"demo": wheels.make(tmp_path / "wheels", "demo"), "more": wheels.make(tmp_path / "wheels", "more")}
    return specs.make(tmp_path / "repro", files, carry=["demo", "more"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def built(spec: Spec, tmp_path: Path, store: Store) -> str:
    return rebuild(spec, tmp_path / "repro", store=store, dry_run=False, tell=Silent()).image_id


def test_shared_bytes_are_told_apart(made: Spec, tmp_path: Path, store: Store) -> None:
    other = specs.make(
        tmp_path / "other", {"third": wheels.make(tmp_path / "wheels", "third")}, carry=["third"], prefix="/home/bob/.venv"
    )
    built(made, tmp_path, store)
    alone: Usage = story.usage(store)
    rebuild(other, tmp_path / "other", store=store, dry_run=False, tell=Silent())
    found = story.usage(store)
    assert {one.image_id for one in found.images} == {made.expected.image_id, other.expected.image_id}
    assert alone.images[0].shared == 0
    shared = {one.shared for one in found.images}
    assert len(shared) == 1
    assert shared.pop() > 0, "base and interpreter"
    layers = found.kinds["layer"][1]
    assert sum(one.own - 4096 for one in found.images) + found.images[0].shared + found.unbound == layers
    assert found.unbound > 0, "the source"
    with store.lease.only([other.expected.image_id]):
        assert {one.image_id: one.running for one in story.usage(store).images} == {
            made.expected.image_id: False,
            other.expected.image_id: True,
        }


def layer_file(spec: Spec, store: Store, kind: str = "distributions") -> Path:
    """The largest file of a layer."""
    one = next(layer for layer in spec.expected.layers if layer.kind == kind)
    root = store.root / "layers" / one.diff_id.removeprefix("sha256:")
    return max((path for path in root.rglob("*") if path.is_file()), key=lambda path: (path.stat().st_size, path))


def flip(path: Path) -> None:
    """A bit, and no trace in the file's times: as a disk does it."""
    facts = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(facts.st_mode & 0o777)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def cut(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size // 2)


def remove(path: Path) -> None:
    path.unlink()


def add(path: Path) -> None:
    path.with_name("zzz.py").write_text("import os\n")


@pytest.mark.parametrize(
    ("kind", "damage"),
    [(kind, damage) for kind in ("layer", "image", "blob", "bytecode", "spec") for damage in (flip, cut, remove)]
    + [("layer", add)],
)
def test_verify_names_what_is_damaged_and_repair_has_it_made_again(
    made: Spec, tmp_path: Path, store: Store, kind: str, damage: Callable[[Path], None]
) -> None:
    image = built(made, tmp_path, store)
    assert story.verify(store, repair=False, tell=Silent()).damaged == ()
    path = thing(kind, made, tmp_path, store)
    gone = damage is remove and kind in ("blob", "image", "spec")
    damage(path)
    found = story.verify(store, repair=False, tell=Silent())
    assert [one.kind for one in found.damaged] == ([] if gone else [kind]), "and nothing else"
    story.verify(store, repair=True, tell=Silent())
    assert story.verify(store, repair=False, tell=Silent()).damaged == ()
    assert built(made, tmp_path, store) == image
    assert story.verify(store, repair=False, tell=Silent()).damaged == ()


def thing(kind: str, spec: Spec, tmp_path: Path, store: Store) -> Path:
    """A file of a thing of this kind."""
    image = spec.expected.image_id
    if kind == "layer":
        return layer_file(spec, store)
    if kind == "image":
        return store.root / "images" / image.removeprefix("sha256:")
    if kind == "blob":
        wheel = spec.identity.distributions[0]
        return store.blobs.put([next((tmp_path / "wheels").glob("demo*")).read_bytes()], wheel.sha256, where="test")
    if kind == "spec":
        folder = store.folders.make("d" * 64, _filled)
        return next((folder / "blobs").glob("[0-9a-f]*"))
    folder = tmp_path / "pyc"
    folder.mkdir()
    (folder / "a.pyc").write_bytes(bytes([0, 0, 0, 0, 1]) + bytes(20))
    with store.bytecode.adding(image):
        store.bytecode.add(image, folder, ["a.pyc"])
    return next((store.root / "bytecode").rglob("a.pyc"))


def _filled(folder: Path) -> None:
    specs.make(folder, {})


@pytest.mark.parametrize("damage", [cut, remove, add])
@pytest.mark.parametrize("kind", ["base", "interpreter", "distributions", "marker"])
def test_a_layer_that_was_written_to_is_made_again_before_it_is_used(
    made: Spec, tmp_path: Path, store: Store, kind: str, damage: Callable[[Path], None]
) -> None:
    image = built(made, tmp_path, store)
    path = layer_file(made, store, kind)
    whole = path.read_bytes()
    damage(path)
    later(store)
    assert built(made, tmp_path, store) == image
    assert path.read_bytes() == whole
    assert not path.with_name("zzz.py").exists()


def test_a_layer_with_other_times_and_the_same_bytes_is_set_right(made: Spec, tmp_path: Path, store: Store) -> None:
    built(made, tmp_path, store)
    path = layer_file(made, store)
    facts = path.stat()
    path.touch()
    later(store)
    built(made, tmp_path, store)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (facts.st_ino, facts.st_mtime_ns)


@pytest.mark.parametrize("running", [True, False])
def test_a_run_goes_on_with_the_layer_that_it_has_and_links_go(made: Spec, tmp_path: Path, store: Store, running: bool) -> None:
    image = built(made, tmp_path, store)
    links = store.root / "merged" / image.removeprefix("sha256:")
    links.mkdir(parents=True)
    path = layer_file(made, store)
    runner = Store.open(store.root)
    with path.open("rb") as held, runner.lease.only([image, *(one.diff_id for one in made.expected.layers)] if running else []):
        cut(path)
        later(store)
        built(made, tmp_path, store)
        assert os.fstat(held.fileno()).st_nlink == int(running)
    assert not links.exists()
    assert len(list((store.root / "damaged").iterdir())) == 2 * running
    assert not (store.root / "temp").exists()


@pytest.mark.parametrize("damage", [flip, cut, remove])
def test_a_wheel_that_is_damaged_is_had_again_from_elsewhere(
    made: Spec, tmp_path: Path, store: Store, damage: Callable[[Path], None]
) -> None:
    path = thing("blob", made, tmp_path, store)
    whole = path.read_bytes()
    damage(path)
    assert built(made, tmp_path, store) == made.expected.image_id
    if path.exists():
        assert path.read_bytes() == whole


def later(store: Store) -> None:
    """As if the last use had been a while ago."""
    for path in (store.root / "boot").iterdir():
        when = path.stat().st_mtime - 2 * FRESH
        os.utime(path, (when, when))


@pytest.mark.parametrize("limit", [{"keep_days": 0.0, "max_size": None}, {"keep_days": None, "max_size": 0}])
def test_the_source_of_a_recorded_run_stays(tmp_path: Path, store: Store, limit: dict[str, float | None]) -> None:
    """It may be nowhere else: a tree without a commit, as it was when the run started."""
    trees = {
        name: store.layers.add(specs.tree({"train.py": name.encode()}))
        for name in ("kept", "beside", "free", "away", "gone", "torn")
    }
    folders = {}
    for number, name in enumerate(("kept", "away", "gone", "torn")):
        run_id = ids.uuid7(number, bytes(10))
        recording = records.begin(tmp_path / name / "runs", f"20260701T10153{number}Z-train-00000000")
        one = start(run_id)
        source = msgspec.structs.replace(
            one.source, digest=trees[name], siblings_tree=trees["beside"] if name == "kept" else None
        )
        recording.start(msgspec.structs.replace(one, source=source))
        recording.close()
        store.seen.see(recording.folder.parent)
        folders[name] = recording.folder
    for name in ("away", "gone"):
        Index(store.runs).listing(tmp_path / name / "runs")
        (tmp_path / name).rename(tmp_path / f"no {name}")
    note = store.root / "runs" / hashlib.sha256(os.fsencode(tmp_path / "gone" / "runs")).hexdigest()
    os.utime(note, (time.time() - 200 * DAY,) * 2)
    (folders["torn"] / "start.json").unlink()
    said: list[str] = []

    class Heard(Silent):
        def __call__(self, text: str, /) -> None:
            said.append(text)

    story.collect(store, dry_run=False, tell=Heard(), **limit)  # type: ignore[arg-type]
    assert [name for name in trees if store.layers.path(trees[name]) is not None] == ["kept", "beside", "away"]
    told = "\n".join(said)
    assert f"{tmp_path / 'gone' / 'runs'} held runs long ago and is not there now" in told
    assert "the source of this run is not held" in told
    records.remove(folders["kept"])
    story.collect(store, dry_run=False, tell=Silent(), **limit)  # type: ignore[arg-type]
    assert store.layers.path(trees["kept"]) is store.layers.path(trees["beside"]) is None
