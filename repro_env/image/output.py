"""Where an image is sent: the one interface between what makes layers and what keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from repro_env.image.manifest import Image
from repro_env.model.image import Blob


class Output(Protocol):
    """Takes the blobs of one image, in any order, then the image.

    `has` and `take` are called in forked worker processes, several at a time, `finish` once in the process that
    made the output: what they share is on disk or at the server.
    """

    def has(self, blob: Blob) -> bool:
        """Whether this blob is there, whole and checked, or can be had there without sending it: then it is not sent."""
        ...

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        """Keep a gzip layer and say what it was. With `known`, nothing is kept unless its bytes are that blob.

        Chunks that are no iterator may be iterated again: they are made anew, the same.
        Raises `ArtifactError` for other bytes than `known`, `DiskError`, `NetworkError`. An exception of `chunks`
        passes through, and nothing of the layer is kept.
        """
        ...

    def finish(self, image: Image) -> str:
        """Keep config and manifest, last, since they say that all layers are there. Returns a line for people: where it is."""
        ...

    def close(self) -> None:
        """Remove what an output that did not finish has left half done. Always called, last."""
        ...
