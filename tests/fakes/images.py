"""A small image as repro-env makes one, and the two forms in which images lie on disk."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from repro_env.oci import tar, wheel, wheellayers
from repro_env.oci.entry import Entry, Member, sort_with_parents
from repro_env.oci.gzipencoder import stitch_layer
from repro_env.oci.manifest import Image, blob_of
from repro_env.schema.image import GZIP, INDEX, LABEL, Packed
from repro_env.store.packages.wheelfile import WheelContents, open_facts
from tests.fakes import wheels
from tests.fakes.specs import ARCHITECTURE

SITE = "opt/env/lib/python3.11/site-packages"
LABELS: Mapping[str, str] = {LABEL: f"sha256:{'0' * 64}"}
"""Of an image that repro-env built."""
LONG = "deep/" + "n" * 130 + ".txt"
MEMBERS: Mapping[str, bytes] = {
    "odd/__init__.py": b"NAME = 'odd'\n" * 50,
    "odd/empty.py": b"",
    "odd/stored.bin": bytes(range(256)) * 300,
    "odd/zip64.bin": b"64" * 5000,
    "odd/" + LONG: b"a long name",
    "odd/grün/日本.txt": "grün".encode(),
    "odd-1.0.data/scripts/odd-tool": b"#!python\nprint('odd')\n",
    "odd-1.0.data/data/share/odd/data.txt": b"data",
}


class Layered(msgspec.Struct, frozen=True):
    """An image in memory."""

    layers: tuple[bytes, ...]
    """As they are sent, lowest first."""
    config: bytes

    @property
    def image(self) -> Image:
        return Image(self.config, tuple(blob_of(data, GZIP) for data in self.layers))

    @property
    def packed(self) -> list[Packed]:
        diff_ids = [blob_of(gzip.decompress(data), GZIP).digest for data in self.layers]
        return [Packed(diff_id=diff_id, blob=blob_of(data, GZIP)) for diff_id, data in zip(diff_ids, self.layers, strict=True)]

    @property
    def image_id(self) -> str:
        return self.image.config_blob.digest


def files(given: Mapping[str, bytes | str | None]) -> list[Member]:
    """Entries with their bytes: a file, None for a path that is removed, a text for a symlink."""
    made = [
        Entry(path, "gone")
        if data is None
        else Entry(path, "link", target=data)
        if isinstance(data, str)
        else Entry(path, "file", data.startswith(b"#!"), len(data), hashlib.sha256(data).hexdigest())
        for path, data in given.items()
    ]
    return [
        (entry, [content] if isinstance(content := given.get(entry.path), bytes) else []) for entry in sort_with_parents(made)
    ]


def odd_wheel(directory: Path) -> Path:
    """A wheel with every kind of member that a layer has to hold: stored ones and zip64 headers too."""
    plain = wheels.make(directory / "plain", "odd", files=MEMBERS)
    path = directory / plain.name
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as out:
        for info in source.infolist():
            data = source.read(info)
            if info.filename.endswith("zip64.bin"):
                with out.open(info, "w", force_zip64=True) as file:
                    file.write(data)
            else:
                how = zipfile.ZIP_STORED if info.filename.endswith("stored.bin") else zipfile.ZIP_DEFLATED
                out.writestr(info, data, compress_type=how)
    return path


def of_wheel(path: Path, name: str = "odd") -> bytes:
    """The layer of one wheel, stitched, as a rebuild sends it."""
    installed = wheel.canonical(open_facts(path, path.name), wheels.layout(), name=name)
    made = wheellayers.layer((name,), {name: installed})
    with closing(WheelContents(path, installed)) as contents:
        inner = {one.path: one for one in installed.entries}

        def members() -> Iterable[tuple[Entry, object]]:
            for entry in made.entries:
                own = made.owner.get(entry.path)
                yield entry, contents.chunks(inner[own[1]]) if own else ()

        return b"".join(stitch_layer(members()))  # type: ignore[arg-type]


def config(diff_ids: Sequence[str], labels: Mapping[str, str] = LABELS) -> bytes:
    """An image config, for this machine."""
    made = {
        "architecture": ARCHITECTURE,
        "config": {"Env": ["PATH=/usr/bin:/bin"], "Labels": dict(labels), "WorkingDir": "/"},
        "created": "1980-01-01T00:00:00Z",
        "os": "linux",
        "rootfs": {"diff_ids": list(diff_ids), "type": "layers"},
    }
    return json.dumps(made, separators=(",", ":"), sort_keys=True).encode()


def layered(layers: Sequence[bytes], labels: Mapping[str, str] = LABELS) -> Layered:
    """`layers`: gzip, or plain tars."""
    plain = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in layers]
    diff_ids = ["sha256:" + hashlib.sha256(data).hexdigest() for data in plain]
    return Layered(
        tuple(data if data[:2] == b"\x1f\x8b" else gzip.compress(data, 1, mtime=0) for data in layers), config(diff_ids, labels)
    )


def base(given: Mapping[str, bytes | str | None]) -> bytes:
    """A bundled tree's layer, not compressed."""
    return b"".join(tar.write(files(given)))


