"""`docker:[NAME]`: the image in a container engine, with the expected image ID. Only layers that the engine lacks are sent.

The image is streamed to `docker load`: a tar with the config, the layers and a list of them (Image spec v1.2, "Combined
Image JSON + Filesystem Changeset Format"). Docker skips a layer that it has with the same layers below it, so these need
not be in the stream (figures: docs/decisions/0017-into-the-engine.md). Podman needs all layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec

from repro_env.delivery.targets.blobfiles import BlobFiles
from repro_env.io.engine import Engine
from repro_env.oci import tar
from repro_env.oci.config import ImageConfig
from repro_env.oci.entry import Entry, Members
from repro_env.oci.manifest import Image
from repro_env.registry.reference import parse
from repro_env.schema import codec
from repro_env.schema.errors import BuildError, EngineError, UsageError
from repro_env.schema.image import Packed
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp

PATIENCE = 900.0
"""Seconds without an answer after which an engine that unpacks counts as failed."""


class Layer(msgspec.Struct, frozen=True):
    """One layer to send, plain or gzip."""

    diff_id: str
    size: Callable[[], int]
    """Size in bytes of what `chunks` yields."""
    chunks: Callable[[], Iterable[bytes]]


def default_name(image_id: str) -> str:
    """Return a name for an image without one, which the next `docker image prune` would remove."""
    return f"repro-env:{hex_of(image_id)[:12]}"


def with_tag(name: str) -> str:
    """Return an image name with its tag. Raises `UsageError` if the name is invalid."""
    if parse(name).digest:
        raise UsageError(
            "a name with a digest cannot be used, because the content of the image determines its digest",
            where=name,
            hint="use a tag",
        )
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def has_image(engine: Engine, image_id: str) -> bool:
    """Return whether the engine has the image with this ID. Raises `EngineError`."""
    return str(_inspect(engine, image_id).get("Id")).removeprefix("sha256:") == hex_of(image_id)


def _inspect(engine: Engine, image_id: str) -> dict[str, Any]:
    """Return the details of an image; empty if the engine does not have it."""
    try:
        with engine.talk("look for an image"):
            details: dict[str, Any] = engine.client.api.inspect_image(image_id)
            return details
    except EngineError as error:
        if error.status == 404:
            return {}
        raise


def count_known_layers(engine: Engine, diff_ids: Sequence[str]) -> int:
    """Return how many of these layers, counted from the lowest, need not be sent. Raises `EngineError`."""
    if engine.facts.product != "Docker":
        return 0
    with engine.talk("list its images"):
        images = engine.client.api.images(all=True)
    known = [(_inspect(engine, image["Id"]).get("RootFS") or {}).get("Layers") or [] for image in images]
    pairs = (takewhile(lambda pair: pair[0] == pair[1], zip(layers, diff_ids, strict=False)) for layers in known)
    return max((len(list(equal)) for equal in pairs), default=0)


def load(engine: Engine, config: bytes, layers: Sequence[Layer], name: str) -> None:
    """Load an image into an engine and name it. Layers that the engine has are not read.

    Raises `EngineError`, and `BuildError` if the engine made a different image.
    """
    image_id = "sha256:" + hashlib.sha256(config).hexdigest()
    if not has_image(engine, image_id):
        known_count = count_known_layers(engine, [layer.diff_id for layer in layers])
        try:
            _send(engine, stream(config, layers, name, known_count))
        except EngineError:
            if not known_count:
                raise
            _send(engine, stream(config, layers, name, 0))  # an image and its layers were removed meanwhile
    repository, _, tag = name.rpartition(":")
    with engine.talk("name the image"):
        if not has_image(engine, image_id):
            raise BuildError(
                f"the engine made a different image than {image_id}", where=name, hint="rebuild with --output oci:DIR"
            )
        engine.client.api.tag(image_id, repository, tag, force=True)


def stream(config: bytes, layers: Sequence[Layer], name: str, known_count: int) -> Iterator[bytes]:
    """Return the tar for `docker load`. The lowest `known_count` layers are listed but not included."""
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    paths = [f"{hex_of(layer.diff_id)}.tar" for layer in layers]
    manifest = codec.canonical([{"Config": config_name, "Layers": paths, "RepoTags": [name]}])

    def members() -> Members:
        yield Entry("manifest.json", "file", size=len(manifest)), (manifest,)
        yield Entry(config_name, "file", size=len(config)), (config,)
        for path, layer in dict(zip(paths[known_count:], layers[known_count:], strict=True)).items():  # equal ones are one file
            yield Entry(path, "file", size=layer.size()), layer.chunks()

    return tar.write(members())


def _send(engine: Engine, chunks: Iterator[bytes]) -> None:
    api = engine.client.api
    timeout = api.timeout
    api.timeout = PATIENCE
    try:
        with engine.talk("take the image"):
            problems = [str(line.get("error")) for line in api.load_image(chunks) if line.get("error")]
    finally:
        api.timeout = timeout
    if problems:
        raise EngineError(
            f"the engine cannot take the image: {problems[0]}",
            where=engine.address,
            hint="is there room where it keeps its images (docker system df)?",
        )


class EngineOutput(BlobFiles):
    """An output to a container engine (`delivery.builder.sinks.Output`). Layers are kept as files and sent when all are there."""

    def __init__(self, engine: Engine, name: str, temp: Temp, diff_ids: Sequence[str]) -> None:
        """`name`: the image's name, or empty for `default_name`. `temp`: where the layers are kept until they are sent.

        `diff_ids`: the layers of the image, lowest first; those that the engine has are not taken. Raises `EngineError`, and
        `UsageError` for an invalid name.
        """
        self._engine = engine
        self._name = with_tag(name) if name else ""
        self._stack = ExitStack()
        super().__init__(self._stack.enter_context(temp.directory()), temp)
        self._known = set(diff_ids[: count_known_layers(engine, diff_ids)])

    def has(self, layer: Packed) -> bool:
        return layer.diff_id in self._known

    def finish(self, image: Image) -> str:
        image_id = image.config_blob.digest
        name = self._name or default_name(image_id)
        diff_ids = msgspec.json.decode(image.config, type=ImageConfig).diff_ids
        layers = [
            Layer(diff_id, partial(int, blob.size), partial(self.read, blob.digest))
            for diff_id, blob in zip(diff_ids, image.layers, strict=True)
        ]
        load(self._engine, image.config, layers, name)
        facts = self._engine.facts
        return f"{name} in {facts.product} {facts.version} ({image_id})"

    def close(self) -> None:
        self._stack.close()
        self._engine.close()
