"""`docker-archive:FILE[:NAME]`: one tar that `docker load`, podman and skopeo read. It is also an OCI layout, as in Docker 25.

The same image gives the same bytes. The file is replaced only when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from repro_env.delivery.targets.hashedfiles import space_errors, write_blob, write_errors
from repro_env.delivery.targets.ocilayout import NAME, VERSION
from repro_env.io.files import atomic_stream
from repro_env.oci import tar
from repro_env.oci.entry import CHUNK, Entry, Members, sort_with_parents
from repro_env.oci.manifest import Image
from repro_env.registry.reference import Reference
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, UsageError
from repro_env.schema.image import GZIP, INDEX, Blob
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp

FULL_NAME = "io.containerd.image.name"
"""Annotation of a layout from which `docker load` takes the image's name."""
_DIRECTORY = "blobs/sha256"


class Archive:
    """An output to one file (`delivery.target.Output`). Layers are collected in a temporary directory next to it."""

    def __init__(self, path: Path, name: Reference | None) -> None:
        """Raises `UsageError` if no file can be written at the path."""
        self._path = Path(os.path.normpath(path.absolute()))
        exists, parent = self._path.exists(), self._path.parent
        if (exists and not self._path.is_file()) or not parent.is_dir():
            what = "the path is not a file" if exists else "the directory of the file does not exist"
            raise UsageError(what, where=str(path), hint="name a file in an existing directory")
        self._name = name
        self._stack = ExitStack()
        with write_errors(parent):
            temp = Temp(parent / f".{self._path.name}.repro-env")
            temp.clean()
            self._scratch = self._stack.enter_context(temp.directory())

    def has(self, blob: Blob) -> bool:
        return (self._scratch / hex_of(blob.digest)).exists()

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
        sizes = {name: len(data) for name, data in metadata.items()}
        sizes |= {_blob_path(layer.digest): layer.size for layer in image.layers}
        entries = sort_with_parents(Entry(name, "file", size=size) for name, size in sizes.items())
        with space_errors(self._path.parent):
            atomic_stream(self._path, tar.write(self._members(entries, metadata)), sum(sizes.values()), flush=False)
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
        path = self._scratch / member.rpartition("/")[2]
        if not path.is_file():
            raise ArtifactError("the layer is missing", where=member, hint="rebuild again")
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
        path.unlink()  # so that the layers do not take the space twice for long

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
    return f"{_DIRECTORY}/{hex_of(digest)}"
