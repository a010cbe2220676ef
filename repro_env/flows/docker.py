"""The story of `repro-env rebuild --builder docker`: fetched and checked here, built by an engine, compared with the spec."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from repro_env.flows import dockerfile
from repro_env.image import config
from repro_env.model import codec
from repro_env.model.errors import BuildError, UsageError
from repro_env.model.spec import Spec
from repro_env.model.talk import Details, Tell
from repro_env.render.dockerfile import refusal
from repro_env.store.store import Store

_NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")


class ByEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An image that an engine built from the Dockerfile, and that is the captured one, path by path."""

    image_id: str
    """The engine's. Not the promised one: it has the engine's own history and times in it."""
    promised: str
    """What `rebuild` without an engine gives."""
    name: str
    """It is kept in the engine under this one."""
    builder: str
    """`BuildKit`, or the engine's older one."""
    engine: str
    """Product and version."""
    paths: int
    """That were compared."""
    fetched: int
    """Bytes that came over the network."""


def built(spec: Spec, folder: Path, *, store: Store, tell: Tell, name: str = "", address: str = "") -> ByEngine:
    """Build a spec by the engine at `address` (default: the user's own), and check what came out.

    `folder` holds the spec. `name`: what the image is called in the engine; default `repro-env-built:<12 of the spec digest>`.
    Raises `BuildError` for a spec that has no Dockerfile, for a build that fails and for an image that is not the captured
    one, which is kept under another name; `EngineError`, `PlatformError`, and what fetching raises.
    """
    if why := refusal(spec, alone=False):
        raise BuildError(f"no Dockerfile can make this environment: {why}", where="--builder docker", hint="rebuild without it")
    called = name or f"repro-env-built:{spec.digest[7:19]}"
    if not _NAME.fullmatch(called):
        raise UsageError(
            f"{called!r} is no name for an image", where="--name", hint="lower-case letters, digits and dashes, then :TAG"
        )
    from repro_env.build import docker, expected, saved
    from repro_env.build.heard import some
    from repro_env.io import engine

    with engine.opened(address) as opened:
        docker.check_engine(spec, opened)
        fetched = docker.fetch(spec, folder, store, tell)
        wanted = expected.entries(spec, folder, store)
        # Rendered here: a Dockerfile that lies beside a spec may be anybody's.
        files: dict[str, docker.Content] = {**dockerfile.files(spec, wanted), "spec.json": _needed(spec)}
        files |= {f"blobs/{name}": path for name, path in fetched.blobs.items()}
        builder = "BuildKit" if opened.facts.buildkit else f"{opened.facts.product}'s builder"
        version = f"{opened.facts.product} {opened.facts.version}"
        tell.detail(f"{version} builds with {builder}, without network")
        with tell.progress(0, f"building with {builder}"):
            image = docker.build(opened, files, Details(tell))
        with tell.progress(0, f"comparing {len(wanted):,} paths with the capture"):
            found = saved.differences(saved.read(opened, image), wanted, msgspec.to_builtins(config.settings(spec.identity)))
        if found:
            called = f"repro-env-differs:{image.removeprefix('sha256:')[:12]}"
            docker.name_it(opened, image, called)
            raise BuildError(
                f"what the engine built is not the captured image: {some(found)}",
                where=called,
                hint=f"look at it with: docker run --rm -it {called} sh; rebuild without --builder makes the captured one",
            )
        docker.name_it(opened, image, called)
    tell(f"every file is the captured one; the image ID is the engine's, not the promised {spec.expected.image_id}")
    return ByEngine(
        image_id=image,
        promised=spec.expected.image_id,
        name=called,
        builder=builder,
        engine=version,
        paths=len(wanted),
        fetched=fetched.count,
    )


def _needed(spec: Spec) -> bytes:
    """What the installer reads of a spec, and nothing else: an edit of the code leaves the engine's build cache valid."""
    return codec.pretty(
        {
            "schema": spec.schema,
            "identity": spec.identity,
            "hints": {"wheels": [{"sha256": one.sha256, "urls": ()} for one in spec.hints.wheels]},
            "expected": {"layers": spec.expected.layers},
        }
    )
