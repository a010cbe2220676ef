"""`docker-archive:FILE[:NAME]`: one tar that `docker load`, podman and skopeo take; an OCI layout besides (as Docker 25 saves).

The same image gives the same bytes. The file is there whole, or as it was. Layers that it has already, since it was
written here and is unchanged, are taken over from it.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from repro_env.image import tar
from repro_env.image.entry import CHUNK, Entry, Members, ordered
from repro_env.image.manifest import Image
from repro_env.io.files import atomic_stream
from repro_env.model import codec
from repro_env.model.errors import ArtifactError, UsageError
from repro_env.model.image import GZIP, INDEX, Blob
from repro_env.output.kept import Kept, roomy, sink, writing
from repro_env.output.oci import NAME, VERSION
from repro_env.registry.reference import Reference
from repro_env.store.boot import Boot
from repro_env.store.digests import hex_of
from repro_env.store.temp import Temp

FULL_NAME = "io.containerd.image.name"
"""Annotation by which `docker load` names an image of a layout."""
_FOLDER = "blobs/sha256"


class Piece(msgspec.Struct, frozen=True):
    """A file inside the archive."""

    offset: int
    size: int


class Archive:
    """One file (`image.output.Output`). The layers are collected beside it."""

    def __init__(self, path: Path, name: Reference | None, boot: Boot) -> None:
        """Raises `UsageError` for a path that no file can be written to."""
        self._path = Path(os.path.normpath(path.absolute()))
        there, parent = self._path.exists(), self._path.parent
        if (there and not self._path.is_file()) or not parent.is_dir():
            what = "is no file" if there else "lies in a folder that is not there"
            raise UsageError(what, where=str(path), hint="name a file to write, in a folder that is there")
        self._name = name
        self._kept = Kept(boot)
        self._stack = ExitStack()
        self._held = self._pieces() if self._kept.same(self._path) else {}
        with writing(parent):
            temp = Temp(parent / f".{self._path.name}.repro-env")
            temp.clean()
            self._scratch = self._stack.enter_context(temp.folder())

    def has(self, blob: Blob) -> bool:
        piece = self._held.get(_place(blob.digest))
        return piece is not None and piece.size == blob.size

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        with roomy(self._scratch), Temp(self._scratch / "temp").folder() as temporary:
            blob = sink(chunks, temporary / "blob", GZIP, known)
            (temporary / "blob").replace(self._scratch / hex_of(blob.digest))
        return blob

    def finish(self, image: Image) -> str:
        config, manifest = image.config_blob, image.manifest_blob
        texts = {
            _place(config.digest): image.config,
            _place(manifest.digest): image.manifest,
            "index.json": codec.canonical(self._index(manifest)),
            "manifest.json": codec.canonical([self._listed(image)]),
            "oci-layout": VERSION,
        }
        files = {_place(one.digest): one for one in image.layers}
        if self._held.keys() != {*texts, *files} or any(self._read(name) != text for name, text in texts.items()):
            sizes = {**{name: len(text) for name, text in texts.items()}, **{name: one.size for name, one in files.items()}}
            entries = ordered(Entry(name, "file", size=size) for name, size in sizes.items())
            with roomy(self._path.parent):
                atomic_stream(self._path, tar.write(self._members(entries, texts)), sum(sizes.values()), flush=False)
            self._kept.same(self._path, now=True)
        return f"docker-archive:{self._path}" + (f" ({self._name})" if self._name else "")

    def close(self) -> None:
        self._stack.close()

    def _members(self, entries: list[Entry], texts: dict[str, bytes]) -> Members:
        for entry in entries:
            if entry.kind != "file":
                yield entry, ()
            elif entry.path in texts:
                yield entry, (texts[entry.path],)
            else:
                yield entry, self._layer(entry.path)

    def _layer(self, place: str) -> Iterator[bytes]:
        made = self._scratch / place.rpartition("/")[2]
        if made.is_file():
            with made.open("rb") as file:
                yield from _chunks(cast("BinaryIO", file), Piece(0, made.stat().st_size))
            made.unlink()  # so that the layers are not there twice for long
        elif place in self._held:
            with self._path.open("rb") as file:
                yield from _chunks(cast("BinaryIO", file), self._held[place])
        else:
            raise ArtifactError("is not there", where=place, hint="rebuild again")

    def _read(self, name: str) -> bytes:
        with self._path.open("rb") as file:
            return b"".join(_chunks(cast("BinaryIO", file), self._held[name]))

    def _pieces(self) -> dict[str, Piece]:
        """Where each file lies in the archive, which we wrote."""
        with tarfile.open(self._path) as archive:
            return {one.name: Piece(one.offset_data, one.size) for one in archive if one.isreg()}

    def _index(self, manifest: Blob) -> dict[str, object]:
        entry: dict[str, object] = {"digest": manifest.digest, "mediaType": manifest.media_type, "size": manifest.size}
        if self._name is not None:
            entry["annotations"] = {FULL_NAME: str(self._name), NAME: self._name.tag}
        return {"manifests": [entry], "mediaType": INDEX, "schemaVersion": 2}

    def _listed(self, image: Image) -> dict[str, object]:
        return {
            "Config": _place(image.config_blob.digest),
            "Layers": [_place(one.digest) for one in image.layers],
            "RepoTags": [str(self._name)] if self._name is not None else [],
        }


def _place(digest: str) -> str:
    return f"{_FOLDER}/{hex_of(digest)}"


def _chunks(file: BinaryIO, piece: Piece) -> Iterator[bytes]:
    file.seek(piece.offset)
    left = piece.size
    while left and (chunk := file.read(min(left, CHUNK))):
        left -= len(chunk)
        yield chunk
