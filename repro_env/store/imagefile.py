"""Images as files: an OCI layout (directory or tar), or an archive of `docker save`.

This module lists the images and finds their blobs. It does not check the content and writes nothing. The files are
untrusted.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from repro_env.io.files import open_regular
from repro_env.oci import imagetree, layerreader
from repro_env.oci import manifestreader as manifests
from repro_env.oci.entry import CHUNK
from repro_env.oci.layerreader import Node
from repro_env.oci.manifestreader import Descriptor, Index, Manifest
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, SpecError, UsageError
from repro_env.schema.image import MANIFEST

LAYOUT, INDEX_FILE, DOCKER_FILE = "oci-layout", "index.json", "manifest.json"
_HEX = re.compile(r"(?:blobs/sha256/([0-9a-f]{64})|([0-9a-f]{64})\.(?:json|tar))")
_MOST_IMAGES = 64
_HINT = "write the image again, or name another image"


class ImageBlob(msgspec.Struct, frozen=True, kw_only=True):
    """One blob of an image."""

    name: str
    """The name for messages: a digest, or a path in the archive."""
    digest: str = ""
    """The expected digest; empty if it is unknown."""
    size: int = -1
    """The expected size in bytes; -1 if it is unknown."""
    media_type: str = ""
    open: Callable[[], Iterator[bytes]]
    """Yields its bytes without a check. Raises `ArtifactError` if it is missing."""

    def read(self) -> bytes:
        """Read a config or a manifest into memory. Raises `ArtifactError` if it is too large."""
        parts, remaining = [], manifests.MAX_SIZE
        for chunk in self.open():
            remaining -= len(chunk)
            if remaining < 0:
                raise ArtifactError(f"the file has more than {manifests.MAX_SIZE:,} bytes", where=self.name, hint=_HINT)
            parts.append(chunk)
        return b"".join(parts)


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """One image in a layout or archive."""

    name: str
    """A tag, or the beginning of a digest."""
    manifest: ImageBlob | None
    """None in archives of `docker save`, which have no manifest."""
    config: ImageBlob
    layers: tuple[ImageBlob, ...]
    """Lowest first."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a layout or archive."""

    images: tuple[ImageFile, ...]
    others: tuple[str, ...]
    """Entries that are not images for this platform, with the reason."""
    docker: tuple[ImageFile, ...]
    """The images that are listed for `docker load`, if the archive is also an OCI layout."""


class Files(msgspec.Struct, frozen=True):
    """The files of a directory or of a tar."""

    where: str
    has: Callable[[str], bool]
    open: Callable[[str], Iterator[bytes]]

    def piece(self, path: str, *, digest: str = "", size: int = -1, media_type: str = "") -> ImageBlob:
        return ImageBlob(name=digest or path, digest=digest, size=size, media_type=media_type, open=lambda: self.open(path))

    def blob(self, descriptor: Descriptor) -> ImageBlob:
        path = f"blobs/sha256/{descriptor.digest.removeprefix('sha256:')}"
        return self.piece(path, digest=descriptor.digest, size=descriptor.size, media_type=descriptor.media_type)


@contextlib.contextmanager
def open_image(path: Path) -> Iterator[Files]:
    """Open the files of a layout's directory or of a tar. Raises `ArtifactError`, `UsageError`."""
    if path.is_dir():
        yield Files(str(path), lambda name: (path / name).is_file(), lambda name: _file(path, name))
        return
    try:
        fd = open_regular(path.resolve())
    except OSError as error:
        raise UsageError(
            f"the file cannot be read: {error.strerror}", where=str(path), hint="name a directory or file that holds an image"
        ) from None
    with os.fdopen(fd, "rb", buffering=0) as file:
        if file.read(4)[:2] == b"\x1f\x8b":
            raise UsageError("the archive is compressed", where=str(path), hint=f"decompress it first: gunzip -k {path.name}")
        file.seek(0)
        layer = layerreader.scan(iter(lambda: file.read(CHUNK), b""), where=str(path))
        nodes = {name: tree_path.node for name, tree_path in imagetree.flatten([layer.nodes]).placed.items()}
        yield Files(str(path), lambda name: _node(nodes, name) is not None, lambda name: _member(file, nodes, name, str(path)))


