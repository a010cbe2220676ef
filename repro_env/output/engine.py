"""`docker:[NAME]`: the image in a container engine, under our image ID. Only the layers that the engine lacks are sent.

As `docker load` takes it, in a stream: a tar with the config, the layers and a list of them (Image spec v1.2,
"Combined Image JSON + Filesystem Changeset Format"). Docker leaves out a layer when it has one with the same layers
below it, so those need not be in the stream (docs/decisions/0017-into-the-engine.md has the figures). Podman wants all.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from repro_env.image import tar
from repro_env.image.entry import CHUNK, Entry
from repro_env.image.manifest import Image
from repro_env.io.engine import Engine
from repro_env.io.files import room
from repro_env.model import codec
from repro_env.model.errors import BuildError, EngineError, UsageError
from repro_env.model.image import GZIP, Blob, Packed
from repro_env.output.kept import sink
from repro_env.registry.reference import parse
from repro_env.store.digests import hex_of
from repro_env.store.temp import Temp

PATIENCE = 900.0
"""Seconds that an engine may be silent while it unpacks."""


class Layer(msgspec.Struct, frozen=True):
    """One layer as it is sent: plain or gzip."""

    diff_id: str
    size: Callable[[], int]
    """Bytes of what `chunks` gives."""
    chunks: Callable[[], Iterable[bytes]]


def default_name(image_id: str) -> str:
    """An image without a name would go with the next `docker image prune`."""
    return f"repro-env:{hex_of(image_id)[:12]}"


def tagged(name: str) -> str:
    """With its tag. Raises `UsageError` for what is no name of an image, before anything is sent."""
    if parse(name).digest:
        raise UsageError("names the image by a digest, which follows from it", where=name, hint="name a tag")
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def has(engine: Engine, image_id: str) -> bool:
    """Whether the engine has this very image. Raises `EngineError`."""
    try:
        with engine.talk("look for the image"):
            found = engine.client.api.inspect_image(image_id)
    except EngineError as error:
        if error.status == 404:
            return False
        raise
    return _id(found) == image_id


def below(engine: Engine, diff_ids: Sequence[str]) -> int:
    """How many of these layers, from the lowest on, the engine can be left to find by itself. Raises `EngineError`."""
    if engine.facts.product != "Docker":
        return 0
    with engine.talk("list its images"):
        listed = engine.client.api.images(all=True)
    best = 0
    for one in listed:
        try:
            with engine.talk("look into an image"):
                found = engine.client.api.inspect_image(one["Id"])
        except EngineError as error:
            if error.status != 404:
                raise
            continue  # gone meanwhile
        layers = (found.get("RootFS") or {}).get("Layers") or []
        same = 0
        for have, want in zip(layers, diff_ids, strict=False):
            if have != want:
                break
            same += 1
        best = max(best, same)
        if best == len(diff_ids):
            break
    return best


def load(engine: Engine, config: bytes, layers: Sequence[Layer], name: str) -> None:
    """Put an image into an engine and give it a name. Raises `EngineError`, `BuildError` when it became another image.

    A layer that the engine has is not read.
    """
    image_id = "sha256:" + hashlib.sha256(config).hexdigest()
    if not has(engine, image_id):
        known = below(engine, [one.diff_id for one in layers])
        try:
            _send(engine, stream(config, layers, name, known))
        except EngineError:
            if not known:
                raise
            _send(engine, stream(config, layers, name, 0))  # an image was removed meanwhile, and its layers with it
    repository, _, tag = name.rpartition(":")
    with engine.talk("name the image"):
        if not has(engine, image_id):
            raise BuildError(f"the engine made another image than {image_id}", where=name, hint="rebuild with --output oci:DIR")
        engine.client.api.tag(image_id, repository, tag, force=True)


def stream(config: bytes, layers: Sequence[Layer], name: str, known: int) -> Iterator[bytes]:
    """What `docker load` reads. The lowest `known` layers are named and left out."""
    own = f"{hashlib.sha256(config).hexdigest()}.json"
    paths = [f"{hex_of(one.diff_id)}.tar" for one in layers]
    listed = codec.canonical([{"Config": own, "Layers": paths, "RepoTags": [name]}])
    sent = dict(zip(paths[known:], layers[known:], strict=True))  # two equal layers are one file
    yield from _file("manifest.json", len(listed), [listed])
    yield from _file(own, len(config), [config])
    for path, one in sent.items():
        yield from _file(path, one.size(), one.chunks())
    yield bytes(2 * tar.BLOCK)


def _file(path: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield tar.header(Entry(path, "file", size=size))
    seen = 0
    for chunk in _batched(chunks):
        seen += len(chunk)
        yield chunk
    if seen != size:
        raise BuildError(f"has {seen} bytes, not {size}", where=path, hint="it changed while it was read; try again")
    yield bytes(-size % tar.BLOCK)


def _batched(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Larger pieces: each becomes a chunk of HTTP."""
    parts, size = [], 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= CHUNK:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _send(engine: Engine, chunks: Iterator[bytes]) -> None:
    api = engine.client.api
    before = api.timeout
    api.timeout = PATIENCE
    try:
        with engine.talk("take the image"):
            problems = [str(said.get("error")) for said in api.load_image(chunks) if said.get("error")]
    finally:
        api.timeout = before
    if problems:
        raise EngineError(
            f"the engine cannot take the image: {problems[0]}",
            where=engine.address,
            hint="is there room where it keeps its images (docker system df)?",
        )


