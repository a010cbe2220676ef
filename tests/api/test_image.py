"""`image verify` accepts an intact image, and names every mismatch of a damaged one."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from repro_env.api.image import verify_image
from repro_env.compare.image import Report
from repro_env.schema.errors import ArtifactError, UsageError
from repro_env.schema.progress import Silent
from repro_env.store.store import Store
from tests.fakes import images
from tests.fakes.images import Layered, base, layered, layout, saved


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Layered:
    return images.sample(tmp_path_factory.mktemp("sample"))


def reports(where: Path) -> tuple[Report, ...]:
    return verify_image(str(where), None, where.parent, store=Store.open(), tell=Silent()).reports


def report(where: Path) -> Report:
    (found,) = reports(where)
    return found


def is_intact(found: Report) -> bool:
    """Whether only the comparison with the spec is missing, which these tests do not have."""
    return found.mismatches == () and [row.what for row in found.not_compared] == ["the spec"]


def mismatches(found: Report) -> str:
    return "\n".join(f"{row.part} {row.what} {row.why}" for row in found.mismatches)


def test_an_intact_layout_has_no_mismatches(sample: Layered, tmp_path: Path) -> None:
    found = report(layout(sample, tmp_path / "oci"))
    assert is_intact(found)
    assert not found.good
    assert found.image_id == sample.image_id
    assert found.manifest == sample.image.manifest_blob.digest
    assert found.layers == 4
    assert found.bytes == sum(len(gzip.decompress(data)) for data in sample.layers)


def test_intact_archives_of_both_kinds_have_no_mismatches(sample: Layered, tmp_path: Path) -> None:
    assert report(saved(sample, tmp_path / "saved.tar")).image_id == sample.image_id
    with tarfile.open(tmp_path / "oci.tar", "w") as archive:
        archive.add(layout(sample, tmp_path / "oci"), ".")
    for path in (tmp_path / "saved.tar", tmp_path / "oci.tar"):
        found = report(path)
        assert is_intact(found), mismatches(found)
        assert found.image_id == sample.image_id


def test_an_image_without_the_label_of_repro_env_is_refused(sample: Layered, tmp_path: Path) -> None:
    foreign = layered(sample.layers, {})
    for where in (layout(foreign, tmp_path / "oci"), saved(foreign, tmp_path / "saved.tar")):
        with pytest.raises(ArtifactError, match="the image was not built by repro-env"):
            report(where)


def test_zstd_and_uncompressed_layers_are_read(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    first, second = (gzip.decompress(data) for data in sample.layers[:2])
    replace_blob(directory, name_of(sample.layers[0]), zstandard.ZstdCompressor().compress(first), media_type="+zstd")
    replace_blob(directory, name_of(sample.layers[1]), second, media_type="")
    assert mismatches(report(directory)) == ""


def replace_blob(directory: Path, name: str, data: bytes, *, media_type: str | None = None) -> None:
    """Replace a blob, and update the manifest and the index."""
    (directory / name).unlink()
    digest = hashlib.sha256(data).hexdigest()
    (directory / f"blobs/sha256/{digest}").write_bytes(data)
    index = json.loads((directory / "index.json").read_text())
    entry = index["manifests"][0]
    path = directory / "blobs/sha256" / entry["digest"][7:]
    manifest = json.loads(path.read_text())
    for descriptor in [manifest["config"], *manifest["layers"]]:
        if descriptor["digest"][7:] == name[-64:]:
            descriptor |= {"digest": f"sha256:{digest}", "size": len(data)}
            if media_type is not None:
                descriptor["mediaType"] = descriptor["mediaType"].removesuffix("+gzip") + media_type
    text = json.dumps(manifest).encode()
    path.unlink()
    entry |= {"digest": "sha256:" + hashlib.sha256(text).hexdigest(), "size": len(text)}
    (directory / "blobs/sha256" / entry["digest"][7:]).write_bytes(text)
    (directory / "index.json").write_text(json.dumps(index))


def name_of(data: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_a_layer_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    flip(directory / name_of(sample.layers[1]))
    found = report(directory)
    assert not found.good
    assert "layer 2" in mismatches(found)
    assert f"its stated digest is sha256:{name_of(sample.layers[1])[-64:]}, but its bytes have sha256:" in mismatches(found)


def test_a_missing_blob_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    (directory / name_of(sample.layers[2])).unlink()
    found = report(directory)
    assert "layer 3" in mismatches(found)
    assert not found.good
    assert found.layers == 3


def test_a_truncated_layer_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    path = directory / name_of(sample.layers[0])
    path.write_bytes(path.read_bytes()[:-20])
    assert "truncated" in mismatches(report(directory))


def test_a_layer_with_another_diff_id_than_in_the_config_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    replace_blob(directory, name_of(sample.layers[0]), gzip.compress(base({"etc/evil": b"evil"})))
    found = report(directory)
    assert "its diff ID is" in mismatches(found)
    assert not found.good


def test_a_config_of_another_image_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    replace_blob(directory, name_of(sample.config), images.config(["sha256:" + "0" * 64]))
    assert "names 1 layers, but the image has 4" in mismatches(report(directory))


def test_an_invalid_config_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    replace_blob(directory, name_of(sample.config), b"[]")
    assert "config" in mismatches(report(directory))


def test_a_missing_config_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    (directory / name_of(sample.config)).unlink()
    found = report(directory)
    assert found.image_id == ""
    assert not found.good
    assert f"config {sample.image_id} the file cannot be read: it is missing" in mismatches(found)


def test_a_tag_selects_one_of_several_images(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci", name="one")
    other = layout(layered([base({"etc/x": b"x"})]), tmp_path / "other", name="two")
    rows = [row for where in (directory, other) for row in json.loads((where / "index.json").read_text())["manifests"]]
    for path in (other / "blobs/sha256").iterdir():
        path.rename(directory / "blobs/sha256" / path.name)
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": rows}))
    assert [row.name for row in reports(directory)] == ["one", "two"]
    found = verify_image(f"oci:{directory}:two", None, tmp_path, store=Store.open(), tell=Silent())
    assert [(row.name, row.layers) for row in found.reports] == [("two", 1)]
    assert is_intact(found.reports[0])
    assert not verify_image(f"oci:{directory}:three", None, tmp_path, store=Store.open(), tell=Silent()).good


def test_a_wrong_size_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    index = json.loads((directory / "index.json").read_text())
    index["manifests"][0]["size"] += 1
    (directory / "index.json").write_text(json.dumps(index))
    assert "bytes, but its stated size is" in mismatches(report(directory))


def test_an_uncompressed_layer_with_the_media_type_of_gzip_is_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    replace_blob(directory, name_of(sample.layers[3]), gzip.decompress(sample.layers[3]))
    assert "but is not compressed" in mismatches(report(directory))


def test_a_tampered_archive_has_mismatches(sample: Layered, tmp_path: Path) -> None:
    other = layered([*sample.layers[:3], base({".repro-env/image.json": b"{ }"})])
    mixed = Layered(other.layers, sample.config)
    found = report(saved(mixed, tmp_path / "saved.tar"))
    assert "its diff ID is" in mismatches(found)
    assert not found.good


def test_an_archive_with_another_image_for_docker_has_a_mismatch(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    other = layered([base({"etc/evil": b"evil"})])
    for data in (*other.layers, other.config):
        (directory / name_of(data)).write_bytes(data)
    rows = [{"Config": name_of(other.config), "Layers": [name_of(data) for data in other.layers]}]
    (directory / "manifest.json").write_text(json.dumps(rows))
    oci, docker = reports(directory)
    assert is_intact(oci)
    assert "tools find different images" in mismatches(docker)
    assert not docker.good


def test_an_archive_with_the_same_image_for_docker_has_no_mismatches(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    rows = [{"Config": name_of(sample.config), "Layers": [name_of(data) for data in sample.layers]}]
    (directory / "manifest.json").write_text(json.dumps(rows))
    assert is_intact(report(directory))
    rows[0]["Layers"] = [name_of(data) for data in reversed(sample.layers)]
    (directory / "manifest.json").write_text(json.dumps(rows))
    assert "names other layers" in mismatches(report(directory))


def test_hostile_members_are_mismatches(tmp_path: Path) -> None:
    import io

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../etc/cron.d/evil"))
    found = report(layout(layered([out.getvalue()]), tmp_path / "oci"))
    assert "not a path inside" in mismatches(found)


def test_an_index_without_an_image_for_this_machine_is_not_good(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    index = json.loads((directory / "index.json").read_text())
    index["manifests"][0]["platform"] = {"os": "linux", "architecture": "s390x"}
    (directory / "index.json").write_text(json.dumps(index))
    found = verify_image(str(directory), None, tmp_path, store=Store.open(), tell=Silent())
    assert not found.good
    assert "s390x" in found.others[0].what


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda path: path.mkdir(), ArtifactError, "neither"),
        (lambda path: path.write_bytes(b"x" * 2000), ArtifactError, "not a tar"),
        (lambda path: path.write_bytes(gzip.compress(b"tar")), UsageError, "compressed"),
        (lambda path: None, UsageError, "does not exist"),
    ],
)
def test_a_path_without_an_image_is_refused(
    tmp_path: Path, make: Callable[[Path], object], kind: type[Exception], text: str
) -> None:
    make(tmp_path / "there")
    with pytest.raises(kind, match=text):
        verify_image(str(tmp_path / "there"), None, tmp_path, store=Store.open(), tell=Silent())


def test_another_version_of_the_layout_is_refused(sample: Layered, tmp_path: Path) -> None:
    directory = layout(sample, tmp_path / "oci")
    (directory / "oci-layout").write_text('{"imageLayoutVersion":"9"}')
    with pytest.raises(ArtifactError, match=r"1\.0\.0"):
        report(directory)
