"""`image verify` accepts the image of the spec, and names every mismatch of a damaged or different one."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from repro_env.api.image import Verified, verify_image
from repro_env.compare.image import Report
from repro_env.delivery.builder.sinks import send
from repro_env.delivery.targets.ocilayout import Oci
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, UsageError
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.images import SITE, Layered, base, layered, layout, saved


class Made(msgspec.Struct, frozen=True):
    spec: Spec
    directory: Path
    store: Store

    def verify(self, where: Path | str, given: str | None = None) -> Verified:
        return verify_image(str(where), given, self.directory.parent, store=self.store, tell=Silent())

    def report(self, where: Path | str) -> Report:
        (report,) = self.verify(where).reports
        return report

    def send(self, to: Path, *, source: bool = False, user: str = "") -> Path:
        with closing(Oci(to, "latest")) as output:
            send(self.spec, self.directory, self.store, output, source=source, user=user, tell=Silent())
        return to

    def layered(self, to: Path, *, source: bool = False) -> Layered:
        """Return the image of the spec in memory."""
        self.send(to, source=source)
        manifest = read_json(to, index_of(to)["manifests"][0]["digest"])
        blobs = [(to / name_of(layer["digest"])).read_bytes() for layer in manifest["layers"]]
        return Layered(tuple(blobs), (to / name_of(manifest["config"]["digest"])).read_bytes())


@pytest.fixture
def made(tmp_path: Path) -> Made:
    wheel = wheels.make(tmp_path / "wheels", "alpha", files={"alpha/__init__.py": b"A = 1\n" * 90, "alpha/more.py": b"B = 2\n"})
    overlay = {f"{SITE}/alpha/more.py": b"B = 'edited'\n", f"{SITE}/own.pth": b"# own\n"}
    spec = specs.make(tmp_path / "project/repro", {"alpha": wheel}, carry=["alpha"], overlay=overlay)
    return Made(spec, tmp_path / "project/repro", Store.open())


def name_of(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def index_of(where: Path) -> Any:
    return json.loads((where / "index.json").read_bytes())


def read_json(where: Path, digest: str) -> Any:
    return json.loads((where / name_of(digest)).read_bytes())


def change(where: Path, edit: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change the manifest and the config of a layout's image, and correct every digest."""
    index = index_of(where)
    manifest = read_json(where, index["manifests"][0]["digest"])
    config = read_json(where, manifest["config"]["digest"])
    edit(manifest, config)
    for holder, value in ((manifest["config"], config), (index["manifests"][0], manifest)):
        data = codec.canonical(value)
        holder.update(digest="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data))
        (where / name_of(holder["digest"])).write_bytes(data)
    (where / "index.json").write_bytes(codec.canonical(index))


def replace_layer(where: Path, number: int, data: bytes) -> None:
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    (where / name_of(digest)).write_bytes(data)
    change(where, lambda manifest, _: manifest["layers"][number].update(digest=digest, size=len(data)))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def text_of(report: Report) -> str:
    return "\n".join(f"{mismatch.what} {mismatch.why}" for mismatch in report.mismatches)


@pytest.mark.parametrize("user", ["", "1000:1000"])
@pytest.mark.parametrize("source", [False, True])
def test_the_image_of_the_spec_is_good(made: Made, tmp_path: Path, source: bool, user: str) -> None:
    found = made.verify(made.send(tmp_path / "oci", source=source, user=user))  # the image's label names the nearest spec
    assert found.good
    assert found.spec == str(made.directory)
    (report,) = found.reports
    assert (report.image_id == made.spec.expected.image_id) == (not source and not user)
    assert report.spec == made.spec.digest
    assert report.layers == len(made.spec.expected.layers) + source


def test_archives_of_both_kinds_are_good(made: Made, tmp_path: Path) -> None:
    image = made.layered(tmp_path / "oci")
    saved(image, tmp_path / "saved.tar")
    with tarfile.open(tmp_path / "oci.tar", "w") as archive:
        archive.add(tmp_path / "oci", ".")
    for path in (tmp_path / "saved.tar", tmp_path / "oci.tar"):
        report = made.report(path)
        assert report.good, text_of(report)
        assert report.image_id == made.spec.expected.image_id


def test_an_image_is_not_good_without_a_spec(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci")
    (made.directory / "spec.json").unlink()
    report = made.report(where)
    assert (report.compared, report.mismatches, report.good) == (False, (), False)


def test_uncompressed_layers_are_read_and_zstd_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    image = made.layered(tmp_path / "oci")
    plain = [gzip.decompress(data) for data in image.layers]
    replace_layer(tmp_path / "oci", 1, plain[1])
    assert made.report(tmp_path / "oci").mismatches == ()
    replace_layer(tmp_path / "oci", 1, zstandard.ZstdCompressor().compress(plain[1]))
    assert "compressed with zstd" in text_of(made.report(tmp_path / "oci"))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip, "layer 2"),
        (lambda path: path.unlink(), "layer 2 the file cannot be read: it is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "layer 2 the layer is truncated"),
        (lambda path: path.write_bytes(gzip.compress(base({"etc/evil": b""}))), "its stated digest is"),
    ],
)
def test_a_damaged_layer_is_a_mismatch(made: Made, tmp_path: Path, damage: Callable[[Path], object], text: str) -> None:
    where = made.send(tmp_path / "oci")
    damage(where / name_of(read_json(where, index_of(where)["manifests"][0]["digest"])["layers"][1]["digest"]))
    report = made.report(where)
    assert text in text_of(report)
    assert not report.good