def _id(found: dict[str, object]) -> str:
    name = str(found.get("Id") or "")
    return name if name.startswith("sha256:") else f"sha256:{name}"


class EngineOutput:
    """One image in an engine (`image.output.Output`): layers are kept as files until all are there, then sent at once."""

    def __init__(self, engine: Engine, name: str, temp: Temp, packed: Sequence[Packed], diff_ids: Sequence[str]) -> None:
        """`name`: as people say it; empty for `default_name`. `temp`: where the layers wait. `packed`: blobs of layers as far as known,
        `diff_ids`: of the image, lowest first, so that what the engine has is not made. Raises `EngineError`, `UsageError` for a name that no image can have."""
        self._engine = engine
        self._name = tagged(name) if name else ""
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(temp.folder())
        there = set(diff_ids[: below(engine, diff_ids)])
        self._there = {one.blob.digest for one in packed if one.diff_id in there}

    def has(self, blob: Blob) -> bool:
        return blob.digest in self._there or self._path(blob).exists()

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        young = self._folder / secrets.token_hex(8)
        with room(self._folder):
            try:
                blob = sink(chunks, young, GZIP, known)
            except BaseException:
                young.unlink(missing_ok=True)
                raise
            young.rename(self._path(blob))
        return blob

    def finish(self, image: Image) -> str:
        image_id = image.config_blob.digest
        name = self._name or default_name(image_id)
        diff_ids = msgspec.json.decode(image.config, type=_Config).rootfs.diff_ids
        layers = [
            Layer(diff_id, partial(int, blob.size), partial(self._chunks, blob))
            for diff_id, blob in zip(diff_ids, image.layers, strict=True)
        ]
        load(self._engine, image.config, layers, name)
        facts = self._engine.facts
        return f"{name} in {facts.product} {facts.version} ({image_id})"

    def close(self) -> None:
        self._stack.close()
        self._engine.close()

    def _path(self, blob: Blob) -> Path:
        return self._folder / hex_of(blob.digest)

    def _chunks(self, blob: Blob) -> Iterator[bytes]:
        try:
            file = self._path(blob).open("rb", buffering=0)
        except FileNotFoundError:
            raise BuildError(
                "the engine had this layer and lost it meanwhile", where=blob.digest, hint="start again: it is sent then"
            ) from None
        with file:
            while chunk := file.read(CHUNK):
                yield chunk


class _Rootfs(msgspec.Struct):
    diff_ids: list[str]


class _Config(msgspec.Struct):
    rootfs: _Rootfs
