"""The interface between the code that produces layers and the destinations of an image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from repro_env.oci.manifest import Image
from repro_env.schema.image import Blob


class Output(Protocol):
    """A destination: takes the blobs of one image in any order, then the image.

    `has` and `take` are called in several forked worker processes at the same time, `finish` once in the process that
    created the output. So everything that they share is on disk or on the server.
    """

    def has(self, blob: Blob) -> bool:
        """Return whether the destination has this blob, complete and checked, or can get it without an upload."""
        ...

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        """Store a gzip layer and return its descriptor. With `known`, the layer is stored only if it is that blob.

        If `chunks` is not an iterator, it may be iterated again and gives the same bytes.
        Raises `ArtifactError` if the bytes are not `known`, `DiskError` and `NetworkError`. An exception of `chunks`
        is passed on. In all these cases nothing of the layer is stored.
        """
        ...

    def finish(self, image: Image) -> str:
        """Store config and manifest, after all layers. Returns a line that says where the image is."""
        ...

    def close(self) -> None:
        """Remove incomplete files. Always called last."""
        ...
