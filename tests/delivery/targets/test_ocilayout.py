"""An image layout: complete or missing, extended with images, and hashed before use."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.delivery.targets.ocilayout import NAME, Oci
from repro_env.oci.manifest import Image
from repro_env.schema.errors import ArtifactError, UsageError
from tests.delivery.targets.conftest import image, layer, listing, packed


def write(to: Path, *texts: bytes, tag: str = "") -> Image:
    output = Oci(to, tag)
    made = image(output, *texts)
    output.finish(made)
    output.close()
    return made


def names(layout: Path) -> dict[str, str]:
    """Return tag -> manifest digest from the index."""
    index = json.loads((layout / "index.json").read_bytes())
    return {manifest.get("annotations", {}).get(NAME, ""): manifest["digest"] for manifest in index["manifests"]}


def blobs(layout: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in (layout / "blobs/sha256").iterdir()}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in found.items())
    return found


def test_a_new_layout_is_created(tmp_path: Path) -> None:
    made = write(tmp_path / "deep/er", b"one", b"two", tag="v1")
    layout = tmp_path / "deep/er"
    assert names(layout) == {"v1": made.manifest_blob.digest}
    assert len(blobs(layout)) == 4
    assert listing(layout) == ["blobs", "index.json", "oci-layout"]
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}


def test_an_image_is_added_and_other_images_are_kept(tmp_path: Path) -> None:
    first = write(tmp_path / "out", b"one", tag="v1")
    index = json.loads((tmp_path / "out/index.json").read_bytes())
    index["annotations"] = {"org.example": "theirs"}
    index["manifests"][0]["platform"] = {"architecture": "amd64", "os": "linux"}
    (tmp_path / "out/index.json").write_text(json.dumps(index))
    second = write(tmp_path / "out", b"one", b"more", tag="v2")
    untagged = write(tmp_path / "out", b"third")
    assert names(tmp_path / "out") == {
        "v1": first.manifest_blob.digest,
        "v2": second.manifest_blob.digest,
        "": untagged.manifest_blob.digest,
    }
    later = json.loads((tmp_path / "out/index.json").read_bytes())
    assert later["annotations"] == {"org.example": "theirs"}
    assert [manifest.get("platform") for manifest in later["manifests"]] == [None, {"architecture": "amd64", "os": "linux"}, None]


def test_a_tag_moves_to_the_newest_image(tmp_path: Path) -> None:
    for tag in ("v1", ""):
        write(tmp_path / "out", b"old", tag=tag)
        made = write(tmp_path / "out", b"new", tag=tag)
        assert names(tmp_path / "out")[tag] == made.manifest_blob.digest


def test_sending_the_same_image_again_writes_no_blob(tmp_path: Path) -> None:
    write(tmp_path / "out", b"one", tag="v1")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/blobs/sha256").iterdir()}
    write(tmp_path / "out", b"one", tag="v1")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out/blobs/sha256").iterdir()} == before


@pytest.mark.parametrize("how", ["other bytes", "cut short", "other bytes, old time", "a link"])
def test_a_damaged_blob_is_replaced(tmp_path: Path, how: str) -> None:
    made = write(tmp_path / "out", b"one" * 1000, b"two")
    path = tmp_path / "out/blobs/sha256" / made.layers[0].digest.removeprefix("sha256:")
    facts, data = path.stat(), path.read_bytes()
    if how == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(data[:-1] if how == "cut short" else bytes([data[0] ^ 1]) + data[1:])
    if how.endswith("old time"):
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    output = Oci(tmp_path / "out", "")
    assert [output.has(packed(layer(text))) for text in (b"one" * 1000, b"two")] == [False, True]
    assert write(tmp_path / "out", b"one" * 1000, b"two") == made
    assert not path.is_symlink()
    blobs(tmp_path / "out")


def test_a_layer_that_cannot_be_read_is_not_stored(tmp_path: Path) -> None:
    output = Oci(tmp_path / "out", "")

    def failing() -> Iterator[bytes]:
        yield b"half"
        raise KeyError("whatever")

    with pytest.raises(KeyError):
        output.take(failing)
    output.close()
    assert blobs(tmp_path / "out") == {}
    assert not list((tmp_path / "out").glob("blobs/.temp-*"))


@pytest.mark.parametrize("what", ["a file", "other files", "another version", "a link"])
def test_a_directory_that_is_not_a_layout_is_refused(tmp_path: Path, what: str) -> None:
    to = tmp_path / "out"
    if what == "a file":
        to.write_text("mine")
    else:
        to.mkdir()
        (to / "mine").write_text("mine")
        if what == "another version":
            (to / "oci-layout").write_text('{"imageLayoutVersion":"2.0.0"}')
        if what == "a link":
            (to / "oci-layout").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError):
        write(to, b"one")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_that_cannot_be_written_is_named() -> None:
    with pytest.raises(UsageError, match="cannot be written") as failed:
        write(Path("/proc/nowhere/out"), b"one")
    assert failed.value.where == "/proc/nowhere/out"


@pytest.mark.parametrize("text", ["{", "[]", '{"manifests":1,"schemaVersion":2}', '{"manifests":[1],"schemaVersion":2}'])
def test_an_invalid_index_is_not_overwritten(tmp_path: Path, text: str) -> None:
    write(tmp_path / "out", b"one")
    (tmp_path / "out/index.json").write_text(text)
    with pytest.raises(ArtifactError, match="not the index"):
        write(tmp_path / "out", b"two")
    assert (tmp_path / "out/index.json").read_text() == text


PARALLEL = """
import sys
from pathlib import Path
from repro_env.delivery.targets.ocilayout import Oci
from tests.delivery.targets.conftest import image
for number in range(3):
    tag = f"{sys.argv[2]}-{number}"
    output = Oci(Path(sys.argv[1]), tag)
    output.finish(image(output, b"shared" * 1000, tag.encode()))
    output.close()
"""


def test_several_processes_add_images_at_the_same_time(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    running = [
        subprocess.Popen([sys.executable, "-c", PARALLEL, str(tmp_path / "out"), name], cwd=root, stderr=subprocess.PIPE)
        for name in ("a", "b", "c")
    ]
    for process in running:
        assert process.communicate()[1] == b""
        assert process.returncode == 0
    assert set(names(tmp_path / "out")) == {f"{name}-{number}" for name in "abc" for number in range(3)}
    assert len(blobs(tmp_path / "out")) == 1 + 9 * 3
    assert listing(tmp_path / "out") == ["blobs", "index.json", "oci-layout"]


def test_files_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom repro_env.delivery.targets.ocilayout import Oci\n"
        "def chunks():\n    yield b'half'\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Oci(Path(sys.argv[1]), '').take(chunks)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, tmp_path / "out"], cwd=Path(__file__).parents[3], check=False)
    assert killed.returncode == -9
    assert list((tmp_path / "out").glob("blobs/.temp-*"))
    write(tmp_path / "out", b"one")
    assert listing(tmp_path / "out") == ["blobs", "index.json", "oci-layout"]
