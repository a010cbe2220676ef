"""The provenance of an image: an in-toto statement with SLSA provenance (v1).

The statement is not signed; sign it to vouch for it. To check it without a signature, rebuild and compare the digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from repro_env.delivery.builder.layers import named_trees
from repro_env.oci.manifest import Image
from repro_env.schema import codec
from repro_env.schema.spec import Spec
from repro_env.version import __version__

MEDIA_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:repro-env:build:image:1"
"""The build makes the layers of a spec by the rules whose versions are in the parameters. Nothing else affects the image."""
BUILDER = "urn:repro-env:builder"


def render(spec: Spec, image: Image) -> bytes:
    """Return the statement as canonical JSON. Its subjects are the manifest and the config (the image ID of Docker)."""
    identity = spec.identity
    statement = {
        "_type": STATEMENT,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"spec": spec.digest},
                "internalParameters": {
                    "layers": [layer.digest for layer in image.layers],
                    "platform": identity.platform,
                    "rules": identity.rules,
                },
                "resolvedDependencies": list(_dependencies(spec)),
            },
            "runDetails": {"builder": {"id": BUILDER, "version": {"repro-env": __version__}}},
        },
        "predicateType": PREDICATE,
        "subject": [
            _resource("image", image.manifest_blob.digest, mediaType=image.manifest_blob.media_type),
            _resource("image ID", image.config_blob.digest, mediaType=image.config_blob.media_type),
        ],
    }
    return codec.canonical(statement)


def _dependencies(spec: Spec) -> Iterator[dict[str, Any]]:
    """Yield everything that the image was made of."""
    for name, tree in named_trees(spec).items():
        if name != "source":
            yield _resource(name, tree.sha256)
    urls = {hint.sha256: hint.urls[0] for hint in (*spec.hints.wheels, *spec.hints.packages) if hint.urls}
    for artifact in spec.identity.artifacts:
        uri = {"uri": urls[artifact.sha256]} if artifact.sha256 in urls else {}
        yield _resource(artifact.filename, artifact.sha256, **uri)


def _resource(name: str, digest: str, **fields: str) -> dict[str, Any]:
    """Return a resource descriptor (in-toto)."""
    return {"digest": {"sha256": digest.removeprefix("sha256:")}, "name": name, **fields}