def sample(directory: Path) -> Layered:
    """Base, a stitched layer of one wheel, an overlay with whiteouts, a marker."""
    directory.mkdir(parents=True, exist_ok=True)
    return layered(
        [
            base(
                {
                    "etc/os-release": b"ID=test\n",
                    "etc/old": b"old",
                    "usr/bin/tool": b"#!/bin/sh\n",
                    "bin": "usr/bin",
                    "gone/a/b": b"x",
                }
            ),
            of_wheel(odd_wheel(directory)),
            base({"etc/old": None, "gone": None, "etc/link": "../usr/bin/tool", "etc/ünï": b"", "etc/" + "o" * 150: b"long"}),
            base({".repro-env/image.json": b"{}\n"}),
        ]
    )


def entries(layer: bytes) -> list[Entry]:
    """The members of a layer by `tarfile`, gzip or not. Owners, times and modes have to be ours."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r:*") as archive:
        for info in archive:
            assert (info.uid, info.gid, info.uname, info.gname, info.mtime) == (0, 0, "", "", tar.MTIME)
            directory, slash, name = info.name.rpartition("/")
            if info.isdir():
                found.append(Entry(info.name, "dir"))
            elif info.issym():
                found.append(Entry(info.name, "link", target=info.linkname))
            elif name.startswith(tar.WHITEOUT):
                found.append(Entry(f"{directory}{slash}{name.removeprefix(tar.WHITEOUT)}", "gone"))
            else:
                content = archive.extractfile(info)
                assert content is not None
                assert info.mode in (0o644, 0o755)
                sha256 = hashlib.sha256(content.read()).hexdigest()
                found.append(Entry(info.name, "file", info.mode == 0o755, info.size, sha256))
    return found


def layout(image: Layered, directory: Path, *, name: str = "latest") -> Path:
    """Write an OCI layout."""
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True)
    made = image.image
    for data in (*image.layers, image.config, made.manifest):
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
    (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    one = made.manifest_blob
    descriptor = {
        "mediaType": one.media_type,
        "digest": one.digest,
        "size": one.size,
        "annotations": {"org.opencontainers.image.ref.name": name},
    }
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}))
    return directory


def saved(image: Layered, path: Path, *, tag: str = "test:1") -> Path:
    """Write an archive as `docker save` of Docker 20 does: the layers' plain tars, one of them behind a symlink."""
    with tarfile.open(path, "w") as archive:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))

        names = []
        for number, data in enumerate(image.layers):
            names.append(f"{number:064}/layer.tar")
            if number:
                add(names[-1], gzip.decompress(data))
                continue
            add("common/layer.tar", gzip.decompress(data))
            info = tarfile.TarInfo(names[-1])
            info.type, info.linkname = tarfile.SYMTYPE, "../common/layer.tar"
            archive.addfile(info)
        own = f"{image.image_id.removeprefix('sha256:')}.json"
        add(own, image.config)
        add("manifest.json", json.dumps([{"Config": own, "RepoTags": [tag], "Layers": names}]).encode())
    return path
