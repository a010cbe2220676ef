"""`diff` of small specs and their images: which differences it lists, in which order, and what it cannot compare."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from repro_env.api.diff import DiffResult, diff
from repro_env.compare.environments import comparison, sides
from repro_env.compare.environments.difference import Difference
from repro_env.compare.environments.sides import spec_side
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.schema import codec
from repro_env.schema.environment import SystemPackage
from repro_env.schema.errors import ReproEnvError, SpecError
from repro_env.schema.spec import Data, Spec
from repro_env.store.packages.wheelfile import FACTS, open_facts
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.specs.lookup import locate
from repro_env.store.store import Store
from tests.fakes import specs, wheels

SITE = "opt/env/lib/python3.11/site-packages"


@pytest.fixture
def store() -> Store:
    return Store.open()


def run_diff(left: str | Path, right: str | Path, start: Path, store: Store) -> DiffResult:
    return diff(str(left), str(right), start=start, environ={}, store=store)


def by_name(result: DiffResult) -> dict[str, Difference]:
    return {difference.what: difference for difference in result.differences}


def spec(directory: Path, overlay: Mapping[str, bytes] | None = None, **parts: object) -> Spec:
    """Make a spec with one bundled wheel and this overlay."""
    paths = {"alpha": wheels.make(directory.parent / "wheels", "alpha")}
    return specs.make(directory, paths, carry=["alpha"], overlay=overlay, **parts)  # type: ignore[arg-type]


def rewrite(directory: Path, changed: Spec) -> None:
    (directory / "spec.json").write_bytes(codec.pretty(changed))


def test_a_spec_equals_itself_for_every_form_of_its_path(tmp_path: Path, store: Store) -> None:
    spec(tmp_path / "one" / "repro")
    for word in ("one", "one/repro", "one/repro/spec.json"):
        result = run_diff("one", word, tmp_path, store)
        assert result.same
        assert result.differences == ()
        assert (result.same_layers, result.same_distributions) == (result.left.layers, 1)


def test_specs_that_differ_only_in_the_seed_describe_the_same_image(tmp_path: Path, store: Store) -> None:
    for name, seed in (("one", 0), ("other", 7)):
        spec(tmp_path / name, seed=seed)
    result = run_diff("one", "other", tmp_path, store)
    assert not result.same
    assert [(difference.level, difference.what, difference.left, difference.right) for difference in result.differences] == [
        ("numerics", "seed", "0", "7")
    ]
    assert (result.left.spec_digest, result.left.image_id) == (result.right.spec_digest, result.right.image_id)


def test_differences_of_the_prefix_alone_are_marked(tmp_path: Path, store: Store) -> None:
    """The files that contain the prefix are listed, and so are the digests that depend on them."""
    for name in ("one", "other"):
        prefix = f"/home/ann/{name}"
        overlay = {"opt/env/pyvenv.cfg": f"command = python -m venv {prefix}\nprompt = ({name})\n".encode(), "opt/env/same": b"1"}
        spec(tmp_path / name, overlay, prefix=prefix)
    result = run_diff("one", "other", tmp_path, store)
    assert not result.same
    own = [difference for difference in result.differences if difference.level != "digests"]
    assert {difference.what for difference in own} == {"pyvenv.cfg", "prefix", "command", "PATH", "VIRTUAL_ENV"}
    assert all(difference.moved for difference in own)
    assert "only in the prefix" in by_name(result)["pyvenv.cfg"].why
    digests = {difference.what for difference in result.differences if difference.level == "digests"}
    assert digests == {"spec digest", "image ID"}
    assert result.same_layers == result.left.layers - 2, "base, interpreter and distributions are the same layers"


def test_a_file_that_differs_in_more_than_the_prefix_is_not_marked(tmp_path: Path, store: Store) -> None:
    spec(tmp_path / "one", {"opt/env/x": b"/home/ann/one 1"}, prefix="/home/ann/one")
    spec(tmp_path / "other", {"opt/env/x": b"/home/ann/other 2"}, prefix="/home/ann/other")
    assert not by_name(run_diff("one", "other", tmp_path, store))["x"].moved


def test_changed_files_of_a_distribution_are_listed_under_its_name(tmp_path: Path, store: Store) -> None:
    path = wheels.make(tmp_path / "wheels", "alpha")
    first = spec(tmp_path / "one")
    spec(tmp_path / "other", {f"{SITE}/alpha.py": b"EDITED\n", f"{SITE}/sitecustomize.py": b"pass\n"})
    store.facts.put(FACTS, first.identity.distributions[0].sha256, codec.canonical(open_facts(path, path.name)))
    differences = by_name(run_diff("one", "other", tmp_path, store))
    edited = differences["lib/python3.11/site-packages/alpha.py"]
    assert (edited.level, edited.of, edited.left) == ("distributions", "alpha", "as in alpha")
    stray = differences["lib/python3.11/site-packages/sitecustomize.py"]
    assert (stray.level, stray.of, stray.left) == ("files", "", "")
    assert "every start" in stray.why


def remove_in_overlay(directory: Path, path: str) -> Spec:
    """Make a spec whose overlay removes one path of the layers below."""
    made = spec(directory)
    entries = sort_with_parents([Entry(path, "gone")])
    overlay = SpecBlobs(directory / "blobs").add_tree([(entry, ()) for entry in entries])
    changed = msgspec.structs.replace(made, identity=msgspec.structs.replace(made.identity, overlay=overlay))
    rewrite(directory, changed)
    return changed


def test_a_removed_file_is_listed_whether_its_owner_is_known_or_not(tmp_path: Path, store: Store) -> None:
    made = spec(tmp_path / "one")
    remove_in_overlay(tmp_path / "other", f"{SITE}/alpha.py")
    first, second = (locate(str(tmp_path / name), tmp_path) for name in ("one", "other"))
    for is_owner_known in (False, True):
        if is_owner_known:
            path = wheels.make(tmp_path / "wheels", "alpha")
            store.facts.put(FACTS, made.identity.distributions[0].sha256, codec.canonical(open_facts(path, path.name)))
        sides = [spec_side(found_spec, directory, "", store) for found_spec, directory in (first, second)]
        for left, right, texts in ((0, 1, ("present", "removed")), (1, 0, ("removed", "present"))):
            (difference,) = comparison.files(sides[left], sides[right], store)
            assert difference.what == "lib/python3.11/site-packages/alpha.py"
            expected = ["as in alpha" if is_owner_known and text == "present" else text for text in texts]
            assert [difference.left, difference.right] == expected


def test_trees_whose_digests_differ_are_reported_even_if_all_paths_are_equal(tmp_path: Path, store: Store) -> None:
    """Only a parent directory of the prefix differs here, which is not compared as a path."""
    spec(tmp_path / "one", {"opt/env/x": b"1"})
    made = spec(tmp_path / "other")
    without_opt = [(Entry("opt/env", "dir"), ()), (Entry("opt/env/x", "file", False, 1, ""), [b"1"])]
    same = SpecBlobs(tmp_path / "other" / "blobs").add_tree(without_opt)
    rewrite(tmp_path / "other", msgspec.structs.replace(made, identity=msgspec.structs.replace(made.identity, overlay=same)))
    sides = [spec_side(*locate(str(tmp_path / name), tmp_path), "", store) for name in ("one", "other")]
    (difference,) = comparison.files(sides[0], sides[1], store)
    assert difference.what == "files of the overlay"
    assert "all paths are equal" in difference.why


def test_changed_files_of_another_build_of_a_version_are_listed(tmp_path: Path, store: Store) -> None:
    paths = []
    for name, content in (("one", b"1\n"), ("other", b"2\n")):
        path = wheels.make(tmp_path / name / "wheels", "numpy", files={"numpy.py": content, "same.py": b"\n"})
        specs.make(tmp_path / name, {"numpy": path}, carry=["numpy"])
        paths.append(path)
    result = run_diff("one", "other", tmp_path, store)
    assert by_name(result)["numpy"].level == "numerics"
    assert "the files that differ are unknown" in by_name(result)["numpy"].why
    for path in paths:
        facts = open_facts(path, path.name)
        store.facts.put(FACTS, wheels.artifact(path, "numpy").sha256, codec.canonical(facts))
    result = run_diff("one", "other", tmp_path, store)
    own = {difference.what: difference.of for difference in result.differences if difference.level == "numerics"}
    assert own == {"numpy": "", "lib/python3.11/site-packages/numpy.py": "numpy"}


def test_another_wheel_with_the_same_files_does_not_count(tmp_path: Path, store: Store) -> None:
    """The wheel was compressed differently. The store knows neither wheel, but their layers are equal."""
    for name, compression in (("one", zipfile.ZIP_DEFLATED), ("other", zipfile.ZIP_STORED)):
        path = wheels.make(tmp_path / name / "wheels", "numpy", files={"numpy.py": b"1\n"})
        with zipfile.ZipFile(path) as archive:
            members = [(member, archive.read(member)) for member in archive.infolist()]
        with zipfile.ZipFile(path, "w") as archive:
            for member, data in members:
                archive.writestr(member, data, compression)
        specs.make(tmp_path / name, {"numpy": path}, carry=["numpy"])
    result = run_diff("one", "other", tmp_path, store)
    assert result.left.spec_digest != result.right.spec_digest
    assert by_name(result)["numpy"].why == "another wheel with the same files"
    assert result.same


def test_system_files_are_compared_by_path_and_package(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = spec(tmp_path / "one")
    packages = (SystemPackage(name="libc6", version="2.36-9"), SystemPackage(name="libssl3", version="3.0.11"))
    rewrite(tmp_path / "one", with_packages(made, packages))
    monkeypatch.setitem(specs.TREES, "base", {"etc/os-release": b"NAME=other\n", "usr/bin/env": b"\x7fELF base", "new": b""})
    made = spec(tmp_path / "other")
    packages = (SystemPackage(name="libc6", version="2.36-10"), SystemPackage(name="libssl3", version="3.0.11"))
    rewrite(tmp_path / "other", with_packages(made, packages))
    result = run_diff("one", "other", tmp_path, store)
    counted = [
        (difference.level, difference.what)
        for difference in result.differences
        if difference.counts and difference.level != "digests"
    ]
    assert counted == [("numerics", "libc6"), ("system", "/etc/os-release"), ("system", "/new")]
    shutil.rmtree(tmp_path / "other" / "blobs")
    result = run_diff("one", "other", tmp_path, store)
    assert "the files that differ are unknown" in by_name(result)["files of the base"].why


def with_packages(made: Spec, packages: tuple[SystemPackage, ...]) -> Spec:
    return msgspec.structs.replace(made, observed=msgspec.structs.replace(made.observed, system_packages=packages))


def test_facts_of_the_machine_do_not_count(tmp_path: Path, store: Store) -> None:
    """Machines with different GPUs have the same spec digest; the GPUs are listed first."""
    made = spec(tmp_path / "one")
    host = msgspec.structs.replace(made.observed.host, gpus=("H100",), nvidia="550")
    observed = msgspec.structs.replace(made.observed, host=host)
    (tmp_path / "other").mkdir()
    rewrite(tmp_path / "other", msgspec.structs.replace(made, observed=observed))
    shutil.copytree(tmp_path / "one" / "blobs", tmp_path / "other" / "blobs")
    result = run_diff("one", "other", tmp_path, store)
    assert result.same
    assert result.left.spec_digest == result.right.spec_digest
    assert [difference.what for difference in result.differences] == ["GPUs", "NVIDIA driver"]


def test_changed_code_of_two_specs_is_listed(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spec(tmp_path / "one")
    monkeypatch.setitem(specs.TREES, "source", {"train.py": b"print('other')\n", "more.py": b""})
    spec(tmp_path / "other")
    result = run_diff("one", "other", tmp_path, store)
    assert not result.same
    assert result.left.spec_digest == result.right.spec_digest
    assert [(difference.level, difference.what) for difference in result.differences] == [
        ("source", "more.py"),
        ("source", "train.py"),
    ]


@pytest.mark.parametrize("is_left", [True, False])
def test_code_and_data_of_a_spec_are_not_compared_with_a_live_environment(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    made = spec(tmp_path / "one")
    data = (Data(path="/data", digest=made.digest, files=1, size=1),)
    made = msgspec.structs.replace(made, observed=msgspec.structs.replace(made.observed, data=data))
    rewrite(tmp_path / "one", made)
    monkeypatch.setattr(sides, "live_side", lambda *_, like: spec_side(made, tmp_path / "one", "live", store))
    left, right = ("one", sys.executable) if is_left else (sys.executable, "one")
    result = run_diff(left, right, tmp_path, store)
    assert result.differences == ()
    assert [entry.what for entry in result.not_compared] == ["source", "data /data"]
    assert not result.same


@pytest.mark.parametrize(
    ("word", "error"), [("nothing", SpecError), ("./nothing", SpecError), ("0123456789", SpecError), ("empty", SpecError)]
)
def test_diff_refuses_words_that_name_nothing(tmp_path: Path, store: Store, word: str, error: type[ReproEnvError]) -> None:
    (tmp_path / "empty").mkdir()
    spec(tmp_path / "one")
    with pytest.raises(error):
        run_diff("one", word, tmp_path, store)
