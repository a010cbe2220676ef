"""`diff` of small specs and their images: what is named, in which order, and what cannot be told."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from repro_env.flows import compare
from repro_env.flows.diff import Diffed, diff
from repro_env.flows.locate import locate
from repro_env.flows.rebuild import rebuild
from repro_env.flows.sides import of_spec
from repro_env.image.entry import Entry, ordered
from repro_env.model import codec
from repro_env.model.accelerator import Accelerators, Device
from repro_env.model.environment import SystemPackage
from repro_env.model.errors import ReproEnvError, SpecError, UsageError
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS, open_facts
from repro_env.verify.difference import Difference
from tests.fakes import specs, wheels

SITE = "opt/env/lib/python3.11/site-packages"


@pytest.fixture
def store() -> Store:
    return Store.open()


def compared(left: str | Path, right: str | Path, start: Path, store: Store) -> Diffed:
    return diff(str(left), str(right), start, {}, store=store, tell=Silent())


def named(found: Diffed) -> dict[str, Difference]:
    return {one.what: one for one in found.differences}


def spec(folder: Path, overlay: Mapping[str, bytes] | None = None, **parts: object) -> Spec:
    """A spec of one wheel, carried, with a known overlay."""
    made = {"alpha": wheels.make(folder.parent / "wheels", "alpha")}
    return specs.make(folder, made, carry=["alpha"], overlay=overlay, **parts)  # type: ignore[arg-type]


def rewrite(folder: Path, changed: Spec) -> None:
    (folder / "spec.json").write_bytes(codec.pretty(changed))


def test_a_spec_is_the_same_as_itself_however_it_is_named(tmp_path: Path, store: Store) -> None:
    spec(tmp_path / "one" / "repro")
    for word in ("one", "one/repro", "one/repro/spec.json"):
        found = compared("one", word, tmp_path, store)
        assert found.same
        assert found.differences == ()
        assert (found.layers, found.distributions) == (found.left.layers, 1)


def test_the_same_environment_at_another_prefix(tmp_path: Path, store: Store) -> None:
    """What the prefix is written in is named, and nothing is left that follows from something else."""
    for name in ("one", "other"):
        prefix = f"/home/ann/{name}"
        overlay = {"opt/env/pyvenv.cfg": f"command = python -m venv {prefix}\nprompt = ({name})\n".encode(), "opt/env/same": b"1"}
        spec(tmp_path / name, overlay, prefix=prefix)
    found = compared("one", "other", tmp_path, store)
    assert not found.same
    own = [one for one in found.differences if one.level != "digests"]
    assert {one.what for one in own} == {"pyvenv.cfg", "prefix", "command", "PATH", "VIRTUAL_ENV"}
    assert all(one.moved for one in own)
    assert "only in the prefix" in named(found)["pyvenv.cfg"].why
    follows = {one.what for one in found.differences if one.level == "digests"}
    assert follows == {"overlay layer", "marker layer", "spec digest", "image ID"}
    assert found.layers == found.left.layers - 2, "base, interpreter and distributions are the same layers"


def test_a_file_that_differs_in_more_than_the_prefix_says_so(tmp_path: Path, store: Store) -> None:
    spec(tmp_path / "one", {"opt/env/x": b"/home/ann/one 1"}, prefix="/home/ann/one")
    spec(tmp_path / "other", {"opt/env/x": b"/home/ann/other 2"}, prefix="/home/ann/other")
    assert not named(compared("one", "other", tmp_path, store))["x"].moved


def test_overlay_paths_belong_to_their_distribution(tmp_path: Path, store: Store) -> None:
    path = wheels.make(tmp_path / "wheels", "alpha")
    made = spec(tmp_path / "one")
    spec(tmp_path / "other", {f"{SITE}/alpha.py": b"EDITED\n", f"{SITE}/sitecustomize.py": b"pass\n"})
    store.facts.put(FACTS, made.identity.distributions[0].sha256, codec.canonical(open_facts(path, path.name)))
    found = named(compared("one", "other", tmp_path, store))
    edited = found["lib/python3.11/site-packages/alpha.py"]
    assert (edited.level, edited.of, edited.left) == ("distributions", "alpha", "as alpha has it")
    stray = found["lib/python3.11/site-packages/sitecustomize.py"]
    assert (stray.level, stray.of, stray.left) == ("files", "", "")
    assert "every start" in stray.why


def removing(folder: Path, path: str) -> Spec:
    """The spec in `folder` with an overlay that removes one path of the layers below."""
    made = spec(folder)
    entries = ordered([Entry(path, "gone")])
    overlay = Carried(folder / "blobs").add_tree([(entry, ()) for entry in entries])
    changed = msgspec.structs.replace(made, identity=msgspec.structs.replace(made.identity, overlay=overlay))
    rewrite(folder, changed)
    return changed


def test_a_removed_file_is_named_whether_its_owner_is_known_or_not(tmp_path: Path, store: Store) -> None:
    made = spec(tmp_path / "one")
    removing(tmp_path / "other", f"{SITE}/alpha.py")
    one, other = (locate(str(tmp_path / name), tmp_path) for name in ("one", "other"))
    for known in (False, True):
        if known:
            path = wheels.make(tmp_path / "wheels", "alpha")
            store.facts.put(FACTS, made.identity.distributions[0].sha256, codec.canonical(open_facts(path, path.name)))
        sides = [of_spec(found, folder, "", store) for found, folder in (one, other)]
        for left, right, texts in ((0, 1, ("there", "removed")), (1, 0, ("removed", "there"))):
            (only,) = compare.files(sides[left], sides[right], store)
            assert only.what == "lib/python3.11/site-packages/alpha.py"
            expected = ["as alpha has it" if known and text == "there" else text for text in texts]
            assert [only.left, only.right] == expected


def test_trees_that_differ_are_never_passed_over(tmp_path: Path, store: Store) -> None:
    """Here only a folder above the prefix's own files differs, which no path is told of."""
    spec(tmp_path / "one", {"opt/env/x": b"1"})
    made = spec(tmp_path / "other")
    without_opt = [(Entry("opt/env", "dir"), ()), (Entry("opt/env/x", "file", False, 1, ""), [b"1"])]
    same = Carried(tmp_path / "other" / "blobs").add_tree(without_opt)
    rewrite(tmp_path / "other", msgspec.structs.replace(made, identity=msgspec.structs.replace(made.identity, overlay=same)))
    sides = [of_spec(*locate(str(tmp_path / name), tmp_path), "", store) for name in ("one", "other")]
    (only,) = compare.files(sides[0], sides[1], store)
    assert only.what == "files of the overlay"
    assert "no path shows it" in only.why


