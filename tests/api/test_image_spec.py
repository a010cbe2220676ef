"""`image verify --spec` compares repro-env's own image by its layers, and an image of another builder path by path."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api.image import Verified, verify_image
from repro_env.delivery.builder.outputbuild import OutputBuild, pack
from repro_env.delivery.targets.ocilayout import Oci
from repro_env.oci import imagetree, layerreader, tar
from repro_env.oci.config import LABEL
from repro_env.schema import codec
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.fakes import images, specs, wheels
from tests.fakes.images import SITE, layered, layout


class Made(msgspec.Struct, frozen=True):
    spec: Spec
    directory: Path
    store: Store

    def verify(self, where: Path, given: str | None = None) -> Verified:
        return verify_image(str(where), given, self.directory.parent, store=self.store, tell=Silent())

    def send(self, to: Path, *, source: bool = False) -> Path:
        pack(self.spec, self.directory, self.store, Oci(to, "latest", self.store.boot), tell=Silent(), source=source)
        return to


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A spec whose overlay has an edited file and an unrecorded file, and removes a file."""
    wheel = wheels.make(
        tmp_path / "wheels", "alpha", files={"alpha/__init__.py": b"A = 1\n", "alpha/more.py": b"B = 2\n", "alpha/gone.py": b""}
    )
    overlay = {f"{SITE}/alpha/more.py": b"B = 'edited'\n", f"{SITE}/alpha/gone.py": None, f"{SITE}/own.pth": b"# own\n"}
    spec = specs.make(tmp_path / "project/repro", {"alpha": wheel}, carry=["alpha"], overlay=overlay)
    return Made(spec, tmp_path / "project/repro", Store.open())


def layer_tars(made: Made, where: Path) -> list[bytes]:
    """Return the tars of an image's layers."""
    tars = [
        gzip.decompress(data) for path in (where / "blobs/sha256").iterdir() if (data := path.read_bytes())[:2] == b"\x1f\x8b"
    ]
    by_diff_id = {f"sha256:{hashlib.sha256(data).hexdigest()}": data for data in tars}
    return [by_diff_id[layer.diff_id] for layer in made.spec.expected.layers]


def rebuild_elsewhere(made: Made, where: Path, to: Path, change: dict[str, bytes | str | None] | None = None) -> Path:
    """Write the same tree as a single layer with other times, owners and modes, as a Dockerfile does."""
    layers = layer_tars(made, where)
    flattened = imagetree.flatten([layerreader.scan([data], where="").nodes for data in layers])
    to.mkdir()
    with tarfile.open(to / "one.tar", "w") as archive:
        for entry in flattened.entries():
            info = tarfile.TarInfo("./" + entry.path)
            info.mtime, info.uid, info.gid, info.mode = 1_700_000_000, 1000, 1000, 0o775 if entry.executable else 0o640
            data = b""
            if entry.kind == "file":
                placed = flattened.placed[entry.path]
                data = layers[placed.layer][placed.node.offset : placed.node.offset + entry.size]
                info.size = len(data)
            else:
                info.type = tarfile.DIRTYPE if entry.kind == "dir" else tarfile.SYMTYPE
                info.linkname = entry.target
            archive.addfile(info, io.BytesIO(data))
    upper = [b"".join(tar.write(images.files(change)))] if change else []
    return layout(layered([(to / "one.tar").read_bytes(), *upper], {LABEL: made.spec.digest}), to / "oci")


