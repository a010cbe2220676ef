"""Every tool that reads images finds in our layers what we put there, by path, kind, mode, bytes; and reports our image ID.

The layers hold what is hard to hold: stored members, zip64 headers, empty files, names over 100 characters, names that
are not ASCII, `.data/` files, symlinks, whiteouts.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import secrets
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from repro_env.delivery.targets.archive import Archive
from repro_env.oci import tar
from repro_env.oci.entry import Entry, merge
from repro_env.registry.reference import parse
from tests.fakes import images
from tests.fakes.images import Layered
from tests.parts import need

Tree = Mapping[str, Entry]
_ROOT = "as uid 0: owners are part of what is compared"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Layered:
    return images.sample(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def oci(sample: Layered, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images.layout(sample, tmp_path_factory.mktemp("layout") / "oci")


@pytest.fixture(scope="module")
def expected(sample: Layered) -> Tree:
    tree = {entry.path: entry for entry in merge(images.entries(data) for data in sample.layers)}
    assert {f"{images.SITE}/odd/{images.LONG}", f"{images.SITE}/odd/grün/日本.txt", "etc/ünï", "etc/link"} <= tree.keys()
    assert not {"etc/old", "gone"} & tree.keys()
    return tree


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    need(found, f"{name}: apt-get install {package}")
    assert found
    return found


def call(*words: str | Path, stdin: bytes = b"") -> bytes:
    done = subprocess.run([str(word) for word in words], input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, (words, done.stderr.decode(errors="replace"))
    return done.stdout


def on_disk(root: Path, *, leave: Iterable[str] = ()) -> Tree:
    """Read a directory that a tool unpacked, and check its modes and owners."""
    found: dict[str, Entry] = {}
    for directory, directories, names in os.walk(root):
        for name in [*directories, *names]:
            path = Path(directory) / name
            inside, facts = path.relative_to(root).as_posix(), path.lstat()
            if any(f"{inside}/".startswith(f"{left}/") for left in leave):
                continue
            assert (facts.st_uid, facts.st_gid) == (0, 0), path
            if path.is_symlink():
                found[inside] = Entry(inside, "link", target=str(path.readlink()))
                continue
            assert facts.st_mode & 0o7777 in ((0o755,) if path.is_dir() else (0o644, 0o755)), path
            if path.is_dir():
                found[inside] = Entry(inside, "dir")
                continue
            assert facts.st_mtime == tar.MTIME, path
            data = path.read_bytes()
            found[inside] = Entry(inside, "file", bool(facts.st_mode & 0o100), len(data), hashlib.sha256(data).hexdigest())
    return found


def layer_of(data: bytes) -> Tree:
    """Read a layer, with whiteouts as the files that are in the tar."""
    found = {}
    for entry in images.entries(data):
        directory, slash, name = entry.path.rpartition("/")
        path = f"{directory}{slash}.wh.{name}"
        placed = entry if entry.kind != "gone" else Entry(path, "file", False, 0, hashlib.sha256(b"").hexdigest())
        found[placed.path] = placed
    return found


def test_gnu_tar_reads_each_layer(sample: Layered, tmp_path: Path) -> None:
    need(os.geteuid() == 0, _ROOT)
    for number, data in enumerate(sample.layers):
        (tmp_path / str(number)).mkdir()
        call(program("tar", "tar"), "-C", tmp_path / str(number), "--same-permissions", "--same-owner", "-xzf", "-", stdin=data)
        assert on_disk(tmp_path / str(number)) == layer_of(data)


def test_umoci_unpacks_the_tree(oci: Path, expected: Tree, tmp_path: Path) -> None:
    umoci = program("umoci", "umoci")
    need(os.geteuid() == 0, _ROOT)
    call(umoci, "raw", "unpack", "--image", f"{oci}:latest", tmp_path / "rootfs")
    assert on_disk(tmp_path / "rootfs") == expected


def test_skopeo_copies_the_image_and_reports_its_id(sample: Layered, oci: Path, tmp_path: Path) -> None:
    skopeo = program("skopeo", "skopeo")
    call(skopeo, "copy", "-q", f"oci:{oci}:latest", f"dir:{tmp_path}/dir")
    manifest = json.loads((tmp_path / "dir/manifest.json").read_bytes())
    assert manifest["config"]["digest"] == sample.image_id
    assert [layer["digest"] for layer in manifest["layers"]] == [layer.digest for layer in sample.image.layers]
    call(skopeo, "copy", "-q", f"oci:{oci}:latest", f"docker-archive:{tmp_path}/saved.tar:test:1")
    with tarfile.open(tmp_path / "saved.tar") as archive:
        listed = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        assert listed[0]["Config"] == f"{sample.image_id[7:]}.json"
        for name, data in zip(listed[0]["Layers"], sample.layers, strict=True):
            content = archive.extractfile(name)  # layers in an archive for Docker are not compressed
            assert content is not None
            assert content.read() == gzip.decompress(data)


def test_podman_mounts_the_tree(sample: Layered, oci: Path, expected: Tree, tmp_path: Path) -> None:
    podman = program("podman", "podman")
    need(os.geteuid() == 0, _ROOT)
    run = Path(tempfile.mkdtemp(prefix="run-"))  # Podman allows at most 50 characters
    own = (podman, "--root", tmp_path / "root", "--runroot", run, "--storage-driver", "vfs", "--events-backend", "none")
    image = call(*own, "pull", "-q", f"oci:{oci}").decode().split()[-1]
    try:
        assert f"sha256:{image}" == sample.image_id
        assert on_disk(Path(call(*own, "image", "mount", image).decode().strip())) == expected
    finally:
        subprocess.run([str(word) for word in (*own, "image", "umount", image)], capture_output=True, check=False)
        shutil.rmtree(run)


def test_docker_loads_it_and_shows_the_tree(sample: Layered, expected: Tree, tmp_path: Path) -> None:
    docker = program("docker", "docker.io")
    need(subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0, "a Docker engine that answers")
    name = f"repro-env-test-{secrets.token_hex(4)}"
    output = Archive(tmp_path / "image.tar", parse(f"{name}:1"))
    for data in sample.layers:
        output.take([data].__iter__)
    output.finish(sample.image)
    output.close()
    call(docker, "load", "-q", "-i", tmp_path / "image.tar")
    try:
        assert call(docker, "image", "inspect", "--format", "{{.Id}}", f"{name}:1").decode().strip() == sample.image_id
        container = call(docker, "create", "--name", name, f"{name}:1", "never").decode().strip()
        try:
            call(docker, "cp", f"{container}:/", tmp_path / "copy", "--archive")
        finally:
            call(docker, "rm", "-f", container)
    finally:
        call(docker, "rmi", "-f", f"{name}:1")
    made = ("dev", "proc", "sys", ".dockerenv", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab")
    assert on_disk(tmp_path / "copy", leave=made) == {path: entry for path, entry in expected.items() if path not in made}


def test_diffoscope_finds_nothing_between_two_builds(tmp_path: Path) -> None:
    """Compare two builds in two directories, and check that diffoscope finds a real difference."""
    diffoscope = program("diffoscope", "diffoscope-minimal")
    found = []
    for name in ("one", "two"):
        made = images.sample(tmp_path / name / "wheels")
        images.layout(made, tmp_path / name / "oci")
        found.append(tmp_path / name / "oci")
    call(diffoscope, "--exclude-directory-metadata=yes", "--no-progress", *found)
    other = images.layered([images.base({"etc/os-release": b"ID=other\n"})])
    blob = next(path for path in (found[1] / "blobs/sha256").iterdir() if path.read_bytes()[:2] == b"\x1f\x8b")
    blob.write_bytes(other.layers[0])
    done = subprocess.run(
        [diffoscope, "--exclude-directory-metadata=yes", "--no-progress", *map(str, found)], capture_output=True, check=False
    )
    assert done.returncode == 1
