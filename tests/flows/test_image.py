"""`image verify`: what is as it says passes, and every single thing that is not is named."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from repro_env.flows.image import verify_image
from repro_env.model.errors import ArtifactError, UsageError
from repro_env.model.talk import Silent
from repro_env.store.store import Store
from repro_env.verify.image import Report
from tests.fakes import images
from tests.fakes.images import SITE, Layered, base, layered, layout, saved


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Layered:
    return images.sample(tmp_path_factory.mktemp("sample"))


def reports(where: Path) -> tuple[Report, ...]:
    return verify_image(str(where), None, where.parent, store=Store.open(), tell=Silent()).reports


def report(where: Path) -> Report:
    (found,) = reports(where)
    return found


def told(found: Report) -> str:
    return "\n".join(f"{one.part} {one.what} {one.of} {one.why}" for one in found.mismatches)


def test_a_layout_is_as_it_says(sample: Layered, tmp_path: Path) -> None:
    found = report(layout(sample, tmp_path / "oci"))
    assert told(found) == ""
    assert found.good
    assert found.image_id == sample.image_id
    assert found.manifest == sample.image.manifest_blob.digest
    assert (found.layers, found.distributions) == (4, 1)
    assert found.bytes == sum(len(gzip.decompress(data)) for data in sample.layers)
    assert found.not_compared == ()


def test_archives_of_both_kinds_are_as_they_say(sample: Layered, tmp_path: Path) -> None:
    assert report(saved(sample, tmp_path / "saved.tar")).image_id == sample.image_id
    with tarfile.open(tmp_path / "oci.tar", "w") as archive:
        archive.add(layout(sample, tmp_path / "oci"), ".")
    for path in (tmp_path / "saved.tar", tmp_path / "oci.tar"):
        found = report(path)
        assert found.good, told(found)
        assert found.image_id == sample.image_id


def test_zstd_and_plain_layers_of_others(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    first, second = (gzip.decompress(data) for data in sample.layers[:2])
    swap(folder, name_of(sample.layers[0]), zstandard.ZstdCompressor().compress(first), media_type="+zstd")
    swap(folder, name_of(sample.layers[1]), second, media_type="")
    assert told(report(folder)) == ""


def swap(folder: Path, name: str, data: bytes, *, media_type: str | None = None) -> None:
    """Put other bytes in a blob's place, and say so in the manifest and the index."""
    (folder / name).unlink()
    digest = hashlib.sha256(data).hexdigest()
    (folder / f"blobs/sha256/{digest}").write_bytes(data)
    index = json.loads((folder / "index.json").read_text())
    entry = index["manifests"][0]
    path = folder / "blobs/sha256" / entry["digest"][7:]
    manifest = json.loads(path.read_text())
    for one in [manifest["config"], *manifest["layers"]]:
        if one["digest"][7:] == name[-64:]:
            one |= {"digest": f"sha256:{digest}", "size": len(data)}
            if media_type is not None:
                one["mediaType"] = one["mediaType"].removesuffix("+gzip") + media_type
    text = json.dumps(manifest).encode()
    path.unlink()
    entry |= {"digest": "sha256:" + hashlib.sha256(text).hexdigest(), "size": len(text)}
    (folder / "blobs/sha256" / entry["digest"][7:]).write_bytes(text)
    (folder / "index.json").write_text(json.dumps(index))


