"""A run's spec is kept with its bundled blobs after it is overwritten, and removed when no run names it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api import runsgc
from repro_env.api.execute import FinishedRun
from repro_env.api.rebuild import rebuild
from repro_env.runs.records import records
from repro_env.runs.specsearch import Specs
from repro_env.runs.start import sourcedirectory, speccopy
from repro_env.schema import codec
from repro_env.schema.errors import SpecError
from repro_env.schema.progress import Silent
from repro_env.specs.argument import Opened, open_spec
from repro_env.store.specs import archive as kept
from repro_env.store.specs.blobs import SpecBlobs, file_key
from tests.api.audits import drop_image, rewrite, run_audit
from tests.api.place import Fake, Place, writes
from tests.fakes import specs


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run(place: Place, **asked: Any) -> FinishedRun:
    return place.run(backend=Fake(writes(w_pt="weights")), **asked)


def spec_directory(done: FinishedRun) -> Path:
    assert done.start.spec_file is not None
    return kept.directory_of(done.directory.parent, done.start.spec_file)


def capture_again(place: Place) -> None:
    """Capture another environment into the same directory, which deletes the blobs of the first capture."""
    other = specs.make(place.directory, {}, prefix="/elsewhere/.venv", overlay={"etc/new": b"new"})
    SpecBlobs(place.directory / "blobs").keep_only(other.bundled - place.spec.bundled)


def test_the_spec_of_a_run_survives_the_next_capture_with_its_bundled_blobs(place: Place) -> None:
    data = (place.directory / "spec.json").read_bytes()
    done = run(place)
    capture_again(place)
    assert (spec_directory(done) / "spec.json").read_bytes() == data
    assert run_audit(place).findings == ()
    drop_image(place)
    assert run_audit(place).findings == (), "it can be rebuilt"
    found = Specs(done.directory.parent, place.project, place.store).of(done.start)
    assert found is not None
    assert found.directory == spec_directory(done)
    made = rebuild(Opened(found.spec, found.directory), store=place.store)
    assert made.image_id == done.start.image


def test_the_copy_of_a_spec_that_has_its_blobs_is_used(place: Place) -> None:
    done = run(place)

    def directory() -> Path:
        found = Specs(done.directory.parent, place.project, place.store).of(done.start)
        assert found is not None
        assert Specs(done.directory.parent, place.project, place.store).find(done.start.spec) == found
        return found.directory

    assert directory() == place.directory
    shutil.move(place.directory / "blobs", place.project.parent / "blobs")
    assert directory() == spec_directory(done), "as in a clone into which the runs were copied"
    shutil.rmtree(spec_directory(done) / "blobs")
    assert directory() == place.directory, "no copy has its blobs"
    shutil.move(place.project.parent / "blobs", place.directory / "blobs")
    assert directory() == place.directory, "as in a directory whose runs were cloned without blobs"


def test_blobs_are_hard_links_and_are_not_checked_again(place: Place) -> None:
    blobs = SpecBlobs(place.directory / "blobs")
    assert {blobs.has(digest, place.store.facts) for digest in place.spec.bundled} == {True}
    done = run(place)
    kept_blobs = SpecBlobs(spec_directory(done) / "blobs")
    for digest in place.spec.bundled:
        path, original = kept_blobs.path(digest), blobs.path(digest)
        assert path is not None
        assert original is not None
        assert path.stat().st_ino == original.stat().st_ino
        assert place.store.facts.get("bundled", file_key(path)) == b"whole", "it is not read again for its new name"


def test_blobs_are_copied_if_hard_links_are_impossible(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    done = run(place)
    capture_again(place)
    assert {SpecBlobs(spec_directory(done) / "blobs").has(digest, place.store.facts) for digest in place.spec.bundled} == {True}
    assert sorted(path.name for path in (spec_directory(done) / "blobs").glob(".*")) == [".gitignore"]


def test_a_blob_that_cannot_be_kept_is_a_warning_and_the_run_continues(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link
    full = place.spec.identity.base.sha256.removeprefix("sha256:")

    def refuse(path: Path | str, to: Path | str) -> None:
        if Path(to).name.startswith(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, to)

    monkeypatch.setattr(os, "link", refuse)
    done = run(place)
    kept_blobs = SpecBlobs(spec_directory(done) / "blobs")
    assert {digest for digest in place.spec.bundled if kept_blobs.path(digest) is None} == {place.spec.identity.base.sha256}
    assert done.end.outcome.exit_code == 0
    assert "so a later capture may delete them" in place.talk
    assert spec_directory(done).joinpath("spec.json").is_file()


def test_runs_share_a_kept_spec_and_a_temporary_run_keeps_none(place: Place) -> None:
    first, second = run(place), run(place)
    assert first.start.spec_file == second.start.spec_file
    assert len(kept.listing(first.directory.parent)) == 1
    assert run(place, keeps_record=False, runs=place.project.parent / "aside").start.spec_file is None
    assert not (place.project.parent / "aside" / "specs").exists()


def test_a_repeated_run_keeps_the_captured_spec_and_not_the_adapted_one(place: Place) -> None:
    first = run(place)
    source = place.spec.observed.source
    assert source is not None
    tree = msgspec.structs.replace(source.tree, sha256=first.start.source.digest)
    place.spec = msgspec.structs.replace(
        place.spec, observed=msgspec.structs.replace(place.spec.observed, source=msgspec.structs.replace(source, tree=tree))
    )
    assert run(place, frozen=True).start.spec_file == first.start.spec_file


def test_a_spec_that_is_overwritten_while_the_run_starts_is_kept_as_it_was_read(place: Place) -> None:
    capture_again(place)
    done = speccopy._bytes(place.spec, place.directory)
    assert done == codec.pretty(place.spec)


def test_a_kept_spec_can_be_opened(place: Place) -> None:
    remote = '{"schema": "repro-env/remote/1", "copies": []}'
    (place.directory / "remote.json").write_text(remote)
    done = run(place)
    found = open_spec(str(spec_directory(done)), place.project, place.store)
    assert (found.spec.digest, found.runs) == (done.start.spec, done.directory.parent)
    assert (spec_directory(done) / "remote.json").read_text() == remote
    assert sourcedirectory.is_trusted(place.spec, spec_directory(done), place.store), "it is in the project"
    apart = place.project.parent / "x" / "specs" / spec_directory(done).name
    shutil.copytree(spec_directory(done), apart)
    assert not sourcedirectory.is_trusted(place.spec, apart, place.store)


def test_an_edited_kept_spec_does_not_count_as_the_spec_of_the_run(place: Place) -> None:
    done = run(place)
    capture_again(place)
    path = spec_directory(done) / "spec.json"
    rewrite(path, path.read_bytes().replace(b'"remarks": []', b'"remarks": ["x"]'))
    finding = run_audit(place).findings[0]
    assert (finding.part, finding.state) == ("spec", "gone")
    assert "the spec of the run has changed" in finding.why


def test_another_spec_file_with_the_same_identity_is_reported(place: Place) -> None:
    done = run(place)
    path = place.directory / "spec.json"
    rewrite(path, path.read_bytes().replace(b'"remarks": []', b'"remarks": ["x"]'))
    assert run_audit(place).findings == (), "the first file is kept"
    shutil.rmtree(spec_directory(done).parent)
    ((finding),) = run_audit(place).findings
    assert (finding.part, finding.state) == ("spec", "gone")
    assert "has the same identity" in finding.why


def test_gc_removes_specs_that_no_run_names(place: Place) -> None:
    def gc(*words: str, dry_run: bool = False) -> runsgc.Collected:
        return runsgc.collect(runs, words, store=place.store, dry_run=dry_run, tell=Silent())

    first = run(place)
    runs = first.directory.parent
    capture_again(place)
    place.spec = place.at(codec.decode((place.directory / "spec.json").read_bytes(), type(place.spec), where="spec"))
    second = run(place)
    old, new = spec_directory(first), spec_directory(second)
    assert gc("last=1", dry_run=True).specs == (), "a run may be about to start from it"
    for directory in (old, new):
        os.utime(directory, (1, 1))
    dry = gc("last=1", dry_run=True)
    assert [spec.directory for spec in dry.specs] == [old]
    assert dry.specs[0].size > old.joinpath("spec.json").stat().st_size, "its blobs have no other hard link now"
    assert gc("last=2").specs == ()
    assert gc("last=1").specs == dry.specs
    assert [spec.directory for spec in kept.listing(runs)] == [new]
    assert records.directories(runs) == [second.directory]


def test_an_unreadable_record_keeps_its_spec(place: Place) -> None:
    done = run(place)
    text = (done.directory / "start.json").read_text()
    rewrite(done.directory / "start.json", text[: text.index('"threads"')].encode())
    os.utime(spec_directory(done), (1, 1))
    with pytest.raises(SpecError, match="truncated"):
        records.read(done.directory)
    assert runsgc.collect(done.directory.parent, ["tagged"], store=place.store, dry_run=False, tell=Silent()).specs == ()
    assert kept.listing(done.directory.parent)
