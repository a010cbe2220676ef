"""Where an image comes from: an in-toto statement with a SLSA provenance (v1), as text.

Unsigned: whoever wants to vouch for it signs it. Anybody can check it instead: rebuild, and compare the digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from repro_env import __version__
from repro_env.model import codec
from repro_env.model.artifact import CondaPackage, TreeBlob, Wheel
from repro_env.model.image import Blob
from repro_env.model.spec import Spec
from repro_env.render import purl

MEDIA_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:repro-env:build:image:1"
"""The layers of a spec by the rules whose versions stand in the parameters; nothing else decides the image."""
BUILDER = "urn:repro-env:builder"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What only the caller can know. What is left out is not in the statement: without facts, it follows from spec and image."""

    name: str = ""
    """What the image is called, e.g. `registry.example.com/team/train:1`."""
    builder: str = BUILDER
    """URI of who built."""
    invocation: str = ""
    """URI of this one build."""
    started: str = ""
    """UTC, RFC 3339: `2026-11-21T10:00:00Z`."""
    finished: str = ""


class Made(Protocol):
    """What was made (`image.manifest.Image`)."""

    @property
    def layers(self) -> tuple[Blob, ...]: ...
    @property
    def config_blob(self) -> Blob: ...
    @property
    def manifest_blob(self) -> Blob: ...


def render(spec: Spec, image: Made, facts: Facts | None = None) -> bytes:
    """The statement as canonical JSON. Its subjects are the manifest, and the config: what Docker calls the image ID."""
    facts = facts or Facts()
    identity = spec.identity
    metadata = {"invocationId": facts.invocation, "startedOn": facts.started, "finishedOn": facts.finished}
    metadata = {key: value for key, value in metadata.items() if value}
    statement = {
        "_type": STATEMENT,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"spec": spec.digest},
                "internalParameters": {
                    "layers": [one.digest for one in image.layers],
                    "platform": identity.platform,
                    "rules": identity.rules,
                },
                "resolvedDependencies": list(_dependencies(spec)),
            },
            "runDetails": {
                "builder": {"id": facts.builder, "version": {"repro-env": __version__}},
                **({"metadata": metadata} if metadata else {}),
            },
        },
        "predicateType": PREDICATE,
        "subject": [
            _resource(facts.name or "image", image.manifest_blob.digest, mediaType=image.manifest_blob.media_type),
            _resource("image ID", image.config_blob.digest, mediaType=image.config_blob.media_type),
        ],
    }
    return codec.canonical(statement)


def _dependencies(spec: Spec) -> Iterator[dict[str, Any]]:
    """All bytes that the image was made of, lowest first."""
    identity = spec.identity
    trees: tuple[tuple[str, TreeBlob | None], ...] = (
        ("base", identity.base),
        ("unowned", identity.unowned),
        ("interpreter", identity.interpreter.tree),
    )
    for name, tree in trees:
        if tree is not None:
            yield _resource(name, tree.sha256)
    if (pulled := spec.hints.base) is not None:
        yield _resource("image of the base", pulled.digest, uri=purl.image(pulled))
    urls = {hint.sha256: hint.urls for hint in (*spec.hints.wheels, *spec.hints.packages)}
    artifacts: tuple[CondaPackage | Wheel, ...] = (*identity.packages, *identity.distributions)
    for one in artifacts:
        known = urls.get(one.sha256, ())
        yield _resource(one.filename, one.sha256, **({"uri": known[0]} if known else {}))
    if identity.overlay is not None:
        yield _resource("overlay", identity.overlay.sha256)


def _resource(name: str, digest: str, **more: str) -> dict[str, Any]:
    """A resource descriptor (in-toto)."""
    return {"digest": {"sha256": digest.removeprefix("sha256:")}, "name": name, **more}
