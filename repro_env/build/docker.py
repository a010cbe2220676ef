"""The docker builder: a spec's Dockerfile, built by a container engine without network, and what came out checked.

Wheels are fetched and checked here and sent as context, so no credential, certificate or proxy of this machine gets
near the image. What the engine made is read back layer by layer, and each path compared with the spec: an engine's
image has another ID at each build, and is only as good as that comparison.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from repro_env.build.heard import Heard, one_line
from repro_env.build.sources import Finder, Search
from repro_env.build.trees import Trees
from repro_env.image.entry import CHUNK
from repro_env.io.engine import Engine
from repro_env.model.artifact import Wheel
from repro_env.model.errors import ArtifactError, BuildError, PlatformError
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.store.digests import hex_of
from repro_env.store.store import Store

FETCHES = 6
"""Downloads at a time."""
SILENCE = 3600.0
"""Seconds in which an engine that builds may say nothing: it copies gigabytes without a word."""

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
    if engine.facts.product == "Podman":
        parameters["layers"] = "0"  # else an image without a name stays of each step
    heard = Heard(tell)
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
                    f"the engine refuses to build: {one_line(answer.text)}",
                    where=engine.address,
                    hint="rebuild without --builder: it needs no engine",
                )
            try:
                for line in answer.iter_lines():
                    heard.take(line)
            finally:
                _tidy(engine, heard)
    return heard.image(engine.address)


def _tidy(engine: Engine, heard: Heard) -> None:
    """Away with what the older builder keeps of each step. What an image needs stays: the engine refuses."""
    if not engine.facts.buildkit:
        for one in reversed([one for one in heard.kept if not heard.made.removeprefix("sha256:").startswith(one)]):
            with contextlib.suppress(Exception):
                engine.client.api.remove_image(one)


def name_it(engine: Engine, image: str, name: str) -> None:
    """Give an image its name in the engine, `repository:tag`."""
    repository, _, tag = name.rpartition(":")
    with engine.talk(f"name the image {name}"):
        engine.client.api.tag(image, repository or name, tag if repository else None)
