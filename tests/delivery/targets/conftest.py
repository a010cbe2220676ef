"""A small image, made by hand, for the tests of outputs."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from repro_env.delivery.builder.sinks import Output
from repro_env.oci.entry import Entry
from repro_env.oci.gzipencoder import stitch_layer
from repro_env.oci.manifest import Image, blob_of
from repro_env.schema.image import GZIP, Packed


def layer(text: bytes) -> bytes:
    return b"".join(stitch_layer([(Entry("file.txt", "file", size=len(text)), (text,))]))


def pieces(data: bytes) -> Iterator[bytes]:
    yield from (data[at : at + 100] for at in range(0, len(data), 100))


def packed(data: bytes) -> Packed:
    return Packed(diff_id="sha256:" + hashlib.sha256(gzip.decompress(data)).hexdigest(), blob=blob_of(data, GZIP))


def image(output: Output, *texts: bytes) -> Image:
    """Send a layer for each text unless the output has it, and return their image."""
    known = [packed(layer(text)) for text in texts]
    blobs = [
        one.blob if output.has(one) else output.take(partial(pieces, layer(text))) for one, text in zip(known, texts, strict=True)
    ]
    assert blobs == [one.blob for one in known]
    diff_ids = [one.diff_id for one in known]
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": diff_ids, "type": "layers"}}
    return Image(json.dumps(config).encode(), tuple(blobs))


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
