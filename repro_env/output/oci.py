"""`oci:DIR[:TAG]`: an OCI image layout (OCI image spec, image-layout.md), made, or added to.

Safe beside other builds and under `kill -9`: each file is moved into place when it is whole, the index last and
under a lock. A blob that is there is hashed before it is trusted, once while its file stays as it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from repro_env.image.manifest import Image
from repro_env.io.files import atomic_write, locked, read_regular
from repro_env.model import codec
from repro_env.model.errors import ArtifactError, UsageError
from repro_env.model.image import GZIP, INDEX, Blob
from repro_env.output.kept import Kept, roomy, sink, writing
from repro_env.store.boot import Boot
from repro_env.store.digests import hex_of
from repro_env.store.temp import Temp

NAME = "org.opencontainers.image.ref.name"
"""Annotation of an image in the index (OCI image spec, annotations.md)."""
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
_MAX_INDEX = 16 << 20


class Oci:
    """One image layout (`image.output.Output`)."""

    def __init__(self, folder: Path, tag: str, boot: Boot) -> None:
        """`folder` may be a layout, empty, or missing; nothing is written yet. Raises `UsageError` for any other folder."""
        self._folder = Path(os.path.normpath(folder.absolute()))
        self._blobs = self._folder / "blobs" / "sha256"
        self._tag = tag
        self._temp = Temp(self._folder / ".repro-env")
        self._kept = Kept(boot)
        self._check()

    def has(self, blob: Blob) -> bool:
        return self._kept.whole(self._path(blob.digest), blob)

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        self._make()
        with roomy(self._folder), self._temp.folder() as temporary:
            blob = sink(chunks, temporary / "blob", GZIP, known)
            path = self._path(blob.digest)
            _free(path)
            (temporary / "blob").replace(path)
            self._kept.see(path, blob)
        return blob

    def finish(self, image: Image) -> str:
        self._make()
        with writing(self._folder):
            for blob, data in ((image.config_blob, image.config), (image.manifest_blob, image.manifest)):
                path = self._path(blob.digest)
                if not self._kept.whole(path, blob):
                    atomic_write(path, data, flush=False)
                    self._kept.see(path, blob)
            self._name(image.manifest_blob)
        return f"oci:{self._folder}" + (f":{self._tag}" if self._tag else "")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._temp.clean()

    def _path(self, digest: str) -> Path:
        return self._blobs / hex_of(digest)

    def _check(self) -> None:
        try:
            if not self._folder.exists() or not (names := set(os.listdir(self._folder))):  # noqa: PTH208
                return
        except NotADirectoryError:
            raise UsageError("is no folder", where=str(self._folder), hint="name another one") from None
        started = names <= {"blobs", ".repro-env"}  # by a build that was killed, or one that is at it
        if not started and not _is_layout(self._folder / "oci-layout"):
            raise UsageError("is neither empty nor an OCI image layout", where=str(self._folder), hint="name another folder")

    def _make(self) -> None:
        mark = self._folder / "oci-layout"
        with writing(self._folder):
            self._blobs.mkdir(parents=True, exist_ok=True)
            if not mark.is_file():
                with self._temp.folder() as temporary, contextlib.suppress(FileExistsError):
                    (temporary / "mark").write_bytes(VERSION)
                    os.link(temporary / "mark", mark)  # unlike a rename, in nobody's place

    def _name(self, manifest: Blob) -> None:
        """Put the image into the index, in place of an earlier one of the same name."""
        path = self._folder / "index.json"
        with locked(self._folder / "oci-layout"):  # never replaced, so it can be locked
            index = read_index(path)
            entry: dict[str, Any] = {"digest": manifest.digest, "mediaType": manifest.media_type, "size": manifest.size}
            if self._tag:
                entry["annotations"] = {NAME: self._tag}
            others = [one for one in index["manifests"] if _tag_of(one) != self._tag]
            index["manifests"] = sorted([*others, entry], key=lambda one: (_tag_of(one), str(one.get("digest"))))
            data = codec.canonical(index)
            if not path.is_file() or read_regular(path, _MAX_INDEX) != data:
                # What others put there is not ours to lose in a power cut; our own is made again.
                atomic_write(path, data, flush=bool(others))


def read_index(path: Path) -> dict[str, Any]:
    """The index of a layout; an empty one when there is none. Raises `ArtifactError` for what cannot be one."""
    try:
        index = msgspec.json.decode(read_regular(path, _MAX_INDEX))
    except FileNotFoundError:
        return {"manifests": [], "mediaType": INDEX, "schemaVersion": 2}
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror}", where=str(path), hint="name another folder") from None
    except (msgspec.DecodeError, RecursionError) as error:  # the last: nested too deep
        raise ArtifactError(f"is no index of an image layout: {error}", where=str(path), hint="name another folder") from None
    listed = index.get("manifests") if isinstance(index, dict) else None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed) or index.get("schemaVersion") != 2:
        raise ArtifactError("is no index of an image layout", where=str(path), hint="name another folder")
    found: dict[str, Any] = index
    return found


def _free(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        raise ArtifactError("is a folder where a blob belongs", where=str(path), hint="remove it, or name another folder")


def _tag_of(entry: dict[str, Any]) -> str:
    annotations = entry.get("annotations")
    return str(annotations.get(NAME, "")) if isinstance(annotations, dict) else ""


def _is_layout(path: Path) -> bool:
    try:
        mark = msgspec.json.decode(read_regular(path, 1000))
    except (OSError, msgspec.DecodeError, RecursionError):
        return False
    return isinstance(mark, dict) and mark.get("imageLayoutVersion") == "1.0.0"
