"""`docker-archive:FILE[:NAME]`: one tar that `docker load`, podman and skopeo read. It is also an OCI layout, as in Docker 25.

The same image gives the same bytes. The file is replaced only when it is complete. If repro-env wrote the existing file
and it is unchanged, its layers are reused.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from repro_env.delivery.targets.hashedfiles import HashedFiles, space_errors, write_blob, write_errors
from repro_env.delivery.targets.ocilayout import NAME, VERSION
from repro_env.io.files import atomic_stream
from repro_env.oci import tar
from repro_env.oci.entry import CHUNK, Entry, Members, sort_with_parents
from repro_env.oci.manifest import Image
from repro_env.registry.reference import Reference
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, UsageError
from repro_env.schema.image import GZIP, INDEX, Blob
from repro_env.store.bootmarks import Boot
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp

FULL_NAME = "io.containerd.image.name"
"""Annotation of a layout from which `docker load` takes the image's name."""
_FOLDER = "blobs/sha256"


class Span(msgspec.Struct, frozen=True):
    """The position of a file inside the archive."""

    offset: int
    size: int


class Archive:
    """An output to one file (`delivery.target.Output`). New layers are collected in a temporary directory next to it."""

    def __init__(self, path: Path, name: Reference | None, boot: Boot) -> None:
        """Raises `UsageError` if no file can be written at the path."""
        self._path = Path(os.path.normpath(path.absolute()))
        exists, parent = self._path.exists(), self._path.parent
        if (exists and not self._path.is_file()) or not parent.is_dir():
            what = "the path is not a file" if exists else "the directory of the file does not exist"
            raise UsageError(what, where=str(path), hint="name a file in an existing directory")
        self._name = name
        self._hashed = HashedFiles(boot)
        self._stack = ExitStack()
        self._existing = self._existing_spans() if self._hashed.is_unchanged(self._path) else {}
        with write_errors(parent):
            temp = Temp(parent / f".{self._path.name}.repro-env")
            temp.clean()
            self._scratch = self._stack.enter_context(temp.directory())

    def has(self, blob: Blob) -> bool:
        piece = self._existing.get(_blob_path(blob.digest))
        return piece is not None and piece.size == blob.size

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        with space_errors(self._scratch), Temp(self._scratch / "temp").directory() as temporary:
            blob = write_blob(chunks, temporary / "blob", GZIP, known)
            (temporary / "blob").replace(self._scratch / hex_of(blob.digest))
        return blob

    def finish(self, image: Image) -> str:
        config, manifest = image.config_blob, image.manifest_blob
        metadata = {
            _blob_path(config.digest): image.config,
            _blob_path(manifest.digest): image.manifest,
            "index.json": codec.canonical(self._index(manifest)),
            "manifest.json": codec.canonical([self._docker_manifest(image)]),
            "oci-layout": VERSION,
        }
        files = {_blob_path(layer.digest): layer for layer in image.layers}
        if self._existing.keys() != {*metadata, *files} or any(self._read(name) != text for name, text in metadata.items()):
            sizes = {
                **{name: len(text) for name, text in metadata.items()},
                **{name: layer.size for name, layer in files.items()},
            }
            entries = sort_with_parents(Entry(name, "file", size=size) for name, size in sizes.items())
            with space_errors(self._path.parent):
                atomic_stream(self._path, tar.write(self._members(entries, metadata)), sum(sizes.values()), flush=False)
            self._hashed.is_unchanged(self._path, now=True)
        return f"docker-archive:{self._path}" + (f" ({self._name})" if self._name else "")

    def close(self) -> None:
        self._stack.close()

    def _members(self, entries: list[Entry], metadata: dict[str, bytes]) -> Members:
        for entry in entries:
            if entry.kind != "file":
                yield entry, ()
            elif entry.path in metadata:
                yield entry, (metadata[entry.path],)
            else:
                yield entry, self._read_layer(entry.path)

    def _read_layer(self, member: str) -> Iterator[bytes]:
        new_file = self._scratch / member.rpartition("/")[2]
        if new_file.is_file():
            with new_file.open("rb") as file:
                yield from _chunks(cast("BinaryIO", file), Span(0, new_file.stat().st_size))
            new_file.unlink()  # so that the layers do not take the space twice for long
        elif member in self._existing:
            with self._path.open("rb") as file:
                yield from _chunks(cast("BinaryIO", file), self._existing[member])
        else:
            raise ArtifactError("the layer is missing", where=member, hint="rebuild again")

    def _read(self, name: str) -> bytes:
        with self._path.open("rb") as file:
            return b"".join(_chunks(cast("BinaryIO", file), self._existing[name]))

    def _existing_spans(self) -> dict[str, Span]:
        """Return the position of each file in the existing archive, which repro-env wrote."""
        with tarfile.open(self._path) as archive:
            return {member.name: Span(member.offset_data, member.size) for member in archive if member.isreg()}

    def _index(self, manifest: Blob) -> dict[str, object]:
        entry: dict[str, object] = {"digest": manifest.digest, "mediaType": manifest.media_type, "size": manifest.size}
        if self._name is not None:
            entry["annotations"] = {FULL_NAME: str(self._name), NAME: self._name.tag}
        return {"manifests": [entry], "mediaType": INDEX, "schemaVersion": 2}

    def _docker_manifest(self, image: Image) -> dict[str, object]:
        return {
            "Config": _blob_path(image.config_blob.digest),
            "Layers": [_blob_path(layer.digest) for layer in image.layers],
            "RepoTags": [str(self._name)] if self._name is not None else [],
        }


def _blob_path(digest: str) -> str:
    return f"{_FOLDER}/{hex_of(digest)}"


def _chunks(file: BinaryIO, piece: Span) -> Iterator[bytes]:
    file.seek(piece.offset)
    remaining = piece.size
    while remaining and (chunk := file.read(min(remaining, CHUNK))):
        remaining -= len(chunk)
        yield chunk
