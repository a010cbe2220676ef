"""The docker builder: a spec's Dockerfile, built by a container engine without network, and what came out checked.

Wheels are fetched and checked here and sent as context, so no credential, certificate or proxy of this machine gets
near the image. What the engine made is read back layer by layer, and each path compared with the spec: an engine's
image has another ID at each build, and is only as good as that comparison.
"""

from __future__ import annotations

import base64
import contextlib
import json
import posixpath
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from repro_env.build.expected import node
from repro_env.build.sources import Finder, Search
from repro_env.build.trees import Trees
from repro_env.image import foreign
from repro_env.image.entry import CHUNK, Entry
from repro_env.image.flat import flatten
from repro_env.image.foreign import Node, shown
from repro_env.io.engine import Engine
from repro_env.model.artifact import Wheel
from repro_env.model.errors import ArtifactError, BuildError, EngineError, PlatformError
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.store.digests import hex_of
from repro_env.store.store import Store

FETCHES = 6
"""Downloads at a time."""
SILENCE = 3600.0
"""Seconds in which an engine that builds may say nothing: it copies gigabytes without a word."""
NAMED = 10
"""How many paths are named in an error."""
MAX_JSON = 16 << 20
"""Bytes of an image's manifest or config."""
_TRACE = "moby.buildkit.trace"
_KEPT = re.compile(r" ---> ([0-9a-f]{12,64})")
_QUIET = ("[internal]", "copy /context")
"""Steps that BuildKit adds."""
_OURS = "repro-env: "
"""What each line of `install.py` begins with."""

Content = bytes | Path


class Fetched(msgspec.Struct, frozen=True):
    """What a build needs, whole and checked, on this machine."""

    blobs: Mapping[str, Path]
    """By name in `blobs/`."""
    count: int
    """Bytes that came over the network."""


def fetch(spec: Spec, folder: Path, store: Store, tell: Tell) -> Fetched:
    """Bring every wheel and tree of the image to this machine. Raises `ArtifactError`, `NetworkError`, `DiskError`."""
    trees = Trees(spec, folder, store)
    finder = Finder(spec, folder, store, trees.givers)
    wheels = spec.identity.distributions

    def one(wheel: Wheel) -> Path:
        # Without its facts only whole wheels are looked for, which a build in a container needs.
        place = Search(finder, wheel, None).take(finder.take)
        if finder.facts(wheel) is None:
            finder.learn(place, wheel)
        advance(wheel.size)
        return Path(place.where)

    blobs = {}
    try:
        with tell.progress(sum(wheel.size for wheel in wheels), "wheels") as advance, ThreadPoolExecutor(FETCHES) as pool:
            for wheel, path in zip(wheels, pool.map(one, wheels), strict=True):
                blobs[hex_of(wheel.sha256)] = path
        for what, tree in trees.named():
            if what != "source":
                path = trees.bring(what, tree)
                blobs[path.name] = path
        return Fetched(blobs, finder.fetched + trees.givers.fetched)
    finally:
        finder.close()
        trees.givers.close()


def check_engine(spec: Spec, engine: Engine) -> None:
    """Raises `PlatformError` for an engine that builds for other machines than the spec is for."""
    wanted, there = spec.identity.platform, engine.facts
    if (there.os, there.architecture) != (wanted.os, wanted.architecture):
        raise PlatformError(
            f"the engine builds for {there.os}/{there.architecture}, and the spec is for {wanted.os}/{wanted.architecture}",
            where=engine.address,
            hint="name an engine on such a machine with DOCKER_HOST",
        )


