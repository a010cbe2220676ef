"""The spec of a run is searched for in all places."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from repro_env.runs.specsearch import Specs
from repro_env.schema import codec
from repro_env.store.store import Store
from tests.fakes import specs


def test_a_spec_is_found_next_to_the_runs_in_a_parent_directory_and_in_the_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    all_specs = [specs.make(tmp_path / str(number), {}, prefix=f"/home/ann/{number}/.venv") for number in range(3)]
    project, here = tmp_path / "project", tmp_path / "here"
    (here / "below").mkdir(parents=True)
    for number, target in ((0, project / "repro"), (1, here / "repro"), (2, store.root / "specs" / ("0" * 64))):
        shutil.copytree(tmp_path / str(number), target)
    places = []
    for spec in all_specs:
        found = Specs(project / "runs", here / "below", store).find(spec.digest)
        assert found is not None
        assert found.spec == spec
        places.append(found.directory)
    assert places == [project / "repro", here / "repro", store.root / "specs" / ("0" * 64)]
    lookup = Specs(project / "runs", here / "below", store)
    assert lookup.find("sha256:" + "0" * 64) is None
    assert len(list(lookup.all())) == 3


def test_an_unreadable_spec_is_reported_and_other_specs_are_found(tmp_path: Path) -> None:
    spec = specs.make(tmp_path / "other", {})
    (tmp_path / "repro").mkdir()
    (tmp_path / "repro" / "spec.json").write_text("{")
    lookup = Specs(tmp_path / "runs", tmp_path, Store.open(tmp_path / "store"))
    found = lookup.find(spec.digest)
    assert found is not None
    assert found.directory == tmp_path / "other"
    assert len(lookup.problems) == 1


def test_a_spec_with_an_edited_identity_is_not_found(tmp_path: Path) -> None:
    spec = specs.make(tmp_path / "repro", {})
    changed = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, command="/other/python"))
    (tmp_path / "repro" / "spec.json").write_bytes(codec.pretty(changed))
    assert Specs(tmp_path / "runs", tmp_path, Store.open(tmp_path / "store")).find(spec.digest) is None
