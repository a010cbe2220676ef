"""`docker-archive:FILE[:NAME]`: one tar that `docker load`, podman and skopeo read. It is also an OCI layout, as in Docker 25.

The same image gives the same bytes. The file is replaced only when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from repro_env.delivery.targets.blobfiles import BlobFiles, write_errors
from repro_env.delivery.targets.ocilayout import NAME, VERSION
from repro_env.io.files import atomic_stream
from repro_env.oci import tar
from repro_env.oci.entry import Entry, Members, sort_with_parents
from repro_env.oci.manifest import Image, as_descriptor
from repro_env.registry.reference import Reference
from repro_env.schema import codec
from repro_env.schema.errors import UsageError
from repro_env.schema.image import INDEX, Packed
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp

FULL_NAME = "io.containerd.image.name"
"""Annotation of a layout from which `docker load` takes the image's name."""


class Archive(BlobFiles):
    """An output to one file (`delivery.builder.sinks.Output`). Layers are collected in a temporary directory next to it."""

    def __init__(self, path: Path, name: Reference | None) -> None:
        """Raises `UsageError` if no file can be written at the path."""
        self._path = Path(os.path.normpath(path.absolute()))
        exists, parent = self._path.exists(), self._path.parent
        if (exists and not self._path.is_file()) or not parent.is_dir():
            what = "the path is not a file" if exists else "the directory of the file does not exist"
            raise UsageError(what, where=str(path), hint="name a file in an existing directory")
        if name is not None and name.digest:
            raise UsageError("an image in an archive cannot be named by a digest", where=str(name), hint="name it by a tag")
        self._name = name
        self._stack = ExitStack()
        with write_errors(parent):
            temp = Temp(parent)
            temp.clean()
            super().__init__(self._stack.enter_context(temp.directory()), temp)

    def has(self, layer: Packed) -> bool:
        return self.path(layer.blob.digest).exists()

    def finish(self, image: Image) -> str:
        def read(digest: str) -> Iterator[bytes]:
            yield from self.read(digest)
            self.path(digest).unlink()  # so that the layers do not take the space twice for long

        size = sum(layer.size for layer in image.layers)
        atomic_stream(self._path, tar.write(members(image, self._name, read)), size, flush=False)
        return f"docker-archive:{self._path}" + (f" ({self._name})" if self._name else "")

    def close(self) -> None:
        self._stack.close()


def members(
    image: Image, name: Reference | None, read: Callable[[str], Iterable[bytes]], *, missing: Collection[str] = ()
) -> Members:
    """Yield the members of the archive of an image. `read` returns the bytes of a layer by its digest.

    Layers whose digests are in `missing` are listed, but not in the archive.
    """
    entry = as_descriptor(image.manifest_blob)
    if name is not None:
        entry["annotations"] = {FULL_NAME: str(name), NAME: name.tag}
    docker = {
        "Config": _path(image.config_blob.digest),
        "Layers": [_path(layer.digest) for layer in image.layers],
        "RepoTags": [str(name)] if name is not None else [],
    }
    metadata = {
        _path(image.config_blob.digest): image.config,
        _path(image.manifest_blob.digest): image.manifest,
        "index.json": codec.canonical({"manifests": [entry], "mediaType": INDEX, "schemaVersion": 2}),
        "manifest.json": codec.canonical([docker]),
        "oci-layout": VERSION,
    }
    sizes = {path: len(data) for path, data in metadata.items()}
    sizes |= {_path(layer.digest): layer.size for layer in image.layers if layer.digest not in missing}
    for member in sort_with_parents(Entry(path, "file", size=size) for path, size in sizes.items()):
        if member.path in metadata or member.kind != "file":
            yield member, (metadata.get(member.path, b""),)
        else:
            yield member, read("sha256:" + member.path.rpartition("/")[2])


def _path(digest: str) -> str:
    return f"blobs/sha256/{hex_of(digest)}"
