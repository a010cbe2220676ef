from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import index, parents, records
from repro_env.catalog.noted import Resumed
from repro_env.model.errors import RecordError, SpecError
from repro_env.model.run import DataFact, Mount, Parent
from tests.catalog.test_records import recorded


def id_of(folder: Path) -> str:
    return records.read(folder).start.id


def digest(folder: Path) -> str:
    return "sha256:" + hashlib.sha256((folder / "end.json").read_bytes()).hexdigest()


def test_a_named_run_is_one_of_the_folder_or_any_by_its_path(tmp_path: Path) -> None:
    first, second = recorded(tmp_path / "runs", 1), recorded(tmp_path / "other", 2)
    found = parents.named(["00000001", "other/" + second.name, str(first)], tmp_path / "runs", tmp_path)
    assert found == (
        Parent(id=id_of(first), record=digest(first), how="named"),
        Parent(id=id_of(second), record=digest(second), how="named"),
    )


def test_a_named_run_that_is_none_is_refused(tmp_path: Path) -> None:
    torn = recorded(tmp_path / "runs", 1)
    (torn / "start.json").chmod(0o644)
    (torn / "start.json").write_text("{")
    for word in ("00000009", str(tmp_path)):
        with pytest.raises(RecordError):
            parents.named([word], tmp_path / "runs", tmp_path)
    with pytest.raises(SpecError):
        parents.named(["00000001"], tmp_path / "runs", tmp_path)


def test_a_run_without_its_end_is_a_parent_without_a_digest(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "runs", 1, over=False)
    assert parents.named(["latest"], tmp_path / "runs", tmp_path) == (Parent(id=id_of(folder), record=None, how="named"),)


def test_mounts_that_lie_in_a_runs_files(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "runs", 1)
    deep = folder / "files" / "a" / "b.pt"
    deep.parent.mkdir()
    deep.write_bytes(b"x")
    elsewhere = tmp_path / "files" / "x"
    elsewhere.mkdir(parents=True)
    mounts = [
        Mount(kind="data", source=str(deep), target="/b.pt"),
        Mount(kind="checkpoints", source=str(folder / "files"), target="/all"),
        Mount(kind="data", source=str(folder), target="/run"),
        Mount(kind="data", source=str(folder.parent), target="/runs"),
        Mount(kind="data", source=str(elsewhere), target="/x"),
    ]
    assert parents.mounted(mounts) == (
        Parent(id=id_of(folder), record=digest(folder), how="data", path="a/b.pt"),
        Parent(id=id_of(folder), record=digest(folder), how="checkpoints"),
        Parent(id=id_of(folder), record=digest(folder), how="data"),
    )
    (folder / "start.json").unlink()
    (folder / "start.json").write_text("{}")
    assert parents.mounted(mounts) == ()


def test_copies_of_outputs_that_are_mounted(tmp_path: Path) -> None:
    folders = [recorded(tmp_path / "runs", number) for number in (1, 2, 3, 4)]
    runs = {id_of(folder): index.summary(records.read(folder)) for folder in folders}
    first, second, third, fourth = runs.values()
    data = DataFact(source="/d", target="/d", kind="data", digest="sha256:" + "d" * 64)
    runs[fourth.id] = msgspec.structs.replace(fourth, data=(index.Datum("data", "/d", str(data.digest)),))
    weights, other, another, label, empty = ("a" * 64, "b" * 64, "f" * 64, "c" * 64, hashlib.sha256().hexdigest())
    outputs = {
        first.folder: bytes.fromhex(weights + empty),
        second.folder: bytes.fromhex(weights),
        third.folder: bytes.fromhex(other + another),
        fourth.folder: bytes.fromhex(label),
    }
    files = {
        "best.pt": weights,
        "z/last.pt": weights,
        "b.pt": other,
        "c.pt": another,
        "labels.txt": label,
        "empty": empty,
        "new": "e" * 64,
    }
    found = {one.id: one for one in parents.copied(data, files, runs, outputs)}
    assert set(found) == {first.id, third.id}, "the first to make it; not one that had it as data; nothing of empty files"
    assert found[first.id] == Parent(
        id=first.id, record=first.end or None, how="data", path="best.pt", sha256="sha256:" + weights
    )
    assert found[third.id] == Parent(id=third.id, record=third.end or None, how="data"), "which file was read is not known"


def test_what_a_run_went_on_from(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "there", 1)
    of_one = Resumed(run=id_of(folder), path="/w/ckpt/7", sha256="a" * 64, step=7)
    came = [of_one, of_one, Resumed(run="own", path="x", sha256="", step=1), Resumed(run="", path="y", sha256="?", step=2)]
    found = parents.resumed(came, [tmp_path / "none", tmp_path / "there"], "own")
    assert found == (
        Parent(id=id_of(folder), record=digest(folder), how="resumed", path="/w/ckpt/7", sha256="sha256:" + "a" * 64, step=7),
        Parent(id="", record=None, how="resumed", path="y", step=2),
    )
    unknown = Resumed(run="0" * 28 + "00000001", path="z", sha256="", step=3)
    assert parents.resumed([unknown], [tmp_path / "there"], "own")[0].record is None