def _file(directory: Path, name: str) -> Iterator[bytes]:
    path = directory / name
    try:
        with os.fdopen(open_regular(path, below=directory), "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        why = "it is missing" if isinstance(error, FileNotFoundError) else error.strerror
        raise ArtifactError(f"the file cannot be read: {why}", where=str(path), hint=_HINT) from None


def _node(nodes: Mapping[str, Node], name: str) -> Node | None:
    """Return a file of the archive. Old archives have symlinks to shared layers, which are followed."""
    for _ in range(8):
        node = nodes.get(name)
        if node is None or node.kind != "link":
            return node if node is not None and node.kind == "file" else None
        name = posixpath.normpath(posixpath.join(posixpath.dirname(name), node.target))
    return None


def _member(file: BinaryIO, nodes: Mapping[str, Node], name: str, where: str) -> Iterator[bytes]:
    node = _node(nodes, name)
    if node is None:
        raise ArtifactError("the file is missing", where=f"{where}: {layerreader.printable(name)}", hint=_HINT)
    offset, remaining = node.offset, node.size
    while remaining:
        file.seek(offset)
        chunk = file.read(min(remaining, CHUNK))
        if not chunk:
            raise ArtifactError("the file was truncated while it was read", where=where, hint="try again")
        offset, remaining = offset + len(chunk), remaining - len(chunk)
        yield chunk


def listing(files: Files, *, architecture: str) -> Listing:
    """List the images. Raises `ArtifactError` if the layout or archive cannot be read."""
    docker = tuple(_docker(files)) if files.has(DOCKER_FILE) else ()
    if not files.has(INDEX_FILE):
        if not docker:
            raise ArtifactError(
                f"there is neither {INDEX_FILE} (an OCI layout) nor {DOCKER_FILE} (docker save)",
                where=files.where,
                hint="name a directory or archive that holds an image",
            )
        return Listing(images=docker, others=(), docker=())
    _check_layout(files)
    images: list[ImageFile] = []
    skipped: list[str] = []
    top = _parse(files.piece(INDEX_FILE).read(), "application/vnd.oci.image.index.v1+json", f"{files.where}/{INDEX_FILE}")
    if isinstance(top, Index):
        _images(files, top, architecture, images, skipped, 0)
    return Listing(images=tuple(images), others=tuple(skipped), docker=docker)


def _check_layout(files: Files) -> None:
    data = files.piece(LAYOUT).read() if files.has(LAYOUT) else b""
    try:
        version = codec.decode(data, dict[str, str], where=f"{files.where}/{LAYOUT}").get("imageLayoutVersion")
    except SpecError:
        version = None
    if version != "1.0.0":
        raise ArtifactError(f"the layout has no file {LAYOUT} of version 1.0.0", where=files.where, hint=_HINT)


def _images(files: Files, index: Index, architecture: str, images: list[ImageFile], skipped: list[str], depth: int) -> None:
    for descriptor in index.manifests:
        annotations = descriptor.annotations or {}
        name = annotations.get("org.opencontainers.image.ref.name") or descriptor.digest[7:19]
        if len(images) + len(skipped) >= _MOST_IMAGES:
            raise ArtifactError(
                f"the index lists more than {_MOST_IMAGES} images", where=files.where, hint="name one of its images"
            )
        if descriptor.platform is not None and (descriptor.platform.os, descriptor.platform.architecture) != (
            "linux",
            architecture,
        ):
            skipped.append(f"{name}: for {descriptor.platform}")
        elif descriptor.media_type in manifests.INDEXES and depth < 4:
            piece = files.blob(descriptor)
            data = piece.read()
            if manifests.digest_of(data) != descriptor.digest:
                raise ArtifactError("the content of the index does not match its digest", where=piece.name, hint=_HINT)
            below = _parse(data, descriptor.media_type, piece.name)
            if isinstance(below, Index):
                _images(files, below, architecture, images, skipped, depth + 1)
        elif descriptor.media_type in manifests.MANIFESTS:
            images.append(image(files.blob(descriptor), name, files.blob))
        else:
            skipped.append(f"{name}: unsupported type {descriptor.media_type}")


def image(piece: ImageBlob, name: str, blob: Callable[[Descriptor], ImageBlob]) -> ImageFile:
    """Return the image of a manifest. Raises `ArtifactError` if it cannot be read."""
    manifest = _parse(piece.read(), piece.media_type or MANIFEST, piece.name)
    if not isinstance(manifest, Manifest):
        raise ArtifactError("the file is not the manifest of an image", where=piece.name, hint=_HINT)
    return ImageFile(
        name=name, manifest=piece, config=blob(manifest.config), layers=tuple(blob(descriptor) for descriptor in manifest.layers)
    )


def _parse(data: bytes, media_type: str, where: str) -> Manifest | Index:
    return manifests.parse(data, media_type, where=where)


class _Saved(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: Annotated[list[str], Meta(max_length=1000)]
    repo_tags: list[str] | None = None


def _docker(files: Files) -> Iterator[ImageFile]:
    where = f"{files.where}/{DOCKER_FILE}"
    try:
        entries = codec.decode(files.piece(DOCKER_FILE).read(), list[_Saved], where=where)
    except SpecError as error:
        raise ArtifactError(error.what, where=where, hint=_HINT) from None
    for entry in entries[:_MOST_IMAGES]:
        config = files.piece(entry.config, digest=_digest_in_name(entry.config))
        yield ImageFile(
            name=next(iter(entry.repo_tags or ()), "") or entry.config.rpartition("/")[2][:12],
            manifest=None,
            config=config,
            layers=tuple(files.piece(path, digest=_digest_in_name(path)) for path in entry.layers),
        )


def _digest_in_name(path: str) -> str:
    """Return the digest that the name of a file in a Docker archive contains, or empty."""
    match = _HEX.fullmatch(path)
    return f"sha256:{match[1] or match[2]}" if match else ""