def context(files: Mapping[str, Content]) -> Iterator[bytes]:
    """The tar that is sent: files by name, sorted; nobody holds a whole one."""
    for name in sorted(files):
        content = files[name]
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        header = tarfile.TarInfo(name)
        header.size, header.mode = size, 0o644
        yield header.tobuf(tarfile.GNU_FORMAT)
        yield from _exactly(content, size)
        yield bytes(-size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _exactly(content: Content, size: int) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while size and (chunk := file.read(min(size, CHUNK))):
            size -= len(chunk)
            yield chunk
    if size:
        raise ArtifactError("is shorter than it was a moment ago", where=str(content), hint="rebuild again")


def build(engine: Engine, files: Mapping[str, Content], tell: Tell) -> str:
    """Have a context built without network; returns the engine's ID of the image, which has no name yet.

    Raises `BuildError` with what the build said, `EngineError`.
    """
    size = sum(len(one) if isinstance(one, bytes) else one.stat().st_size for one in files.values())
    parameters = {"networkmode": "none", "rm": "1", "forcerm": "1", "pull": "0"}
    if engine.facts.buildkit:
        parameters["version"] = "2"
    heard = _Heard(tell)
    api = engine.client.api
    with engine.talk("build the image"):
        with tell.progress(size, f"sending to {engine.facts.product}") as advance:

            def sent() -> Iterator[bytes]:
                for chunk in context(files):
                    advance(len(chunk))
                    yield chunk

            # Not docker-py's own `build`: that one sends the user's registry credentials along, and knows no BuildKit.
            answer = api.post(
                f"{api.base_url}/v{engine.facts.api}/build",
                params=parameters,
                data=sent(),
                headers={"Content-Type": "application/x-tar"},
                stream=True,
                timeout=(api.timeout, SILENCE),
            )
        with answer:
            if answer.status_code != 200:
                raise BuildError(
                    f"the engine refuses to build: {_one_line(answer.text)}",
                    where=engine.address,
                    hint="rebuild without --builder: it needs no engine",
                )
            try:
                for line in answer.iter_lines():
                    heard.take(line)
            finally:
                _tidy(engine, heard)
    return heard.image(engine.address)


def _tidy(engine: Engine, heard: _Heard) -> None:
    """Away with what the older builder keeps of each step. What an image needs stays: the engine refuses."""
    if not engine.facts.buildkit:
        for one in reversed([one for one in heard.kept if not heard.made.removeprefix("sha256:").startswith(one)]):
            with contextlib.suppress(Exception):
                engine.client.api.remove_image(one)


class _Heard:
    """What an engine says while it builds, either builder's."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.made = ""
        """The image's ID, when it is done."""
        self._said: list[str] = []
        """What `install.py` said, as far as it is about a failure."""
        self._error = ""
        self._steps: set[str] = set()
        self.kept: list[str] = []
        """Images that the older builder made on the way, and has no name for."""

    def take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event = json.loads(line)
        except ValueError:
            raise EngineError("says something that is no answer to a build", where="the engine", hint="update it") from None
        if not isinstance(event, dict):
            return
        for text in str(event.get("stream") or "").splitlines():
            self._classic(text)
        aux = event.get("aux")
        if event.get("id") == _TRACE and isinstance(aux, str):
            self._trace(base64.b64decode(aux))
        elif isinstance(aux, dict) and aux.get("ID"):
            self.made = str(aux["ID"])
        if event.get("error"):
            self._error = _one_line(str(event["error"]))
            self.made = ""  # the older builder says it of each stage

    def _classic(self, text: str) -> None:
        if text.startswith("Step "):
            self._step(text)
        elif match := _KEPT.fullmatch(text):
            self.kept.append(match[1])
        else:
            self._ours(text)

    def _trace(self, data: bytes) -> None:
        """BuildKit's `StatusResponse`: field 1 has steps (3: name, 5: started), 3 has what they print (4: bytes)."""
        for number, value in fields(data):
            if number == 1 and isinstance(value, bytes):
                step = dict(fields(value))
                if 5 in step:
                    self._step(_text(step.get(3)))
            elif number == 3 and isinstance(value, bytes):
                for text in _text(dict(fields(value)).get(4)).splitlines():
                    self._ours(text)

    def _step(self, text: str) -> None:
        text = _one_line(text)
        if text and text not in self._steps and not text.startswith(_QUIET):
            self._steps.add(text)
            self._tell(text if len(text) <= 100 else text[:99] + "…")

    def _ours(self, text: str) -> None:
        if text.startswith(_OURS):
            said = _one_line(text.removeprefix(_OURS))
            self._tell(f"  {said}")
            if said.startswith(("error: ", "missing: ", "differs: ", "not in the capture: ")):
                self._said.append(said)

    def image(self, where: str) -> str:
        """The image's ID. Raises `BuildError` for a build that failed."""
        if self._error or not self.made:
            why = [one.removeprefix("error: ") for one in self._said if one.startswith("error: ")]
            paths = [one for one in self._said if not one.startswith("error: ")]
            what = why[-1] if why else self._error or "it ends without an image"
            raise BuildError(
                f"the build fails: {what}{': ' if paths else ''}{some(paths)}",
                where=where,
                hint="rebuild without --builder, which needs no engine, to see whether it is the spec or the engine",
            )
        return self.made


def fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protobuf message, without its schema (protobuf encoding). Ends quietly where it is damaged."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(data) and shift < 64:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind == 2:
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _one_line(text: str) -> str:
    """A stranger's text for a message."""
    return "".join(one if one.isprintable() else " " for one in text).strip()[:2000]


class Made(msgspec.Struct, frozen=True):
    """An image as an engine gives it out."""

    config: Mapping[str, Any]
    layers: Sequence[Sequence[Node]]


def saved(engine: Engine, image: str) -> Made:
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
        if (sorted(have or ()) if isinstance(want, list) else have) != (sorted(want) if isinstance(want, list) else want):
            found.append(f"the setting {name} is not as captured")
    for name in ("Cmd", "Entrypoint", "User", "Volumes", "ExposedPorts", "OnBuild"):
        if config.get(name):
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


def some(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - NAMED} more" if len(lines) > NAMED else ""
    return "; ".join(lines[:NAMED]) + more


def name_it(engine: Engine, image: str, name: str) -> None:
    """Give an image its name in the engine, `repository:tag`."""
    repository, _, tag = name.rpartition(":")
    with engine.talk(f"name the image {name}"):
        engine.client.api.tag(image, repository or name, tag if repository else None)
