from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from repro_env.runs.lineage import parents
from repro_env.runs.lineage.knownruns import AllRuns, Written
from repro_env.runs.records import records
from repro_env.runs.records.checkpointmanifest import CheckpointParent
from repro_env.schema.errors import RecordError, SpecError
from repro_env.schema.run import DataFact, Mount, Parent
from repro_env.store.store import Store
from tests.runs.records.examples import recorded


def id_of(directory: Path) -> str:
    return records.read(directory).start.id


def digest(directory: Path) -> str:
    return "sha256:" + hashlib.sha256((directory / "end.json").read_bytes()).hexdigest()


def test_a_parent_is_named_by_its_id_or_path(tmp_path: Path) -> None:
    first, second = recorded(tmp_path / "runs", 1), recorded(tmp_path / "other", 2)
    found = parents.from_options(["00000001", "other/" + second.name, str(first)], tmp_path / "runs", tmp_path)
    assert found == (
        Parent(id=id_of(first), record=digest(first), how="named"),
        Parent(id=id_of(second), record=digest(second), how="named"),
    )


def test_a_parent_that_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    torn = recorded(tmp_path / "runs", 1)
    (torn / "start.json").chmod(0o644)
    (torn / "start.json").write_text("{")
    for word in ("00000009", str(tmp_path)):
        with pytest.raises(RecordError):
            parents.from_options([word], tmp_path / "runs", tmp_path)
    with pytest.raises(SpecError):
        parents.from_options(["00000001"], tmp_path / "runs", tmp_path)


def test_an_unfinished_run_is_a_parent_without_a_digest(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "runs", 1, over=False)
    assert parents.from_options(["latest"], tmp_path / "runs", tmp_path) == (
        Parent(id=id_of(directory), record=None, how="named"),
    )


def test_a_run_with_mounted_files_is_a_parent(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "runs", 1)
    deep = directory / "files" / "a" / "b.pt"
    deep.parent.mkdir()
    deep.write_bytes(b"x")
    elsewhere = tmp_path / "files" / "x"
    elsewhere.mkdir(parents=True)
    mounts = [
        Mount(kind="data", source=str(deep), target="/b.pt"),
        Mount(kind="checkpoints", source=str(directory / "files"), target="/all"),
        Mount(kind="data", source=str(directory), target="/run"),
        Mount(kind="data", source=str(directory.parent), target="/runs"),
        Mount(kind="data", source=str(elsewhere), target="/x"),
    ]
    assert parents.from_mounts(mounts) == (
        Parent(id=id_of(directory), record=digest(directory), how="data", path="a/b.pt"),
        Parent(id=id_of(directory), record=digest(directory), how="checkpoints"),
        Parent(id=id_of(directory), record=digest(directory), how="data"),
    )
    (directory / "start.json").unlink()
    (directory / "start.json").write_text("{}")
    assert parents.from_mounts(mounts) == ()


def test_a_run_with_mounted_copies_of_its_outputs_is_a_parent(tmp_path: Path) -> None:
    directories = [recorded(tmp_path / "runs", number) for number in (1, 2, 3, 4)]
    runs = {id_of(directory): records.read(directory) for directory in directories}
    first, second, third, fourth = runs.values()
    data = DataFact(source="/d", target="/d", kind="data", digest="sha256:" + "d" * 64)
    runs[fourth.id] = msgspec.structs.replace(fourth, start=msgspec.structs.replace(fourth.start, data=(data,)))
    weights, other, another, label, empty = ("a" * 64, "b" * 64, "f" * 64, "c" * 64, hashlib.sha256().hexdigest())
    outputs = [(first, (weights, empty)), (second, (weights,)), (third, (other, another)), (fourth, (label,))]
    written = {run.id: tuple(Written("output", digest[:4], f"sha256:{digest}") for digest in digests) for run, digests in outputs}
    files = {
        "best.pt": weights,
        "z/last.pt": weights,
        "b.pt": other,
        "c.pt": another,
        "labels.txt": label,
        "empty": empty,
        "new": "e" * 64,
    }
    found = {parent.id: parent for parent in parents.from_copies(data, files, AllRuns(runs, written))}
    assert set(found) == {first.id, third.id}, "the first run that wrote a file, if it had not mounted it; no empty files"
    assert found[first.id] == Parent(id=first.id, record=first.end_digest, how="data", path="best.pt", sha256="sha256:" + weights)
    assert found[third.id] == Parent(id=third.id, record=third.end_digest, how="data"), "it is not known which file was read"


def test_other_runs_are_read_only_for_data_that_may_be_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be in directories of other users, which this one cannot read."""
    seen: list[list[Path]] = []

    def read(runs: list[Path], _: Store) -> AllRuns:
        seen.append(runs)
        return AllRuns({}, {})

    monkeypatch.setattr(parents, "read_all_runs", read)
    store = Store.open(tmp_path / "store")
    checkpoints = DataFact(source=str(tmp_path), target="/ck", kind="checkpoints", digest=None)
    assert parents.from_data((), (), tmp_path / "runs", store) == ()
    assert parents.from_data((checkpoints,), (), tmp_path / "runs", store) == ()
    assert seen == []
    (tmp_path / "data").write_text("1")
    data = DataFact(source=str(tmp_path / "data"), target="/data", kind="data", digest=f"sha256:{'1' * 64}")
    assert parents.from_data((data,), (), tmp_path / "runs", store) == ()
    assert seen == [[tmp_path / "runs"]]


def test_a_run_that_wrote_the_resumed_checkpoint_is_a_parent(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "there", 1)
    known = CheckpointParent(run=id_of(directory), path="/w/ckpt/7", sha256="a" * 64, step=7)
    own = CheckpointParent(run="own", path="x", sha256="", step=1)
    without_run = CheckpointParent(run="", path="y", sha256="?", step=2)
    found = parents.from_checkpoints([known, known, own, without_run], [tmp_path / "none", tmp_path / "there"], "own")
    assert found == (
        Parent(
            id=id_of(directory), record=digest(directory), how="resumed", path="/w/ckpt/7", sha256="sha256:" + "a" * 64, step=7
        ),
        Parent(id="", record=None, how="resumed", path="y", step=2),
    )
    unknown = CheckpointParent(run="0" * 28 + "00000001", path="z", sha256="", step=3)
    assert parents.from_checkpoints([unknown], [tmp_path / "there"], "own")[0].record is None
