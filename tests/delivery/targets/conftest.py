"""A small image, made by hand, for the tests of outputs."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.delivery.target import Output
from repro_env.oci.entry import Entry
from repro_env.oci.gzipencoder import stitch_layer
from repro_env.oci.manifest import Image
from repro_env.schema.image import Blob
from repro_env.store.store import Store


@pytest.fixture
def store() -> Store:
    return Store.open()


def layer(text: bytes) -> bytes:
    return b"".join(stitch_layer([(Entry("file.txt", "file", size=len(text)), (text,))]))


def pieces(data: bytes) -> Iterator[bytes]:
    yield from (data[at : at + 100] for at in range(0, len(data), 100))


def image(output: Output, *texts: bytes) -> Image:
    """Send a layer for each text unless the output has it, and return their image."""
    blobs: list[Blob] = []
    diff_ids = []
    for text in texts:
        data = layer(text)
        diff_ids.append("sha256:" + hashlib.sha256(gzip.decompress(data)).hexdigest())
        known = Blob(
            media_type="application/vnd.oci.image.layer.v1.tar+gzip",
            digest="sha256:" + hashlib.sha256(data).hexdigest(),
            size=len(data),
        )
        blobs.append(known if output.has(known) else output.take(pieces(data), known))
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": diff_ids, "type": "layers"}}
    return Image(json.dumps(config).encode(), tuple(blobs))


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
