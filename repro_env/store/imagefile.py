"""Images as files, as other tools write them: an OCI layout (folder or tar), or an archive of `docker save`.

Says what is there and where its bytes are; checks nothing and writes nothing. A stranger may have made it.
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

from repro_env.image import flat, foreign
from repro_env.image.entry import CHUNK
from repro_env.image.foreign import Node
from repro_env.io.files import open_regular
from repro_env.model import codec
from repro_env.model.errors import ArtifactError, SpecError, UsageError
from repro_env.model.image import MANIFEST
from repro_env.registry import manifest as manifests
from repro_env.registry.manifest import Descriptor, Index, Manifest

LAYOUT, INDEX_FILE, DOCKER_FILE = "oci-layout", "index.json", "manifest.json"
_HEX = re.compile(r"(?:blobs/sha256/([0-9a-f]{64})|([0-9a-f]{64})\.(?:json|tar))")
_MOST_IMAGES = 64
_HINT = "write it again, or name another image"


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One blob of an image, as it is named."""

    name: str
    """For people: a digest, or a path of the archive."""
    digest: str = ""
    """What its bytes should be; empty where nothing says it."""
    size: int = -1
    """-1 where nothing says it."""
    media_type: str = ""
    open: Callable[[], Iterator[bytes]]
    """Its bytes, not checked. Raises `ArtifactError` when it is not there."""

    def read(self) -> bytes:
        """A config or a manifest."""
        parts, left = [], manifests.LARGEST
        for chunk in self.open():
            left -= len(chunk)
            if left < 0:
                raise ArtifactError(f"has more than {manifests.LARGEST:,} bytes", where=self.name, hint=_HINT)
            parts.append(chunk)
        return b"".join(parts)


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """One image."""

    name: str
    """A tag, else the beginning of a digest."""
    manifest: Piece | None
    """None in archives that have no such thing."""
    config: Piece
    layers: tuple[Piece, ...]
    """Lowest first."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What a layout or archive holds."""

    images: tuple[ImageFile, ...]
    others: tuple[str, ...]
    """What is named and is no image for these machines, and why."""
    docker: tuple[ImageFile, ...]
    """What the part for `docker load` names, where there are both."""


class Files(msgspec.Struct, frozen=True):
    """Named bytes: a folder, or a tar."""

    where: str
    has: Callable[[str], bool]
    open: Callable[[str], Iterator[bytes]]

    def piece(self, path: str, *, digest: str = "", size: int = -1, media_type: str = "") -> Piece:
        return Piece(name=digest or path, digest=digest, size=size, media_type=media_type, open=lambda: self.open(path))

    def blob(self, one: Descriptor) -> Piece:
        path = f"blobs/sha256/{one.digest.removeprefix('sha256:')}"
        return self.piece(path, digest=one.digest, size=one.size, media_type=one.media_type)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Files]:
    """The files of a layout's folder, or of a tar. Raises `ArtifactError`, `UsageError`."""
    if path.is_dir():
        yield Files(str(path), lambda name: (path / name).is_file(), lambda name: _file(path, name))
        return
    try:
        fd = open_regular(path.resolve())
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(path), hint="name a folder or file that holds an image"
        ) from None
    with os.fdopen(fd, "rb", buffering=0) as file:
        if file.read(4)[:2] == b"\x1f\x8b":
            raise UsageError("is a compressed archive", where=str(path), hint=f"uncompress it first: gunzip -k {path.name}")
        file.seek(0)
        found = foreign.scan(iter(lambda: file.read(CHUNK), b""), where=str(path))
        nodes = {name: one.node for name, one in flat.flatten([found.nodes]).placed.items()}
        yield Files(str(path), lambda name: _node(nodes, name) is not None, lambda name: _member(file, nodes, name, str(path)))