def test_a_layer_with_another_diff_id_than_in_the_config_is_a_mismatch(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci")
    replace_layer(where, 0, gzip.compress(base({"etc/evil": b"evil"})))
    assert "its diff ID is" in text_of(made.report(where))


def test_another_layer_with_a_config_that_names_it_is_a_mismatch(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci")
    data = base({"etc/evil": b"evil"})
    replace_layer(where, 0, gzip.compress(data))
    diff_id = "sha256:" + hashlib.sha256(data).hexdigest()
    change(where, lambda _, config: config["rootfs"]["diff_ids"].__setitem__(0, diff_id))
    text = text_of(made.report(where))
    assert f"layer 1 is {diff_id}, but the spec expects {made.spec.expected.layers[0].diff_id} (base)" in text


@pytest.mark.parametrize("count", [1, 4])
def test_a_config_with_another_number_of_layers_is_a_mismatch(made: Made, tmp_path: Path, count: int) -> None:
    where = made.send(tmp_path / "oci")
    change(where, lambda _, config: config["rootfs"].update(diff_ids=config["rootfs"]["diff_ids"][:count]))
    text = text_of(made.report(where))
    assert f"names {count} layers, but the image has {len(made.spec.expected.layers)}" in text
    assert "an image that an engine built from the Dockerfile has layers of its own" in text


def test_another_last_layer_is_not_the_source(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci", source=True)
    data = base({"etc/evil": b"evil"})
    replace_layer(where, -1, gzip.compress(data))
    change(where, lambda _, config: config["rootfs"]["diff_ids"].__setitem__(-1, "sha256:" + hashlib.sha256(data).hexdigest()))
    assert "neither one of the spec's layers nor its source" in text_of(made.report(where))


@pytest.mark.parametrize("setting", ["Cmd", "Env", "Entrypoint", "WorkingDir"])
@pytest.mark.parametrize("source", [False, True])
def test_another_setting_is_a_mismatch(made: Made, tmp_path: Path, setting: str, source: bool) -> None:
    where = made.send(tmp_path / "oci", source=source)
    change(where, lambda _, config: config["config"].update({setting: "/x" if setting == "WorkingDir" else ["X=1"]}))
    assert "the config differs from the one that the spec expects" in text_of(made.report(where))


def test_another_spec_is_a_mismatch(made: Made, tmp_path: Path) -> None:
    specs.make(tmp_path / "second", {"beta": wheels.make(tmp_path / "wheels", "beta")}, carry=["beta"])
    (report,) = made.verify(made.send(tmp_path / "oci"), str(tmp_path / "second")).reports
    assert "names the spec" in text_of(report)


def test_a_config_without_the_label_of_repro_env_is_refused(tmp_path: Path, made: Made) -> None:
    foreign = layered([base({"etc/x": b""})], {})
    for where in (layout(foreign, tmp_path / "oci"), saved(foreign, tmp_path / "saved.tar")):
        with pytest.raises(ArtifactError, match="the image was not built by repro-env"):
            made.verify(where)


def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path, made: Made) -> None:
    where = layout(Layered((), b"[]"), tmp_path / "oci")
    with pytest.raises(ArtifactError, match="config of the image is invalid"):
        made.verify(where)
    (where / name_of("sha256:" + hashlib.sha256(b"[]").hexdigest())).unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        made.verify(where)


def test_a_changed_manifest_is_a_mismatch(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci")
    path = where / name_of(index_of(where)["manifests"][0]["digest"])
    path.write_bytes(path.read_bytes() + b" ")
    assert "its stated digest is" in text_of(made.report(where))


def test_a_tag_selects_one_of_several_images(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci")
    other = layout(layered([base({"etc/x": b"x"})]), tmp_path / "other", name="two")
    for path in (other / "blobs/sha256").iterdir():
        path.rename(where / "blobs/sha256" / path.name)
    rows = [*index_of(where)["manifests"], *index_of(other)["manifests"]]
    (where / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": rows}))
    assert [report.name for report in made.verify(where).reports] == ["latest", "two"]
    assert not made.verify(where).good
    assert made.verify(f"oci:{where}:latest").good
    with pytest.raises(UsageError, match="no image has the tag three"):
        made.verify(f"oci:{where}:three")


def test_what_docker_would_load_from_an_archive_is_verified_too(made: Made, tmp_path: Path) -> None:
    image = made.layered(tmp_path / "oci")
    names = [name_of(layer.digest) for layer in image.image.layers]
    for layers, count, good in ((names, 1, True), (names[::-1], 2, False), (names[:-1], 2, False)):
        row = {"Config": name_of(image.image_id), "Layers": layers}
        (tmp_path / "oci/manifest.json").write_text(json.dumps([row]))
        found = made.verify(tmp_path / "oci")
        assert (len(found.reports), found.good) == (count, good)


def test_an_index_without_an_image_for_this_machine_is_refused(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci")
    index = index_of(where)
    index["manifests"][0]["platform"] = {"os": "linux", "architecture": "s390x"}
    (where / "index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match="there is no image for linux/"):
        made.verify(where)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda path: path.mkdir(), ArtifactError, "there is no image"),
        (lambda path: path.write_bytes(b"x" * 2000), ArtifactError, "not a tar"),
        (lambda path: path.write_bytes(gzip.compress(b"tar")), ArtifactError, "not a tar"),
        (lambda path: None, UsageError, "does not exist"),
    ],
)
def test_a_path_without_an_image_is_refused(
    made: Made, tmp_path: Path, make: Callable[[Path], object], kind: type[Exception], text: str
) -> None:
    make(tmp_path / "there")
    with pytest.raises(kind, match=text):
        made.verify(tmp_path / "there")


def test_another_version_of_the_layout_is_refused(made: Made, tmp_path: Path) -> None:
    where = made.send(tmp_path / "oci")
    (where / "oci-layout").write_text('{"imageLayoutVersion":"9"}')
    with pytest.raises(ArtifactError, match=r"1\.0\.0"):
        made.verify(where)