def test_another_build_of_one_version_names_its_files(tmp_path: Path, store: Store) -> None:
    paths = []
    for name, content in (("one", b"1\n"), ("other", b"2\n")):
        path = wheels.make(tmp_path / name / "wheels", "numpy", files={"numpy.py": content, "same.py": b"\n"})
        specs.make(tmp_path / name, {"numpy": path}, carry=["numpy"])
        paths.append(path)
    found = compared("one", "other", tmp_path, store)
    assert named(found)["numpy"].level == "numerics"
    assert "which files cannot be told" in named(found)["numpy"].why
    for path in paths:
        facts = open_facts(path, path.name)
        store.facts.put(FACTS, wheels.artifact(path, "numpy").sha256, codec.canonical(facts))
    found = compared("one", "other", tmp_path, store)
    own = {one.what: one.of for one in found.differences if one.level == "numerics"}
    assert own == {"numpy": "", "lib/python3.11/site-packages/numpy.py": "numpy"}


def test_another_wheel_of_the_same_files_is_no_difference(tmp_path: Path, store: Store) -> None:
    """Built again, or compressed otherwise. The store knows neither wheel: the layers show it."""
    for name, compression in (("one", zipfile.ZIP_DEFLATED), ("other", zipfile.ZIP_STORED)):
        path = wheels.make(tmp_path / name / "wheels", "numpy", files={"numpy.py": b"1\n"})
        with zipfile.ZipFile(path) as made:
            members = [(member, made.read(member)) for member in made.infolist()]
        with zipfile.ZipFile(path, "w") as again:
            for member, data in members:
                again.writestr(member, data, compression)
        specs.make(tmp_path / name, {"numpy": path}, carry=["numpy"])
    found = compared("one", "other", tmp_path, store)
    assert found.left.spec_digest != found.right.spec_digest
    assert named(found)["numpy"].why == "another wheel file of the same files"
    assert found.same