def name_of(data: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_a_layer_is_named(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    flip(folder / name_of(sample.layers[1]))
    found = report(folder)
    assert not found.good
    assert "layer 2" in told(found)
    assert "its bytes are not the ones that its digest names" in told(found)


def test_a_missing_blob_is_named(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    (folder / name_of(sample.layers[2])).unlink()
    found = report(folder)
    assert "layer 3" in told(found)
    assert not found.good
    assert found.layers == 3


def test_a_cut_layer_is_named(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    path = folder / name_of(sample.layers[0])
    path.write_bytes(path.read_bytes()[:-20])
    assert "cut short" in told(report(folder))


def test_another_layer_under_a_right_digest_is_named(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    swap(folder, name_of(sample.layers[0]), gzip.compress(base({"etc/evil": b"evil"})))
    found = report(folder)
    assert "its diff ID is" in told(found)
    assert not found.good


def test_a_config_of_another_image_is_named(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    swap(folder, name_of(sample.config), images.config(["sha256:" + "0" * 64]))
    assert "names 1 layers, and the image has 4" in told(report(folder))


def test_a_config_that_is_none_is_named(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    swap(folder, name_of(sample.config), b"[]")
    assert "config" in told(report(folder))


def test_a_config_that_is_not_there_is_named(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    (folder / name_of(sample.config)).unlink()
    found = report(folder)
    assert found.image_id == ""
    assert not found.good
    assert f"config {sample.image_id}  cannot be read: is not there" in told(found)


def test_one_of_several_images_by_its_tag(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci", name="one")
    other = layout(layered([base({"etc/x": b"x"})]), tmp_path / "other", name="two")
    rows = [row for where in (folder, other) for row in json.loads((where / "index.json").read_text())["manifests"]]
    for path in (other / "blobs/sha256").iterdir():
        path.rename(folder / "blobs/sha256" / path.name)
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": rows}))
    assert [one.name for one in reports(folder)] == ["one", "two"]
    found = verify_image(f"oci:{folder}:two", None, tmp_path, store=Store.open(), tell=Silent())
    assert [(one.name, one.layers) for one in found.reports] == [("two", 1)]
    assert found.good
    assert not verify_image(f"oci:{folder}:three", None, tmp_path, store=Store.open(), tell=Silent()).good


def test_a_wrong_size_is_named(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0]["size"] += 1
    (folder / "index.json").write_text(json.dumps(index))
    assert "bytes, and" in told(report(folder))


def test_a_layer_called_gzip_that_is_none(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    swap(folder, name_of(sample.layers[3]), gzip.decompress(sample.layers[3]))
    assert "is not compressed" in told(report(folder))


def test_a_tampered_archive_is_named(sample: Layered, tmp_path: Path) -> None:
    other = layered([*sample.layers[:3], base({".repro-env/image.json": b"{ }"})])
    mixed = Layered(other.layers, sample.config)
    found = report(saved(mixed, tmp_path / "saved.tar"))
    assert "its diff ID is" in told(found)
    assert not found.good


def test_an_archive_that_shows_docker_another_image(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    other = layered([base({"etc/evil": b"evil"})])
    for data in (*other.layers, other.config):
        (folder / name_of(data)).write_bytes(data)
    rows = [{"Config": name_of(other.config), "Layers": [name_of(data) for data in other.layers]}]
    (folder / "manifest.json").write_text(json.dumps(rows))
    one, two = reports(folder)
    assert one.good
    assert "tools find different ones" in told(two)
    assert not two.good


def test_an_archive_that_shows_both_the_same(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    rows = [{"Config": name_of(sample.config), "Layers": [name_of(data) for data in sample.layers]}]
    (folder / "manifest.json").write_text(json.dumps(rows))
    assert report(folder).good
    rows[0]["Layers"] = [name_of(data) for data in reversed(sample.layers)]
    (folder / "manifest.json").write_text(json.dumps(rows))
    assert "names other layers" in told(report(folder))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({f"{SITE}/odd/__init__.py": b"NAME = 'evil'"}, "/odd/__init__.py odd-1.0 has other bytes"),
        ({f"{SITE}/odd/__init__.py": None}, "/odd/__init__.py odd-1.0 is listed and not there"),
        ({f"{SITE}/odd": None}, "/odd/stored.bin odd-1.0 is listed and not there"),
        ({f"{SITE}/odd/stray.py": b"stray"}, "/odd/stray.py  is in no RECORD"),
        ({f"{SITE}/evil.pth": b"import evil"}, "/evil.pth  is in no RECORD"),
        ({f"{SITE}/odd/__init__.py": "/etc/passwd"}, "/odd/__init__.py odd-1.0 is listed and not there"),
        ({f"{SITE}/odd-1.0.dist-info/RECORD": b'a,"b'}, "RECORD cannot be read"),
    ],
)
def test_files_that_record_does_not_know_so(
    sample: Layered, tmp_path: Path, change: dict[str, bytes | str | None], said: str
) -> None:
    made = layered([*sample.layers, base(change)])
    found = report(layout(made, tmp_path / "oci"))
    assert said in told(found)
    assert not found.good
    assert {one.part for one in found.mismatches} == {"record"}


def test_bytecode_that_is_there_or_not_is_no_mismatch(sample: Layered, tmp_path: Path) -> None:
    made = layered([*sample.layers, base({f"{SITE}/odd/__pycache__/x.cpython-311.pyc": b"pyc"})])
    assert report(layout(made, tmp_path / "oci")).good


def test_files_behind_links_are_found(sample: Layered, tmp_path: Path) -> None:
    """As with lib64 -> lib, and merged /usr."""
    made = layered([*sample.layers, base({f"{SITE}/odd": None}), base({f"{SITE}/odd": "../../../../moved"}), moved(sample)])
    found = report(layout(made, tmp_path / "oci"))
    assert told(found) == ""


def moved(sample: Layered) -> bytes:
    del sample
    start = "odd/"
    return base(
        {f"opt/moved/{name.removeprefix(start)}": data for name, data in images.MEMBERS.items() if name.startswith(start)}
    )


def test_distributions_without_record_and_those_of_debian_are_not_compared(sample: Layered, tmp_path: Path) -> None:
    """Debian strips libraries, moves scripts, and writes hashes in hex, all after RECORD was made."""
    debian, local = "usr/lib/python3/dist-packages", "usr/local/lib/python3.11/dist-packages"
    files = {
        f"{debian}/PyYAML-6.0.dist-info/METADATA": b"x",
        f"{debian}/PyYAML-6.0.dist-info/RECORD": b"yaml/_yaml.so,sha256=AAAA,3\n../scripts/pip,,\nyaml/x.py,sha256=d79a17,1\n",
        f"{debian}/yaml/_yaml.so": b"x",
        f"{debian}/apt-1.egg-info": b"x",
        f"{debian}/apt.py": b"x",
        f"{local}/own-1.dist-info/METADATA": b"x",
    }
    found = report(layout(layered([*sample.layers, base(files)]), tmp_path / "oci"))
    assert [(one.what, one.why) for one in found.not_compared] == [
        (f"/{local}/own-1.dist-info", "a distribution without RECORD"),
        (f"/{debian}", "2 distributions of Debian's packages, which differ from the wheels that their RECORD describes"),
    ]
    assert told(found) == ""
    assert found.good


def test_hostile_members_are_named(tmp_path: Path) -> None:
    import io

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../etc/cron.d/evil"))
    found = report(layout(layered([out.getvalue()]), tmp_path / "oci"))
    assert "none inside it" in told(found)


def test_an_index_without_an_image_for_this_machine_is_not_good(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0]["platform"] = {"os": "linux", "architecture": "s390x"}
    (folder / "index.json").write_text(json.dumps(index))
    found = verify_image(str(folder), None, tmp_path, store=Store.open(), tell=Silent())
    assert not found.good
    assert "s390x" in found.others[0].what


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda path: path.mkdir(), ArtifactError, "neither"),
        (lambda path: path.write_bytes(b"x" * 2000), ArtifactError, "no tar"),
        (lambda path: path.write_bytes(gzip.compress(b"tar")), UsageError, "compressed"),
        (lambda path: None, UsageError, "not there"),
    ],
)
def test_what_holds_no_image(tmp_path: Path, make: Callable[[Path], object], kind: type[Exception], said: str) -> None:
    make(tmp_path / "there")
    with pytest.raises(kind, match=said):
        verify_image(str(tmp_path / "there"), None, tmp_path, store=Store.open(), tell=Silent())


def test_an_index_of_itself_ends(sample: Layered, tmp_path: Path) -> None:
    folder = layout(sample, tmp_path / "oci")
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"9"}')
    with pytest.raises(ArtifactError, match=r"1\.0\.0"):
        report(folder)