def test_the_image_of_the_spec_is_good(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci")
    found = made.verify(where)  # the image's label names the nearest spec
    assert found.spec == str(made.directory)
    (report,) = found.reports
    assert report.good
    assert report.image_id == made.spec.expected.image_id
    assert report.spec == made.spec.digest
    assert report.expected is not None
    assert report.expected > report.files
    assert report.mismatches == ()


def test_the_image_with_its_source_is_good(made: Made, tmp_path: Path) -> None:
    assert made.verify(made.send(tmp_path / "oci", source=True)).good


@pytest.mark.parametrize("source", [False, True])
def test_the_image_with_another_user_is_good(made: Made, tmp_path: Path, source: bool) -> None:
    """`rebuild --user` sets the user; the spec has all other settings."""
    with closing(Oci(tmp_path / "oci", "latest", made.store.boot)) as output:
        OutputBuild(made.spec, made.directory, made.store, output, source=source, user="1000:1000").run(Silent())
    assert made.verify(tmp_path / "oci", str(made.directory)).good


def test_the_code_in_an_image_of_another_builder_is_compared(made: Made, tmp_path: Path) -> None:
    """An image from the Dockerfile has the code in its working directory."""
    first = made.send(tmp_path / "oci")
    for text, good in ((b"print('trained')\n", True), (b"print('other')\n", False)):
        where = rebuild_elsewhere(made, first, tmp_path / f"built-{good}", {"home/ann/project/train.py": text})
        assert not made.verify(where, str(made.directory)).good
        swap_config(where, lambda config: config["config"].update(WorkingDir="/home/ann/project"))
        assert made.verify(where, str(made.directory)).good is good


@pytest.mark.parametrize("setting", ["Cmd", "Env", "Entrypoint", "WorkingDir"])
@pytest.mark.parametrize("source", [False, True])
def test_another_setting_is_a_mismatch(made: Made, tmp_path: Path, setting: str, source: bool) -> None:
    where = made.send(tmp_path / "oci", source=source)
    swap_config(where, lambda config: config["config"].update({setting: "/x" if setting == "WorkingDir" else ["X=1"]}))
    (report,) = made.verify(where, str(made.directory)).reports
    assert "the config has the image ID" in "; ".join(f"{row.what} {row.why}" for row in report.mismatches)


def swap_config(where: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the config of a layout's image, and correct every digest."""
    index = json.loads((where / "index.json").read_bytes())
    manifest = json.loads((where / "blobs/sha256" / index["manifests"][0]["digest"][7:]).read_bytes())
    config = json.loads((where / "blobs/sha256" / manifest["config"]["digest"][7:]).read_bytes())
    change(config)
    for holder, value in ((manifest["config"], config), (index["manifests"][0], manifest)):
        data = codec.canonical(value)
        holder.update(digest="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data))
        (where / "blobs/sha256" / holder["digest"][7:]).write_bytes(data)
    (where / "index.json").write_bytes(codec.canonical(index))


def test_another_last_layer_is_not_the_source(made: Made, tmp_path: Path) -> None:
    made.send(tmp_path / "oci")
    blobs = {
        layerreader.scan([data], where="").diff_id: data
        for path in (tmp_path / "oci/blobs/sha256").iterdir()
        if (data := path.read_bytes())[:2] == b"\x1f\x8b"
    }
    own = [blobs[layer.diff_id] for layer in made.spec.expected.layers]
    found = made.verify(layout(layered([*own, images.base({"etc/evil": b"evil"})]), tmp_path / "more"), str(made.directory))
    assert not found.good
    assert "neither one of the spec's layers nor its source" in found.reports[0].mismatches[-1].why


def test_an_image_of_another_builder_with_the_same_files_is_good(made: Made, tmp_path: Path) -> None:
    found = made.verify(rebuild_elsewhere(made, made.send(tmp_path / "oci"), tmp_path / "other"))
    (report,) = found.reports
    assert report.good, report.mismatches
    assert report.image_id != made.spec.expected.image_id
    assert report.expected is not None
    assert report.expected > report.files


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({f"{SITE}/alpha/__init__.py": b"A = 2\n"}, "/alpha/__init__.py"),
        ({f"{SITE}/alpha/__init__.py": None}, "/alpha/__init__.py"),
        ({"etc/os-release": b"NAME=other\n"}, "/etc/os-release"),
        ({"usr/bin/more": b"#!more"}, "/usr/bin/more"),
        ({"usr/bin/env": "/bin/env"}, "/usr/bin/env"),
    ],
)
def test_an_image_of_another_builder_with_other_files_has_mismatches(
    made: Made, tmp_path: Path, change: dict[str, bytes | str | None], path: str
) -> None:
    found = made.verify(rebuild_elsewhere(made, made.send(tmp_path / "oci"), tmp_path / "other", change))
    assert not found.good
    assert any(mismatch.part == "spec" and mismatch.what.endswith(path) for mismatch in found.reports[0].mismatches)


def test_an_image_is_not_good_if_the_spec_cannot_be_read(made: Made, tmp_path: Path) -> None:
    where = rebuild_elsewhere(made, made.send(tmp_path / "oci"), tmp_path / "other")
    (made.directory / "blobs" / f"{made.spec.identity.base.sha256[7:]}.gz").unlink()
    found = verify_image(str(where), str(made.directory), tmp_path, store=Store.open(tmp_path / "empty"), tell=Silent())
    assert not found.good
    assert found.reports[0].not_compared[-1].what == "the spec"


def test_another_spec_is_a_mismatch(made: Made, tmp_path: Path) -> None:
    other = specs.make(tmp_path / "second", {"beta": wheels.make(tmp_path / "wheels", "beta")}, carry=["beta"])
    assert other.digest != made.spec.digest
    found = made.verify(made.send(tmp_path / "oci"), str(tmp_path / "second"))
    assert not found.good
    assert any("names the spec" in mismatch.why for mismatch in found.reports[0].mismatches)