def _file(folder: Path, name: str) -> Iterator[bytes]:
    path = folder / name
    try:
        with os.fdopen(open_regular(path, below=folder), "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else error.strerror
        raise ArtifactError(f"cannot be read: {why}", where=str(path), hint=_HINT) from None


def _node(nodes: Mapping[str, Node], name: str) -> Node | None:
    """A file of the archive; old archives share layers by symlinks."""
    for _ in range(8):
        node = nodes.get(name)
        if node is None or node.kind != "link":
            return node if node is not None and node.kind == "file" else None
        name = posixpath.normpath(posixpath.join(posixpath.dirname(name), node.target))
    return None


def _member(file: BinaryIO, nodes: Mapping[str, Node], name: str, where: str) -> Iterator[bytes]:
    node = _node(nodes, name)
    if node is None:
        raise ArtifactError("is not there", where=f"{where}: {foreign.shown(name)}", hint=_HINT)
    at, left = node.offset, node.size
    while left:
        file.seek(at)
        chunk = file.read(min(left, CHUNK))
        if not chunk:
            raise ArtifactError("was cut while it was read", where=where, hint="try again")
        at, left = at + len(chunk), left - len(chunk)
        yield chunk


def listing(files: Files, *, architecture: str) -> Listing:
    """The images. Raises `ArtifactError` for a layout or archive that cannot be read."""
    docker = tuple(_docker(files)) if files.has(DOCKER_FILE) else ()
    if not files.has(INDEX_FILE):
        if not docker:
            raise ArtifactError(
                f"holds neither {INDEX_FILE} (an OCI layout) nor {DOCKER_FILE} (docker save)",
                where=files.where,
                hint="name a folder or archive that holds an image",
            )
        return Listing(images=docker, others=(), docker=())
    _check_layout(files)
    images: list[ImageFile] = []
    others: list[str] = []
    top = _parse(files.piece(INDEX_FILE).read(), "application/vnd.oci.image.index.v1+json", f"{files.where}/{INDEX_FILE}")
    if isinstance(top, Index):
        _images(files, top, architecture, images, others, 0)
    return Listing(images=tuple(images), others=tuple(others), docker=docker)


def _check_layout(files: Files) -> None:
    data = files.piece(LAYOUT).read() if files.has(LAYOUT) else b""
    try:
        version = codec.decode(data, dict[str, str], where=f"{files.where}/{LAYOUT}").get("imageLayoutVersion")
    except SpecError:
        version = None
    if version != "1.0.0":
        raise ArtifactError(f"has no {LAYOUT} of version 1.0.0", where=files.where, hint=_HINT)


def _images(files: Files, index: Index, architecture: str, images: list[ImageFile], others: list[str], depth: int) -> None:
    for one in index.manifests:
        annotations = one.annotations or {}
        name = annotations.get("org.opencontainers.image.ref.name") or one.digest[7:19]
        if len(images) + len(others) >= _MOST_IMAGES:
            raise ArtifactError(f"names more than {_MOST_IMAGES} images", where=files.where, hint="name them one by one")
        if one.platform is not None and (one.platform.os, one.platform.architecture) != ("linux", architecture):
            others.append(f"{name}: for {one.platform}")
        elif one.media_type in manifests.INDEXES and depth < 4:
            piece = files.blob(one)
            data = piece.read()
            if manifests.digest_of(data) != one.digest:
                raise ArtifactError("its bytes are not the ones that its digest names", where=piece.name, hint=_HINT)
            below = _parse(data, one.media_type, piece.name)
            if isinstance(below, Index):
                _images(files, below, architecture, images, others, depth + 1)
        elif one.media_type in manifests.MANIFESTS:
            images.append(image(files.blob(one), name, files.blob))
        else:
            others.append(f"{name}: of the type {one.media_type}")


def image(piece: Piece, name: str, blob: Callable[[Descriptor], Piece]) -> ImageFile:
    """One image by its manifest. Raises `ArtifactError` for one that cannot be read."""
    read = _parse(piece.read(), piece.media_type or MANIFEST, piece.name)
    if not isinstance(read, Manifest):
        raise ArtifactError("is no manifest of an image", where=piece.name, hint=_HINT)
    return ImageFile(name=name, manifest=piece, config=blob(read.config), layers=tuple(blob(one) for one in read.layers))


def _parse(data: bytes, media_type: str, where: str) -> Manifest | Index:
    return manifests.parse(data, media_type, where=where)


class _Saved(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: Annotated[list[str], Meta(max_length=1000)]
    repo_tags: list[str] | None = None


def _docker(files: Files) -> Iterator[ImageFile]:
    where = f"{files.where}/{DOCKER_FILE}"
    try:
        found = codec.decode(files.piece(DOCKER_FILE).read(), list[_Saved], where=where)
    except SpecError as error:
        raise ArtifactError(error.what, where=where, hint=_HINT) from None
    for one in found[:_MOST_IMAGES]:
        config = files.piece(one.config, digest=_named(one.config))
        yield ImageFile(
            name=next(iter(one.repo_tags or ()), "") or one.config.rpartition("/")[2][:12],
            manifest=None,
            config=config,
            layers=tuple(files.piece(path, digest=_named(path)) for path in one.layers),
        )


def _named(path: str) -> str:
    """What the name of a file in an archive of Docker's says of its bytes."""
    match = _HEX.fullmatch(path)
    return f"sha256:{match[1] or match[2]}" if match else ""
