"""Where the layers of an image go: the store, which unpacks them, or an output, which keeps them as gzip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from repro_env.delivery.builder.build import Build
from repro_env.delivery.builder.content import Content
from repro_env.delivery.builder.layers import Task
from repro_env.delivery.builder.sources import Origin
from repro_env.delivery.builder.worker import Made
from repro_env.oci import config, layer
from repro_env.oci.entry import CHUNK, Members
from repro_env.oci.gzipencoder import ENCODER
from repro_env.oci.manifest import Image
from repro_env.schema import codec
from repro_env.schema.image import GZIP, Blob, Layer, LayerKind, Packed
from repro_env.schema.progress import Advance, Tell, counted
from repro_env.schema.spec import Spec
from repro_env.store.specs.blobs import BLOB_DIGEST, SpecBlobs, file_key
from repro_env.store.store import Store


class StoreSink:
    """Unpacks layers into the store."""

    origin: Origin = "layer"
    accepts_installed_files = True
    in_workers = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self.writer = self

    def has(self, task: Task) -> bool:
        return self._store.layers.path(task.diff_id) is not None

    def write(self, task: Task, content: Content, advance: Advance) -> None:
        """See `worker.Writer`."""
        members = _counted_members(content.members(), advance)
        if not self.has(task):
            self._store.layers.unpack(content.diff_id, members, size=task.size)
        else:
            layer.check_diff_id(layer.diff_id(members), content.diff_id)

    def note(self, task: Task, made: Made, *, is_own: bool) -> None:
        pass


def _counted_members(members: Members, advance: Advance) -> Members:
    for entry, chunks in members:
        yield entry, (counted(chunks, advance) if entry.size > CHUNK else chunks)
        if entry.size <= CHUNK:
            advance(entry.size)


class Output(Protocol):
    """A destination: takes the layers of one image in any order and from several threads, then the image."""

    @property
    def in_workers(self) -> bool:
        """Whether copies of it in other processes can take layers too."""
        ...

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


_PACKED = "packed"
"""Kind of the facts of layers' gzip blobs, by `<compression> <diff ID>`: another compression gives other bytes."""
_COMPRESSIONS = {"conda": "zlib", "distributions": f"stitch-{ENCODER}", "marker": f"stitch-{ENCODER}"}
"""By kind of layer; a bundled tree is sent as its capture wrote it."""


class OutputWriter(msgspec.Struct, frozen=True):
    """Sends layers to an output, as gzip."""

    output: Output

    def write(self, task: Task, content: Content, advance: Advance) -> Blob:  # noqa: ARG002
        """See `worker.Writer`."""
        return self.output.take(lambda: counted(content.gzip(), advance))


class OutputSink:
    """Sends layers to an output. Nothing is unpacked.

    The blob of a layer is remembered after it was proven: it was decompressed, and the result had the diff ID.
    """

    origin: Origin = "output"
    accepts_installed_files = False

    def __init__(self, output: Output, spec: Spec, directory: Path, store: Store) -> None:
        self.packed: dict[str, Packed] = {}
        """The layers in the output, by the diff IDs of the tasks."""
        self._output = output
        self.writer = OutputWriter(output)
        self.in_workers = output.in_workers
        self._facts = store.facts
        self._blobs = SpecBlobs(directory / "blobs")
        known = map(self._recall, spec.expected.layers)
        self._known = {packed.diff_id: packed for packed in known if packed is not None}

    def has(self, task: Task) -> bool:
        known = self._known.get(task.diff_id)
        if known is None or not self._output.has(known):
            return False
        self.packed[task.diff_id] = known
        return True

    def note(self, task: Task, made: Made, *, is_own: bool) -> None:
        assert made.blob is not None  # noqa: S101
        packed = self.packed[task.diff_id] = Packed(diff_id=made.diff_id, blob=made.blob)
        if task.kind is not None and is_own:
            self._remember(task.kind, packed)

    def _recall(self, expected: Layer) -> Packed | None:
        """Return the proven blob of a layer, or None. That of a bundled tree is the file in `blobs/`, if there is one."""
        diff_id, path = expected.diff_id, self._bundled(expected.kind, expected.diff_id)
        if path is None:
            return self._facts.recall(_PACKED, f"{_COMPRESSIONS.get(expected.kind, 'bundled')} {diff_id}", Packed)
        digest = self._facts.get(BLOB_DIGEST, file_key(path)) if path.suffix == ".gz" else None
        if digest is None:
            return None
        return Packed(diff_id=diff_id, blob=Blob(media_type=GZIP, digest=digest.decode(), size=path.stat().st_size))

    def _remember(self, kind: LayerKind, packed: Packed) -> None:
        self._facts.put(_PACKED, f"{_COMPRESSIONS.get(kind, 'bundled')} {packed.diff_id}", codec.canonical(packed))
        path = self._bundled(kind, packed.diff_id)
        if path is not None and path.suffix == ".gz":
            self._facts.put(BLOB_DIGEST, file_key(path), packed.blob.digest.encode())

    def _bundled(self, kind: LayerKind, diff_id: str) -> Path | None:
        return None if kind in _COMPRESSIONS else self._blobs.path(diff_id)


class SentImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an output."""

    image: Image
    layers: tuple[Packed, ...]
    """Lowest first."""
    where: str
    """Where it is, as a line for the user."""
    made: tuple[str, ...]
    """Diff IDs of the layers that were sent; the output had the others."""
    fetched: int
    """Bytes downloaded."""
    sent: int
    """Bytes sent."""

    @property
    def image_id(self) -> str:
        return self.image.config_blob.digest


def send(
    spec: Spec, directory: Path, store: Store, output: Output, *, tell: Tell, source: bool = False, user: str = ""
) -> SentImage:
    """Send the image of a spec to an output. `directory` holds the spec and `blobs/`.

    `source`: add the source as the last layer, at its captured path. `user`: the `UID` or `UID:GID` that a container runs as.
    With either, the image ID differs from the spec's. Raises `ArtifactError`, `NetworkError`, `DiskError`, `BuildError`.
    """
    sink = OutputSink(output, spec, directory, store)
    build = Build(spec, directory, store, sink, source="layer" if source else None)
    build.run(build.plan(ask=False), tell, "packing")
    layers = tuple(sink.packed[task.diff_id] for task in build.tasks)
    own = spec.observed.source if source else None
    image = Image(
        config.config(spec.identity, [layer.diff_id for layer in layers], source=own, user=user),
        tuple(layer.blob for layer in layers),
    )
    return SentImage(
        image=image,
        layers=layers,
        where=output.finish(image),
        made=tuple(sink.packed[task.diff_id].diff_id for task in build.made),
        fetched=build.sources.received.total,
        sent=build.written.total,
    )