def test_trees_of_the_system_by_path_and_package(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = spec(tmp_path / "one")
    packages = (SystemPackage(name="libc6", version="2.36-9"), SystemPackage(name="libssl3", version="3.0.11"))
    rewrite(tmp_path / "one", _seen(made, packages))
    monkeypatch.setitem(specs.TREES, "base", {"etc/os-release": b"NAME=other\n", "usr/bin/env": b"\x7fELF base", "new": b""})
    made = spec(tmp_path / "other")
    packages = (SystemPackage(name="libc6", version="2.36-10"), SystemPackage(name="libssl3", version="3.0.11"))
    rewrite(tmp_path / "other", _seen(made, packages))
    found = compared("one", "other", tmp_path, store)
    counted = [(one.level, one.what) for one in found.differences if one.counts and one.level != "digests"]
    assert counted == [("numerics", "libc6"), ("system", "/etc/os-release"), ("system", "/new")]
    shutil.rmtree(tmp_path / "other" / "blobs")
    found = compared("one", "other", tmp_path, store)
    assert "which ones cannot be told" in named(found)["files of the base"].why


def _seen(made: Spec, packages: tuple[SystemPackage, ...]) -> Spec:
    return msgspec.structs.replace(made, observed=msgspec.structs.replace(made.observed, system_packages=packages))


def test_what_was_only_seen_makes_no_difference(tmp_path: Path, store: Store) -> None:
    """Two machines with other GPUs: the same spec digest, and the GPU is named first of all."""
    made = spec(tmp_path / "one")
    device = Device(
        index=0, vendor="nvidia", name="H100", architecture="9.0", units=132, memory=1, partition="", ecc=True, uuid=None
    )
    observed = msgspec.structs.replace(made.observed, accelerators=Accelerators(devices=(device,), driver="550"))
    (tmp_path / "other").mkdir()
    rewrite(tmp_path / "other", msgspec.structs.replace(made, observed=observed))
    shutil.copytree(tmp_path / "one" / "blobs", tmp_path / "other" / "blobs")
    found = compared("one", "other", tmp_path, store)
    assert found.same
    assert found.left.spec_digest == found.right.spec_digest
    assert [one.what for one in found.differences] == ["GPUs", "NVIDIA driver"]


def test_code_and_data_of_two_specs(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spec(tmp_path / "one")
    monkeypatch.setitem(specs.TREES, "source", {"train.py": b"print('other')\n", "more.py": b""})
    spec(tmp_path / "other")
    found = compared("one", "other", tmp_path, store)
    assert not found.same
    assert found.left.spec_digest == found.right.spec_digest
    assert [(one.level, one.what) for one in found.differences] == [("source", "more.py"), ("source", "train.py")]


def test_images_by_layer_and_path(tmp_path: Path, store: Store) -> None:
    """One from the store by the beginning of its ID, the other a spec that was never rebuilt."""
    made = spec(tmp_path / "one", {"opt/env/a": b"1", "opt/env/b": b"/home/ann/one"}, prefix="/home/ann/one")
    rebuild(*locate(str(tmp_path / "one"), tmp_path), store=store, dry_run=False, tell=Silent())
    spec(tmp_path / "other", {"opt/env/a": b"2", "opt/env/b": b"/home/ann/other"}, prefix="/home/ann/other")
    image = made.expected.image_id
    assert compared(image, "one", tmp_path, store).same
    assert compared(image, image[7:15], tmp_path, store).same
    found = compared(image[7:15], "other", tmp_path, store)
    assert found.left.kind == "image"
    own = {one.what: one.moved for one in found.differences if one.level != "digests"}
    assert own == {
        "/opt/env/a": False,
        "/opt/env/b": True,
        "/home/ann/one": True,
        "/home/ann/other": True,
    }
    assert {one.what for one in found.differences if one.level == "digests"} == {
        "/.repro-env/image.json",
        "spec digest",
        "image ID",
    }
    shutil.rmtree(tmp_path / "other" / "blobs")
    found = compared(image, "other", tmp_path, store)
    assert any("cannot be told" in one.why and one.of == "other" for one in found.differences)


def test_distributions_of_images_are_known_by_their_records(tmp_path: Path, store: Store) -> None:
    images = []
    for name, version in (("one", "1.0"), ("other", "2.0")):
        files = {"numpy.py": version.encode(), f"only_{name}.py": b"", "numpy/_vendor/six-1.0.dist-info/RECORD": b""}
        if name == "one":
            files |= {f"many/{number:0>60}.py": b"" for number in range(9000)}  # a RECORD of more than 1 MB, as torch's
        path = wheels.make(tmp_path / name / "wheels", "numpy", version, files)
        made = specs.make(tmp_path / name, {"numpy": path}, carry=["numpy"])
        rebuild(*locate(str(tmp_path / name), tmp_path), store=store, dry_run=False, tell=Silent())
        images.append(made.expected.image_id)
    found = compared(images[0], images[1], tmp_path, store)
    own = [one for one in found.differences if one.level != "digests"]
    assert [(one.level, one.what, one.left, one.right) for one in own] == [("numerics", "numpy", "1.0", "2.0")]
    assert "files" in own[0].why


@pytest.mark.parametrize(
    ("word", "error"), [("nothing", SpecError), ("./nothing", SpecError), ("0123456789", SpecError), ("empty", SpecError)]
)
def test_words_that_mean_nothing(tmp_path: Path, store: Store, word: str, error: type[ReproEnvError]) -> None:
    (tmp_path / "empty").mkdir()
    spec(tmp_path / "one")
    with pytest.raises(error):
        compared("one", word, tmp_path, store)


def test_the_beginning_of_two_images_is_refused(tmp_path: Path, store: Store) -> None:
    for digits in ("abcd1" + "0" * 59, "abcd2" + "0" * 59):
        (store.root / "images" / digits).write_bytes(b"{}")
    with pytest.raises(UsageError, match="2 images"):
        compared("abcd", "abcd", tmp_path, store)
    with pytest.raises(SpecError, match="damaged"):
        compared("abcd1", "abcd1", tmp_path, store)
