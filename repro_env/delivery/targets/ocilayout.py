"""`oci:DIR[:TAG]`: create an OCI image layout, or add an image to one (OCI image spec, image-layout.md).

Safe with concurrent builds and `kill -9`: each file is moved into place when it is complete, the index last and under a
lock. An existing blob is hashed before it is used.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from repro_env.delivery.targets.blobfiles import BlobFiles, write_errors
from repro_env.io.files import atomic_write, locked, read_regular
from repro_env.oci.manifest import Image, as_descriptor
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, UsageError
from repro_env.schema.image import INDEX, Blob, Packed
from repro_env.store.temporary import Temp

NAME = "org.opencontainers.image.ref.name"
"""Annotation of an image in the index (OCI image spec, annotations.md)."""
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
_TAG = re.compile(r"(?:[A-Za-z0-9]+(?:[-._+@/]+[A-Za-z0-9]+)*)?")
_MAX_INDEX = 16 << 20


class Oci(BlobFiles):
    """An output to an image layout (`delivery.builder.sinks.Output`)."""

    def __init__(self, directory: Path, tag: str) -> None:
        """`directory` may be a layout, empty, or missing. Raises `UsageError` for any other directory. Nothing is written yet."""
        if not _TAG.fullmatch(tag):
            what = "this is not a valid tag in an OCI layout"
            raise UsageError(what, where=tag[:200], hint="use letters, digits and `.-_+@/`")
        self._layout = Path(os.path.normpath(directory.absolute()))
        self._tag = tag
        super().__init__(self._layout / "blobs" / "sha256", Temp(self._layout / "blobs"))
        self._check()

    def has(self, layer: Packed) -> bool:
        return self.holds(layer.blob)

    def take(self, chunks: Callable[[], Iterator[bytes]]) -> Blob:
        self._make()
        return super().take(chunks)

    def finish(self, image: Image) -> str:
        self._make()
        with write_errors(self._layout):
            for blob, data in ((image.config_blob, image.config), (image.manifest_blob, image.manifest)):
                if not self.holds(blob):
                    atomic_write(self.path(blob.digest), data, flush=False)
            self._add_to_index(image.manifest_blob)
        return f"oci:{self._layout}" + (f":{self._tag}" if self._tag else "")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._temp.clean()

    def _check(self) -> None:
        names: set[str] = set()
        with write_errors(self._layout), contextlib.suppress(FileNotFoundError):
            names.update(os.listdir(self._layout))  # noqa: PTH208
        # A build that was killed or is still running has only this directory.
        if not names <= {"blobs"} and not _is_layout(self._layout / "oci-layout"):
            what = "the directory is neither empty nor an OCI image layout"
            raise UsageError(what, where=str(self._layout), hint="name another directory")

    def _make(self) -> None:
        mark = self._layout / "oci-layout"
        with write_errors(self._layout):
            (self._layout / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
            if not mark.is_file():
                with self._temp.directory() as temporary, contextlib.suppress(FileExistsError):
                    (temporary / "mark").write_bytes(VERSION)
                    os.link(temporary / "mark", mark)  # unlike a rename, this does not replace a file

    def _add_to_index(self, manifest: Blob) -> None:
        """Add the image to the index, and replace an earlier one with the same tag."""
        path = self._layout / "index.json"
        with locked(self._layout / "oci-layout"):  # this file is never replaced, so it can be locked
            index = read_index(path)
            entry: dict[str, Any] = {**as_descriptor(manifest), **({"annotations": {NAME: self._tag}} if self._tag else {})}
            others = [other for other in index["manifests"] if _tag_of(other) != self._tag]
            index["manifests"] = sorted([*others, entry], key=lambda other: (_tag_of(other), str(other.get("digest"))))
            # Images of other tools must survive a power cut. Our own can be built again.
            atomic_write(path, codec.canonical(index), flush=bool(others))


def read_index(path: Path) -> dict[str, Any]:
    """Read the index of a layout; without the file, return an empty one. Raises `ArtifactError` if it is invalid."""
    try:
        index = msgspec.json.decode(read_regular(path, _MAX_INDEX))
    except FileNotFoundError:
        return {"manifests": [], "mediaType": INDEX, "schemaVersion": 2}
    except (OSError, msgspec.DecodeError, RecursionError) as error:  # RecursionError: nested too deeply
        index = str(error)
    manifests = index.get("manifests") if isinstance(index, dict) and index.get("schemaVersion") == 2 else None
    if not isinstance(manifests, list) or not all(isinstance(manifest, dict) for manifest in manifests):
        what = "the file is not the index of an image layout" + (f": {index}" if isinstance(index, str) else "")
        raise ArtifactError(what, where=str(path), hint="name another directory")
    result: dict[str, Any] = index
    return result


def _tag_of(entry: dict[str, Any]) -> str:
    annotations = entry.get("annotations")
    return str(annotations.get(NAME, "")) if isinstance(annotations, dict) else ""


def _is_layout(path: Path) -> bool:
    try:
        mark = msgspec.json.decode(read_regular(path, 1000))
    except (OSError, msgspec.DecodeError, RecursionError):
        return False
    return isinstance(mark, dict) and mark.get("imageLayoutVersion") == "1.0.0"
