"""Damaged items of the store are built again; the source of a recorded run stays."""

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
from repro_env.runs.records import ids, records, submissions
from repro_env.runs.records.submissions import Submission
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened
from repro_env.store.store import Store
from tests.api.damage import flip, layer_file, remove, truncate
from tests.fakes import specs, wheels
from tests.runs.records.examples import start


@pytest.fixture
def made(tmp_path: Path) -> Spec:
    files = {"demo": wheels.make(tmp_path / "wheels", "demo"), "more": wheels.make(tmp_path / "wheels", "more")}
    return specs.make(tmp_path / "repro", files, carry=["demo", "more"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def build(spec: Spec, tmp_path: Path, store: Store) -> str:
    return rebuild(Opened(spec, tmp_path / "repro"), store=store, tell=Silent()).image_id


def add(path: Path) -> None:
    path.with_name("zzz.py").write_text("import os\n")


@pytest.mark.parametrize("damage", [truncate, remove, add])
@pytest.mark.parametrize("kind", ["base", "interpreter", "distributions", "marker"])
def test_a_changed_layer_is_built_again_before_it_is_used(
    made: Spec, tmp_path: Path, store: Store, kind: str, damage: Callable[[Path], None]
) -> None:
    image = build(made, tmp_path, store)
    path = layer_file(made, store, kind)
    content = path.read_bytes()
    damage(path)
    assert build(made, tmp_path, Store.open(store.root)) == image
    assert path.read_bytes() == content
    assert not path.with_name("zzz.py").exists()


def test_the_times_of_an_otherwise_unchanged_layer_are_restored(made: Spec, tmp_path: Path, store: Store) -> None:
    build(made, tmp_path, store)
    path = layer_file(made, store)
    facts = path.stat()
    path.touch()
    build(made, tmp_path, Store.open(store.root))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (facts.st_ino, facts.st_mtime_ns)


def test_a_run_keeps_a_layer_that_is_replaced_and_links_are_removed(made: Spec, tmp_path: Path, store: Store) -> None:
    image = build(made, tmp_path, store)
    links = store.root / "merged" / image.removeprefix("sha256:")
    links.mkdir(parents=True)
    path = layer_file(made, store)
    with path.open("rb") as file:
        truncate(path)
        build(made, tmp_path, Store.open(store.root))
        assert os.fstat(file.fileno()).st_nlink == 1
    assert not links.exists()
    assert len(list((store.root / "damaged").iterdir())) == 2


@pytest.mark.parametrize("damage", [flip, truncate, remove])
def test_a_damaged_wheel_is_replaced(made: Spec, tmp_path: Path, store: Store, damage: Callable[[Path], None]) -> None:
    wheel = made.identity.distributions[0]
    path = store.blobs.put([next((tmp_path / "wheels").glob("demo*")).read_bytes()], wheel.sha256, where="test")
    content = path.read_bytes()
    damage(path)
    assert build(made, tmp_path, store) == made.expected.image_id
    if path.exists():
        assert path.read_bytes() == content


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
        store.run_directories.add(recording.directory.parent, source.trees)
        directories[name] = recording.directory
    for name in ("away", "gone"):
        (tmp_path / name).rename(tmp_path / f"no {name}")
    note = store.root / "runs" / hashlib.sha256(os.fsencode(tmp_path / "gone" / "runs")).hexdigest()
    os.utime(note, (time.time() - 200 * 86400,) * 2, follow_symlinks=False)
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


def test_the_source_of_a_submitted_run_stays_until_its_job_is_removed(tmp_path: Path, store: Store) -> None:
    tree = store.layers.add(specs.tree({"train.py": b"submitted"}))
    record = start(ids.uuid7(1, bytes(10)))
    record = msgspec.structs.replace(record, source=msgspec.structs.replace(record.source, digest=tree))
    directory = submissions.write(tmp_path / "runs", Submission(engine="slurm", start=record))
    store.run_directories.add(tmp_path / "runs", record.source.trees)
    story.collect(store, keep_days=0.0, max_size=None, dry_run=False, tell=Silent())
    assert store.layers.path(tree) is not None
    submissions.remove(directory)
    story.collect(store, keep_days=0.0, max_size=None, dry_run=False, tell=Silent())
    assert store.layers.path(tree) is None
