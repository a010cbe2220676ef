"""The archive for `docker load`: the same image gives the same bytes, and the file is replaced only when complete."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from repro_env.delivery.targets.archive import Archive
from repro_env.oci.manifest import Image
from repro_env.registry.reference import parse
from repro_env.schema.errors import UsageError
from tests.delivery.targets.conftest import image, listing


def write(to: Path, *texts: bytes, name: str = "team/train:1") -> Image:
    output = Archive(to, parse(name) if name else None)
    made = image(output, *texts)
    output.finish(made)
    output.close()
    return made


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_the_archive_has_a_layout_and_a_docker_manifest(tmp_path: Path) -> None:
    made = write(tmp_path / "i.tar", b"one", b"two")
    held = read(tmp_path / "i.tar")
    (listed,) = json.loads(held["manifest.json"])
    assert held[listed["Config"]] == made.config
    assert [len(held[one]) for one in listed["Layers"]] == [layer.size for layer in made.layers]
    assert listed["RepoTags"] == ["docker.io/team/train:1"]
    (entry,) = json.loads(held["index.json"])["manifests"]
    assert held["blobs/sha256/" + entry["digest"].removeprefix("sha256:")] == made.manifest
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "1"
    assert listing(tmp_path) == ["i.tar"]


def test_the_same_bytes_at_any_time_and_with_any_umask(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", b"one", b"two")
    before = os.umask(0o077)
    try:
        write(tmp_path / "b.tar", b"one", b"two")
    finally:
        os.umask(before)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_an_image_without_a_name_is_written(tmp_path: Path) -> None:
    write(tmp_path / "i.tar", b"one", name="")
    held = read(tmp_path / "i.tar")
    assert json.loads(held["manifest.json"])[0]["RepoTags"] == []
    assert "annotations" not in json.loads(held["index.json"])["manifests"][0]


def test_an_existing_archive_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "i.tar", b"one")
    write(tmp_path / "i.tar", b"two", name="team/train:2")
    write(tmp_path / "new.tar", b"two", name="team/train:2")
    assert (tmp_path / "i.tar").read_bytes() == (tmp_path / "new.tar").read_bytes()


def test_an_unfinished_output_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "i.tar").write_text("mine")
    output = Archive(tmp_path / "i.tar", None)
    image(output, b"one")
    output.close()
    assert (tmp_path / "i.tar").read_text() == "mine"
    assert listing(tmp_path) == ["i.tar"]


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for to, what in (
        (tmp_path, "is not a file"),
        (tmp_path / "pipe", "is not a file"),
        (tmp_path / "not-there" / "i.tar", "directory of the file does not exist"),
        (Path("/proc/i.tar"), "cannot be written"),
    ):
        with pytest.raises(UsageError, match=what):
            Archive(to, None)
    assert (tmp_path / "pipe").is_fifo()
