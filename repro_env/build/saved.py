"""An image as an engine gives it out, read without writing it, and what it has other than a spec says."""

from __future__ import annotations

import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import msgspec

from repro_env.build.expected import node
from repro_env.image import foreign
from repro_env.image.entry import CHUNK, Entry
from repro_env.image.flat import flatten
from repro_env.image.foreign import Node, shown
from repro_env.io.engine import Engine
from repro_env.model.errors import ArtifactError

MAX_JSON = 16 << 20
"""Bytes of an image's manifest or config."""

_OWN_LABELS = {"io.buildah.version"}
"""What a builder puts on every image of its own accord: Podman's."""


class Made(msgspec.Struct, frozen=True):
    """An image as an engine gives it out."""

    config: Mapping[str, Any]
    layers: Sequence[Sequence[Node]]


def read(engine: Engine, image: str) -> Made:
    """Read an image out of the engine, as `docker save` does; nothing is written. Raises `EngineError`, `ArtifactError`."""
    with engine.talk("give the image out"):
        chunks = engine.client.api.get_image(image, chunk_size=CHUNK)
        return archive(chunks, where=image)


def archive(chunks: Iterable[bytes], *, where: str) -> Made:
    """An image from the chunks of a `docker save` tar, old or new. Raises `ArtifactError` for what is none."""
    small: dict[str, bytes] = {}
    layers: dict[str, tuple[Node, ...]] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=cast("BinaryIO", _Stream(chunks)), mode="r|", bufsize=CHUNK) as tar:
            for one in tar:
                tar.members = []  # type: ignore[attr-defined] # it would remember each
                if one.issym() or one.islnk():
                    links[one.name] = one.linkname if one.islnk() else _beside(one.name, one.linkname)
                    continue
                content = tar.extractfile(one) if one.isreg() else None
                if content is None:
                    continue
                first = content.read(1)
                if one.name.endswith((".json", "/VERSION", "/json")) or first in (b"{", b"["):
                    small[one.name] = first + content.read(MAX_JSON) if one.size <= MAX_JSON else b""
                elif one.size:
                    rest = iter(lambda: content.read(CHUNK), b"")  # noqa: B023 - read before the next one
                    layers[one.name] = foreign.scan(_after(first, rest), where=one.name).nodes
        listed = json.loads(small["manifest.json"])[0]
        config = json.loads(small[listed["Config"]])
        return Made(config, [layers[links.get(name, name)] for name in listed["Layers"]])
    except (tarfile.TarError, ValueError, KeyError, IndexError, TypeError, EOFError) as error:
        raise ArtifactError(
            f"the engine gives out no image that can be read: {type(error).__name__} {error}", where=where, hint="build again"
        ) from None


def _beside(name: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))


def _after(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


class _Stream:
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = b""

    def read(self, count: int) -> bytes:
        parts, have = [self._buffer], len(self._buffer)
        while have < count and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            have += len(chunk)
        data = b"".join(parts)
        self._buffer = data[count:]
        return data[:count]


def differences(made: Made, wanted: Iterable[Entry], settings: Mapping[str, Any]) -> list[str]:
    """What an image has other than it should, a line each, sorted: paths, then settings. `settings`: those of the config."""
    flat = flatten(made.layers)
    there = {path: one.node for path, one in flat.placed.items()}
    expected = {entry.path: node(entry) for entry in wanted}
    found = [line for path in sorted(expected.keys() | there.keys()) if (line := _different(path, expected, there))]
    found += [f"the layers are odd: {problem}" for problem in flat.problems]
    config = made.config.get("config") or {}
    for name in sorted(settings):
        have, want = config.get(name), settings[name]
        if name == "Labels" and isinstance(have, dict):
            have = {key: value for key, value in have.items() if key not in _OWN_LABELS}
        if (sorted(have or ()) if isinstance(want, list) else have) != (sorted(want) if isinstance(want, list) else want):
            found.append(f"the setting {name} is not as captured")
    for name in ("Cmd", "Entrypoint", "User", "Volumes", "ExposedPorts", "OnBuild"):
        if config.get(name) and name not in settings:
            found.append(f"the setting {name} is not in the capture")
    return found


def _different(path: str, expected: Mapping[str, Node], there: Mapping[str, Node]) -> str:
    want, have = expected.get(path), there.get(path)
    name = "/" + shown(path)
    if have is None:
        # An engine may leave a folder unsaid that it makes for the paths in it.
        return "" if want and want.kind == "dir" and any(one.startswith(path + "/") for one in there) else f"missing: {name}"
    if want is None:
        return f"not in the capture: {name}"
    if have.kind != want.kind:
        return f"differs: {name} is a {have.kind}, and was a {want.kind}"
    if (have.sha256, have.target) != (want.sha256, want.target):
        return f"differs: {name}"
    if have.kind != "link" and have.mode != want.mode:
        return f"differs: {name} has the mode {have.mode & 0o7777:04o}, and had {want.mode:04o}"
    if (have.uid, have.gid) != (0, 0) or have.xattrs:
        return f"differs: {name} has an owner or attributes"
    return ""
