"""Versions, stages and retired runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.api import runs as runs_api
from repro_env.api import versions
from repro_env.runs.records import annotation, records
from repro_env.schema.errors import PolicyError, RecordError, ReproEnvError, UsageError
from repro_env.schema.run import Launch
from repro_env.store.store import Store
from tests.api.place import Fake, Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("REPRO_ENV_STORE", str(tmp_path / "store"))
    found = Place(tmp_path)
    monkeypatch.chdir(found.project)
    return found


def write(launch: Launch, directory: Path) -> int:
    (directory / "files" / "model.bin").write_bytes(b"weights")
    return 0


def promote(directory: Path, target: str, store: Store, **options: str) -> tuple[int, str]:
    made = versions.promote(directory, target, store=store, **options)  # type: ignore[arg-type]
    return made.number, made.stage


def test_a_run_keeps_its_version_and_a_stage_moves(place: Place) -> None:
    first, second = (place.run(backend=Fake(write)).directory for _ in range(2))
    assert promote(first, "classifier@staging", place.store, by="Ann") == (1, "staging")
    assert promote(second, "classifier@staging", place.store) == (2, "staging")
    assert promote(first, "classifier@production", place.store, reason="best on the test set") == (1, "production")
    assert promote(first, "other.model@production", place.store) == (1, "production")
    entries = versions.history(first.parent)
    stages = {key: entry.run for key, entry in versions.current(entries).items()}
    own, other = (records.read(directory).id for directory in (first, second))
    assert stages == {
        ("classifier", "staging"): other,
        ("classifier", "production"): own,
        ("other.model", "production"): own,
    }
    assert [(entry.number, entry.stage, entry.by, entry.reason) for entry in entries] == [
        (1, "staging", "Ann", ()),
        (2, "staging", "", ()),
        (1, "production", "", ("best on the test set",)),
        (1, "production", "", ()),
    ]
    assert annotation.current_tags(first) == ("classifier@v1", "other.model@v1")
    with pytest.raises(UsageError):
        runs_api.untag(first, ["classifier@v1"])  # a version does not end


def test_a_retired_run_is_not_promoted(place: Place) -> None:
    directory = place.run(backend=Fake(write)).directory
    with pytest.raises(RecordError, match="not retired"):
        versions.retire(directory, "too early", undo=True)
    versions.retire(directory, "trained on the test set")
    assert annotation.current_tags(directory) == ("(retired)",)
    with pytest.raises(RecordError, match="trained on the test set"):
        versions.promote(directory, "classifier@staging", store=place.store)
    versions.retire(directory, "it was another run", undo=True)
    assert annotation.current_tags(directory) == ()
    assert promote(directory, "classifier@staging", place.store) == (1, "staging")


def test_a_run_from_a_retired_one_prints_a_warning(place: Place) -> None:
    parent = place.run(backend=Fake(write)).directory
    versions.retire(parent, "wrong labels")
    place.lines.clear()
    place.run(backend=Fake(write), parents=(records.read(parent).id,))
    assert any("is retired: wrong labels" in line for line in place.lines)


@pytest.mark.parametrize("target", ["classifier", "classifier@", "@production", "Classifier@production", "a@b@c", "a b@c"])
def test_an_invalid_target_is_refused(place: Place, target: str) -> None:
    with pytest.raises(UsageError, match="NAME@STAGE"):
        versions.promote(place.run(backend=Fake(write)).directory, target, store=place.store)


def test_a_failed_or_changed_run_is_not_promoted(place: Place) -> None:
    failed = place.run(backend=Fake(lambda launch, directory: 3)).directory
    changed = place.run(backend=Fake(write)).directory
    (changed / "files" / "model.bin").write_bytes(b"others")
    for directory, text in ((failed, "exit 3"), (changed, "model.bin")):
        with pytest.raises(RecordError, match=text):
            versions.promote(directory, "classifier@production", store=place.store)
    assert versions.history(failed.parent) == ()


def test_a_run_that_breaks_the_policy_is_not_promoted(place: Place) -> None:
    directory = place.run(backend=Fake(write)).directory
    (place.project / "pyproject.toml").write_text('[tool.repro-env.policy]\nlevel = "bitwise"\n')
    with pytest.raises(PolicyError, match="was not verified"):
        versions.promote(directory, "classifier@production", store=place.store)


def test_a_damaged_annotation_is_an_error(place: Place) -> None:
    directory = place.run(backend=Fake(write)).directory
    promote(directory, "classifier@production", place.store)
    (note,) = (directory / "annotations").iterdir()
    note.chmod(0o644)
    note.write_text("{")
    with pytest.raises(ReproEnvError):
        versions.history(directory.parent)
