"""`oci:DIR[:TAG]`: create an OCI image layout, or add an image to one (OCI image spec, image-layout.md).

Safe with concurrent builds and `kill -9`: each file is moved into place when it is complete, the index last and under a
lock. An existing blob is hashed before it is used, and hashed again after any change.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from repro_env.delivery.targets.hashedfiles import HashedFiles, space_errors, write_blob, write_errors
from repro_env.io.files import atomic_write, locked, read_regular
from repro_env.oci.manifest import Image
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, UsageError
from repro_env.schema.image import GZIP, INDEX, Blob
from repro_env.store.bootmarks import Boot
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp

NAME = "org.opencontainers.image.ref.name"
"""Annotation of an image in the index (OCI image spec, annotations.md)."""
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
_MAX_INDEX = 16 << 20


class Oci:
    """An output to an image layout (`delivery.target.Output`)."""

    def __init__(self, directory: Path, tag: str, boot: Boot) -> None:
        """`directory` may be a layout, empty, or missing. Raises `UsageError` for any other directory. Nothing is written yet."""
        self._directory = Path(os.path.normpath(directory.absolute()))
        self._blobs = self._directory / "blobs" / "sha256"
        self._tag = tag
        self._temp = Temp(self._directory / ".repro-env")
        self._hashed = HashedFiles(boot)
        self._check()

    def has(self, blob: Blob) -> bool:
        return self._hashed.has_blob(self._path(blob.digest), blob)

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        self._make()
        with space_errors(self._directory), self._temp.directory() as temporary:
            blob = write_blob(chunks, temporary / "blob", GZIP, known)
            path = self._path(blob.digest)
            _check_not_directory(path)
            (temporary / "blob").replace(path)
            self._hashed.add(path, blob)
        return blob

    def finish(self, image: Image) -> str:
        self._make()
        with write_errors(self._directory):
            for blob, data in ((image.config_blob, image.config), (image.manifest_blob, image.manifest)):
                path = self._path(blob.digest)
                if not self._hashed.has_blob(path, blob):
                    atomic_write(path, data, flush=False)
                    self._hashed.add(path, blob)
            self._name(image.manifest_blob)
        return f"oci:{self._directory}" + (f":{self._tag}" if self._tag else "")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._temp.clean()

    def _path(self, digest: str) -> Path:
        return self._blobs / hex_of(digest)

    def _check(self) -> None:
        try:
            if not self._directory.exists() or not (names := set(os.listdir(self._directory))):  # noqa: PTH208
                return
        except NotADirectoryError:
            raise UsageError("the path is not a directory", where=str(self._directory), hint="name another path") from None
        started = names <= {"blobs", ".repro-env"}  # by a build that was killed or is still running
        if not started and not _is_layout(self._directory / "oci-layout"):
            raise UsageError(
                "the directory is neither empty nor an OCI image layout",
                where=str(self._directory),
                hint="name another directory",
            )

    def _make(self) -> None:
        mark = self._directory / "oci-layout"
        with write_errors(self._directory):
            self._blobs.mkdir(parents=True, exist_ok=True)
            if not mark.is_file():
                with self._temp.directory() as temporary, contextlib.suppress(FileExistsError):
                    (temporary / "mark").write_bytes(VERSION)
                    os.link(temporary / "mark", mark)  # unlike a rename, this does not replace a file

    def _name(self, manifest: Blob) -> None:
        """Add the image to the index, and replace an earlier one with the same tag."""
        path = self._directory / "index.json"
        with locked(self._directory / "oci-layout"):  # this file is never replaced, so it can be locked
            index = read_index(path)
            entry: dict[str, Any] = {"digest": manifest.digest, "mediaType": manifest.media_type, "size": manifest.size}
            if self._tag:
                entry["annotations"] = {NAME: self._tag}
            other_images = [other for other in index["manifests"] if _tag_of(other) != self._tag]
            index["manifests"] = sorted([*other_images, entry], key=lambda other: (_tag_of(other), str(other.get("digest"))))
            data = codec.canonical(index)
            if not path.is_file() or read_regular(path, _MAX_INDEX) != data:
                # Images of other tools must survive a power cut. Our own can be built again.
                atomic_write(path, data, flush=bool(other_images))


def read_index(path: Path) -> dict[str, Any]:
    """Read the index of a layout; without the file, return an empty one. Raises `ArtifactError` if it is invalid."""
    try:
        index = msgspec.json.decode(read_regular(path, _MAX_INDEX))
    except FileNotFoundError:
        return {"manifests": [], "mediaType": INDEX, "schemaVersion": 2}
    except OSError as error:
        raise ArtifactError(
            f"the index cannot be read: {error.strerror}", where=str(path), hint="name another directory"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:  # RecursionError: nested too deeply
        raise ArtifactError(
            f"the file is not the index of an image layout: {error}", where=str(path), hint="name another directory"
        ) from None
    manifests = index.get("manifests") if isinstance(index, dict) else None
    if (
        not isinstance(manifests, list)
        or not all(isinstance(manifest, dict) for manifest in manifests)
        or index.get("schemaVersion") != 2
    ):
        raise ArtifactError("the file is not the index of an image layout", where=str(path), hint="name another directory")
    result: dict[str, Any] = index
    return result


def _check_not_directory(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        raise ArtifactError(
            "there is a directory in the place of a blob", where=str(path), hint="remove it, or name another directory"
        )


def _tag_of(entry: dict[str, Any]) -> str:
    annotations = entry.get("annotations")
    return str(annotations.get(NAME, "")) if isinstance(annotations, dict) else ""


def _is_layout(path: Path) -> bool:
    try:
        mark = msgspec.json.decode(read_regular(path, 1000))
    except (OSError, msgspec.DecodeError, RecursionError):
        return False
    return isinstance(mark, dict) and mark.get("imageLayoutVersion") == "1.0.0"
