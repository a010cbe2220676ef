"""`docker:[NAME]`: the image in a container engine, with the expected image ID. Only layers that the engine lacks are sent.

The image is streamed to `docker load`, as `docker-archive:` writes it. An engine names it by the digest of its config, or, in
Docker's containerd store, of its manifest: both prove the content. Docker's old store skips a layer that it has with the same
layers below it, so these need not be in the stream (figures: docs/decisions/0058-manifests-in-engines.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path

import msgspec

from repro_env.delivery.targets import archive
from repro_env.delivery.targets.blobfiles import BlobFiles
from repro_env.io.engine import Engine
from repro_env.io.files import room
from repro_env.oci import tar
from repro_env.oci.config import ImageConfig
from repro_env.oci.manifest import Image
from repro_env.registry.reference import parse
from repro_env.schema.errors import BuildError, EngineError, UsageError
from repro_env.schema.image import Blob, Packed
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp

PATIENCE = 900.0
"""Seconds without an answer after which an engine that unpacks counts as failed."""


class Layer(msgspec.Struct, frozen=True):
    """One layer to send, plain or gzip."""

    diff_id: str
    blob: Blob
    chunks: Callable[[], Iterable[bytes]]
    """Returns the bytes of the blob."""


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


def count_known_layers(engine: Engine, diff_ids: Sequence[str]) -> int:
    """Return how many of these layers, counted from the lowest, need not be sent. Raises `EngineError`.

    The containerd store keeps layers as they were sent, by digests that it does not report, so it needs all of them.
    """
    if engine.facts.product != "Docker" or engine.facts.has_manifests:
        return 0
    with engine.talk("list its images"):
        images = engine.client.api.images(all=True)
    known = [(engine.inspect_image(image["Id"]).get("RootFS") or {}).get("Layers") or [] for image in images]
    pairs = (takewhile(lambda pair: pair[0] == pair[1], zip(layers, diff_ids, strict=False)) for layers in known)
    return max((len(list(equal)) for equal in pairs), default=0)


def load(engine: Engine, config: bytes, layers: Sequence[Layer], name: str) -> None:
    """Load an image into an engine and name it. Layers that the engine has are not read.

    Raises `EngineError`, and `BuildError` if the engine made a different image.
    """
    image = Image(config, tuple(layer.blob for layer in layers))
    own_id = image.manifest_blob.digest if engine.facts.has_manifests else image.config_blob.digest
    if not engine.has_image(own_id):
        known_count = count_known_layers(engine, [layer.diff_id for layer in layers])
        try:
            _send(engine, stream(image, layers, name, known_count), own_id)
        except EngineError:
            if not known_count:
                raise
            _send(engine, stream(image, layers, name, 0), own_id)  # an image and its layers were removed meanwhile
    if not engine.has_image(own_id):
        what = f"the engine made a different image than {image.config_blob.digest}"
        raise BuildError(what, where=name, hint="rebuild with --output oci:DIR")
    repository, _, tag = name.rpartition(":")
    with engine.talk("name the image"):
        engine.client.api.tag(own_id, repository, tag, force=True)


def stream(image: Image, layers: Sequence[Layer], name: str, known_count: int) -> Iterator[bytes]:
    """Return the tar for `docker load`. The lowest `known_count` layers are listed but not included."""
    by_digest = {layer.blob.digest: layer for layer in layers}  # equal ones are one file
    sent = {layer.blob.digest for layer in layers[known_count:]}
    return tar.write(
        archive.members(image, parse(name), lambda digest: by_digest[digest].chunks(), missing=by_digest.keys() - sent)
    )


def save(engine: Engine, name: str, path: Path) -> None:
    """Write an image of the engine to a new file, as `docker save` does. Raises `EngineError`, `DiskError`."""
    with room(path.parent), path.open("xb") as file, _patience(engine, "read the image"):
        file.writelines(engine.client.api.get_image(name))


@contextmanager
def _patience(engine: Engine, action: str) -> Iterator[None]:
    api = engine.client.api
    timeout = api.timeout
    api.timeout = PATIENCE
    try:
        with engine.talk(action):
            yield
    finally:
        api.timeout = timeout


def _send(engine: Engine, chunks: Iterator[bytes], own_id: str) -> None:
    with _patience(engine, "take the image"):
        problems = [str(line.get("error")) for line in engine.client.api.load_image(chunks) if line.get("error")]
    if problems:
        with suppress(EngineError), engine.talk("remove the image"):  # the containerd store keeps one that it cannot unpack
            engine.client.api.remove_image(own_id, force=True)
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
            Layer(diff_id, blob, partial(self.read, blob.digest)) for diff_id, blob in zip(diff_ids, image.layers, strict=True)
        ]
        load(self._engine, image.config, layers, name)
        facts = self._engine.facts
        return f"{name} in {facts.product} {facts.version} ({image_id})"

    def close(self) -> None:
        self._stack.close()
        self._engine.close()
