"""Images as files: an OCI layout (directory or tar), or an archive of `docker save`.

This module finds the images and their blobs. It does not check the content and writes nothing. The files are untrusted.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from repro_env.io.files import open_regular
from repro_env.oci import manifest as manifests
from repro_env.oci.entry import CHUNK
from repro_env.oci.manifest import Descriptor, Manifest
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, SpecError, UsageError
from repro_env.schema.image import INDEX, MANIFEST
from repro_env.store.packages.condafile import LimitedTarInfo

_LAYOUT, _INDEX_FILE, _DOCKER_FILE = "oci-layout", "index.json", "manifest.json"
_HEX = re.compile(r"(?:blobs/sha256/([0-9a-f]{64})|([0-9a-f]{64})\.(?:json|tar))")
_MOST_IMAGES = 64
_MOST_MEMBERS = 100_000
_DEEPEST = 4
_HINT = "write the image again, or name another image"


class ImageBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest, config or layer of an image."""

    name: str
    """For messages: a digest, or a path in the archive."""
    digest: str = ""
    """The expected digest; empty if it is unknown."""
    chunks: Callable[[], Iterator[bytes]]
    """Yields its bytes without a check. Raises `ArtifactError` if it is missing."""

    def read(self) -> bytes:
        """Read a config or a manifest into memory. Raises `ArtifactError` if it is too large."""
        data = b""
        for chunk in self.chunks():
            data += chunk
            if len(data) > manifests.MAX_SIZE:
                raise ArtifactError(f"the file has more than {manifests.MAX_SIZE:,} bytes", where=self.name, hint=_HINT)
        return data


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a layout, archive or registry."""

    name: str
    """A tag, or the beginning of a digest."""
    manifest: ImageBlob | None
    """None in archives of `docker save`, which have no manifest."""
    config: ImageBlob
    layers: tuple[ImageBlob, ...]
    """Lowest first."""

    @property
    def digests(self) -> list[str]:
        return [self.config.digest, *(layer.digest for layer in self.layers)]


class _Files:
    """The files of a directory."""

    def __init__(self, directory: Path) -> None:
        self.where = str(directory)
        self._directory = directory

    def has(self, name: str) -> bool:
        return (self._directory / name).is_file()

    def chunks(self, name: str) -> Iterator[bytes]:
        path = self._directory / name
        try:
            with os.fdopen(open_regular(path, below=self._directory), "rb", buffering=0) as file:
                while chunk := file.read(CHUNK):
                    yield chunk
        except OSError as error:
            why = "it is missing" if isinstance(error, FileNotFoundError) else error.strerror
            raise ArtifactError(f"the file cannot be read: {why}", where=str(path), hint=_HINT) from None

    def blob(self, path: str, digest: str = "") -> ImageBlob:
        return ImageBlob(name=digest or path, digest=digest, chunks=partial(self.chunks, path))

    def described(self, descriptor: Descriptor) -> ImageBlob:
        return self.blob(f"blobs/sha256/{descriptor.digest.removeprefix('sha256:')}", descriptor.digest)


class _Archive(_Files):
    """The files of a tar. Old archives have symlinks to shared layers, which `tarfile` follows inside the archive."""

    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        super().__init__(path)
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in archive:
            self._members[posixpath.normpath(member.name)] = member
            if len(self._members) > _MOST_MEMBERS:
                raise ArtifactError(f"the archive has more than {_MOST_MEMBERS:,} members", where=self.where, hint=_HINT)

    def has(self, name: str) -> bool:
        return name in self._members

    def chunks(self, name: str) -> Iterator[bytes]:
        where = f"{self.where}: {name!a}"
        try:
            file = self._archive.extractfile(self._members[name])
            while file is not None and (chunk := file.read(CHUNK)):
                yield chunk
        except (tarfile.TarError, KeyError, RecursionError) as error:
            why = "it is missing" if isinstance(error, KeyError) else str(error)
            raise ArtifactError(f"the file cannot be read: {why}", where=where, hint=_HINT) from None


@contextlib.contextmanager
def open_images(path: Path, *, architecture: str) -> Iterator[list[ImageFile]]:
    """Return the images for this platform in a layout or archive. Raises `ArtifactError` if it has none, `UsageError`."""
    with contextlib.ExitStack() as stack:
        yield _images(_Files(path) if path.is_dir() else _open_archive(path, stack), architecture)


def _open_archive(path: Path, stack: contextlib.ExitStack) -> _Archive:
    try:
        file = stack.enter_context(os.fdopen(open_regular(path.resolve()), "rb"))
        return _Archive(path, stack.enter_context(tarfile.open(fileobj=file, mode="r:", tarinfo=LimitedTarInfo)))
    except OSError as error:
        hint = "name a directory or file that holds an image"
        raise UsageError(f"the file cannot be read: {error.strerror}", where=str(path), hint=hint) from None
    except (tarfile.TarError, EOFError, ValueError) as error:
        hint = "name a directory or an uncompressed tar that holds an image (`gunzip` decompresses a tar)"
        raise ArtifactError(f"the file is not a tar: {error}", where=str(path), hint=hint) from None


def _images(files: _Files, architecture: str) -> list[ImageFile]:
    images = list(_of_index(files, files.blob(_INDEX_FILE), INDEX, architecture)) if files.has(_INDEX_FILE) else []
    if images and _layout_version(files) != "1.0.0":
        raise ArtifactError(f"the layout has no file {_LAYOUT} of version 1.0.0", where=files.where, hint=_HINT)
    if files.has(_DOCKER_FILE):
        # `docker load` reads another list than tools that read the index. What differs in it is an image of its own.
        listed = [image.digests for image in images]
        images += [image for image in _of_docker(files) if image.digests not in listed]
    if not images:
        raise ArtifactError(
            f"there is no image for linux/{architecture} in {_INDEX_FILE} (an OCI layout) or {_DOCKER_FILE} (docker save)",
            where=files.where,
            hint="name a directory or archive that holds an image",
        )
    return images


def _layout_version(files: _Files) -> str | None:
    try:
        data = files.blob(_LAYOUT).read()
        return codec.decode(data, dict[str, str], where=_LAYOUT).get("imageLayoutVersion")
    except (ArtifactError, SpecError):
        return None


def _of_index(files: _Files, blob: ImageBlob, media_type: str, architecture: str, depth: int = 0) -> Iterator[ImageFile]:
    index = manifests.parse(blob.read(), media_type, where=blob.name)
    for descriptor in index.manifests[:_MOST_IMAGES] if not isinstance(index, Manifest) else ():
        if descriptor.platform is not None and str(descriptor.platform) != f"linux/{architecture}":
            continue
        name = (descriptor.annotations or {}).get("org.opencontainers.image.ref.name") or descriptor.digest[7:19]
        if descriptor.media_type in manifests.MANIFESTS:
            yield image(name, files.described(descriptor), descriptor.media_type, files.described)
        elif descriptor.media_type in manifests.INDEXES and depth < _DEEPEST:
            yield from _of_index(files, files.described(descriptor), descriptor.media_type, architecture, depth + 1)


def image(name: str, blob: ImageBlob, media_type: str, described: Callable[[Descriptor], ImageBlob]) -> ImageFile:
    """Return the image of a manifest. `described` returns the blob of a descriptor. Raises `ArtifactError`."""
    manifest = manifests.parse(blob.read(), media_type or MANIFEST, where=blob.name)
    if not isinstance(manifest, Manifest):
        raise ArtifactError("the file is not the manifest of an image", where=blob.name, hint=_HINT)
    return ImageFile(name=name, manifest=blob, config=described(manifest.config), layers=tuple(map(described, manifest.layers)))


class _Saved(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: Annotated[list[str], Meta(max_length=1000)]
    repo_tags: list[str] | None = None


def _of_docker(files: _Files) -> Iterator[ImageFile]:
    where = f"{files.where}/{_DOCKER_FILE}"
    try:
        entries = codec.decode(files.blob(_DOCKER_FILE).read(), list[_Saved], where=where)
    except SpecError as error:
        raise ArtifactError(error.what, where=where, hint=_HINT) from None
    for entry in entries[:_MOST_IMAGES]:
        yield ImageFile(
            name=next(iter(entry.repo_tags or ()), "") or entry.config.rpartition("/")[2][:12],
            manifest=None,
            config=files.blob(entry.config, _digest_in_name(entry.config)),
            layers=tuple(files.blob(path, _digest_in_name(path)) for path in entry.layers),
        )


def _digest_in_name(path: str) -> str:
    """Return the digest that the name of a file in a Docker archive contains, or empty."""
    match = _HEX.fullmatch(path)
    return f"sha256:{match[1] or match[2]}" if match else ""
