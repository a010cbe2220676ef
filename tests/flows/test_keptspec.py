"""A run's spec after it was overwritten: kept with what it carries, found again, and gone when no run names it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.catalog import records
from repro_env.catalog import specs as kept
from repro_env.flows import keptspec, retention, sourcedir
from repro_env.flows.execute import Done
from repro_env.flows.opened import opened
from repro_env.flows.rebuild import rebuild
from repro_env.flows.specof import Specs
from repro_env.model import codec
from repro_env.model.errors import SpecError
from repro_env.model.talk import Silent
from repro_env.store.carried import Carried, key_of
from tests.fakes import specs
from tests.flows.test_audit import drop_image, look, rewrite
from tests.flows.test_execute import Fake, Place, writes


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run(place: Place, **asked: Any) -> Done:
    return place.run(backend=Fake(writes(w_pt="weights")), **asked)


def folder_of(done: Done) -> Path:
    assert done.start.spec_file is not None
    return kept.place(done.folder.parent, done.start.spec_file)


def capture_again(place: Place) -> None:
    """Another environment into the same folder, as `capture` does it: what the first one carried goes."""
    other = specs.make(place.folder, {}, prefix="/elsewhere/.venv", overlay={"etc/new": b"new"})
    Carried(place.folder / "blobs").keep_only(other.carried - place.spec.carried)


def test_the_spec_of_a_run_survives_the_next_capture_with_all_that_it_carries(place: Place) -> None:
    data = (place.folder / "spec.json").read_bytes()
    done = run(place)
    capture_again(place)
    assert (folder_of(done) / "spec.json").read_bytes() == data
    assert look(place).findings == ()
    drop_image(place)
    assert look(place).findings == (), "it can be rebuilt"
    found = Specs(done.folder.parent, place.project, place.store).of(done.start)
    assert found is not None
    assert found.folder == folder_of(done)
    made = rebuild(found.spec, found.folder, store=place.store, dry_run=False, tell=Silent())
    assert made.image_id == done.start.image


def test_the_copy_of_a_spec_that_has_its_blobs_is_used(place: Place) -> None:
    done = run(place)

    def folder() -> Path:
        found = Specs(done.folder.parent, place.project, place.store).of(done.start)
        assert found is not None
        assert Specs(done.folder.parent, place.project, place.store).find(done.start.spec) == found
        return found.folder

    assert folder() == place.folder
    shutil.move(place.folder / "blobs", place.project.parent / "blobs")
    assert folder() == folder_of(done), "as in a clone into which the runs were copied"
    shutil.rmtree(folder_of(done) / "blobs")
    assert folder() == place.folder, "no copy has its blobs"
    shutil.move(place.project.parent / "blobs", place.folder / "blobs")
    assert folder() == place.folder, "as in a directory whose runs were cloned without blobs"


def test_its_blobs_are_other_names_of_the_same_files_and_stay_proven(place: Place) -> None:
    blobs = Carried(place.folder / "blobs")
    assert all(blobs.has(one, place.store.facts) for one in place.spec.carried)
    done = run(place)
    ours = Carried(folder_of(done) / "blobs")
    for one in place.spec.carried:
        path, theirs = ours.path(one), blobs.path(one)
        assert path is not None
        assert theirs is not None
        assert path.stat().st_ino == theirs.stat().st_ino
        assert place.store.facts.get("carried", key_of(path)) == b"whole", "it need not be read again for its new name"


def test_where_there_are_no_links_they_are_copied(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    done = run(place)
    capture_again(place)
    assert all(Carried(folder_of(done) / "blobs").has(one, place.store.facts) for one in place.spec.carried)
    assert sorted(path.name for path in (folder_of(done) / "blobs").glob(".*")) == [".gitignore"]


def test_what_cannot_be_kept_beside_it_is_told_and_the_run_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link
    full = place.spec.identity.base.sha256.removeprefix("sha256:")

    def refused(path: Path, to: Path) -> None:
        if to.name.startswith(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, to)

    monkeypatch.setattr(os, "link", refused)
    done = run(place)
    ours = Carried(folder_of(done) / "blobs")
    assert {one for one in place.spec.carried if ours.path(one) is None} == {place.spec.identity.base.sha256}
    assert done.end.outcome.exit_code == 0
    assert "so another capture may lose it" in place.talk
    assert folder_of(done).joinpath("spec.json").is_file()


def test_many_runs_share_one_and_a_run_that_is_not_kept_keeps_none(place: Place) -> None:
    first, second = run(place), run(place)
    assert first.start.spec_file == second.start.spec_file
    assert len(kept.there(first.folder.parent)) == 1
    assert run(place, kept=False, runs=place.project.parent / "aside").start.spec_file is None
    assert not (place.project.parent / "aside" / "specs").exists()


def test_a_run_that_repeats_another_keeps_the_captured_spec_and_not_the_adapted_one(place: Place) -> None:
    first = run(place)
    source = place.spec.observed.source
    assert source is not None
    tree = msgspec.structs.replace(source.tree, sha256=first.start.source.digest)
    place.spec = msgspec.structs.replace(
        place.spec, observed=msgspec.structs.replace(place.spec.observed, source=msgspec.structs.replace(source, tree=tree))
    )
    assert run(place, frozen=True).start.spec_file == first.start.spec_file


def test_a_spec_that_was_overwritten_while_the_run_began_is_kept_as_it_was_read(place: Place) -> None:
    capture_again(place)
    done = keptspec._bytes(place.spec, place.folder)
    assert done == codec.pretty(place.spec)


def test_a_kept_spec_is_a_spec_as_any_other(place: Place) -> None:
    remote = '{"schema": "repro-env/remote/1", "copies": []}'
    (place.folder / "remote.json").write_text(remote)
    done = run(place)
    found = opened(str(folder_of(done)), place.project, place.store)
    assert (found.spec.digest, found.runs) == (done.start.spec, done.folder.parent)
    assert (folder_of(done) / "remote.json").read_text() == remote
    assert sourcedir.is_known(place.spec, folder_of(done), place.store), "it lies in the project"
    apart = place.project.parent / "x" / "specs" / folder_of(done).name
    shutil.copytree(folder_of(done), apart)
    assert not sourcedir.is_known(place.spec, apart, place.store)


def test_an_edited_kept_spec_is_not_the_one_that_the_run_ran_from(place: Place) -> None:
    done = run(place)
    capture_again(place)
    path = folder_of(done) / "spec.json"
    rewrite(path, path.read_bytes().replace(b'"notes": []', b'"notes": ["x"]'))
    finding = look(place).findings[0]
    assert (finding.part, finding.state) == ("spec", "gone")
    assert "it was changed" in finding.why


def test_another_file_of_the_same_identity_is_told_as_such(place: Place) -> None:
    done = run(place)
    path = place.folder / "spec.json"
    rewrite(path, path.read_bytes().replace(b'"notes": []', b'"notes": ["x"]'))
    assert look(place).findings == (), "the first one is kept"
    shutil.rmtree(folder_of(done).parent)
    ((finding),) = look(place).findings
    assert (finding.part, finding.state) == ("spec", "gone")
    assert "has the same identity" in finding.why


def test_gc_removes_what_no_run_names_and_keeps_the_rest(place: Place) -> None:
    def gc(*words: str, dry_run: bool = False) -> retention.Collected:
        return retention.collect(runs, words, store=place.store, dry_run=dry_run, tell=Silent())

    first = run(place)
    runs = first.folder.parent
    capture_again(place)
    place.spec = place.at(codec.decode((place.folder / "spec.json").read_bytes(), type(place.spec), where="spec"))
    second = run(place)
    old, new = folder_of(first), folder_of(second)
    assert gc("last=1", dry_run=True).specs == (), "somebody may be about to begin with it"
    for one in (old, new):
        os.utime(one, (1, 1))
    dry = gc("last=1", dry_run=True)
    assert [one.folder for one in dry.specs] == [old]
    assert dry.specs[0].size > old.joinpath("spec.json").stat().st_size, "with its blobs: nobody else has them now"
    assert gc("last=2").specs == ()
    assert gc("last=1").specs == dry.specs
    assert [one.folder for one in kept.there(runs)] == [new]
    assert records.folders(runs) == [second.folder]


def test_a_record_that_cannot_be_read_holds_its_spec(place: Place) -> None:
    done = run(place)
    text = (done.folder / "start.json").read_text()
    rewrite(done.folder / "start.json", text[: text.index('"threads"')].encode())
    os.utime(folder_of(done), (1, 1))
    with pytest.raises(SpecError, match="truncated"):
        records.read(done.folder)
    assert retention.collect(done.folder.parent, ["tagged"], store=place.store, dry_run=False, tell=Silent()).specs == ()
    assert kept.there(done.folder.parent)
