"""The interface between the code that produces layers and the destinations of an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from repro_env.oci.manifest import Image
from repro_env.schema.image import Blob, Packed


class Output(Protocol):
    """A destination: takes the layers of one image in any order and from several threads, then the image."""

    def has(self, layer: Packed) -> bool:
        """Return whether the destination has this layer, complete and checked."""
        ...

    def take(self, chunks: Callable[[], Iterator[bytes]]) -> Blob:
        """Store a gzip layer and return its descriptor. `chunks` returns its bytes, again with each call.

        Raises `DiskError` and `NetworkError`. An exception of `chunks` is passed on. Then nothing of the layer is stored.
        """
        ...

    def finish(self, image: Image) -> str:
        """Store config and manifest, after all layers. Returns a line that says where the image is."""
        ...

    def close(self) -> None:
        """Remove incomplete files. Always called last."""
        ...
