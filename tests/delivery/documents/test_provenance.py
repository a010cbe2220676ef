"""The provenance: what in-toto and SLSA require, without guesses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repro_env.delivery.documents import provenance
from repro_env.oci.config import config
from repro_env.oci.manifest import Image, blob_of
from repro_env.schema.image import GZIP
from repro_env.schema.spec import Spec


@pytest.fixture
def image(spec: Spec) -> Image:
    diff_ids = [layer.diff_id for layer in spec.expected.layers]
    return Image(config(spec.identity, diff_ids), tuple(blob_of(diff_id.encode(), GZIP) for diff_id in diff_ids))


def parsed(spec: Spec, image: Image) -> Any:
    return json.loads(provenance.render(spec, image))


def test_the_statement_names_the_image_and_its_dependencies(spec: Spec, image: Image) -> None:
    found = parsed(spec, image)
    assert (found["_type"], found["predicateType"]) == ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1")
    assert [f"sha256:{item['digest']['sha256']}" for item in found["subject"]] == [
        image.manifest_blob.digest,
        spec.expected.image_id,
    ]
    build = found["predicate"]["buildDefinition"]
    assert build["externalParameters"] == {"spec": spec.digest}
    made_of = {f"sha256:{dependency['digest']['sha256']}": dependency for dependency in build["resolvedDependencies"]}
    artifacts = {wheel.sha256 for wheel in spec.identity.distributions}
    assert made_of.keys() == artifacts | {spec.identity.base.sha256, spec.identity.interpreter.tree.sha256}  # type: ignore[union-attr]
    linked = {hint.sha256: hint.urls[0] for hint in spec.hints.wheels if hint.urls}
    assert {digest: item["uri"] for digest, item in made_of.items() if "uri" in item} == linked


def test_the_statement_depends_on_spec_and_image_only(spec: Spec, image: Image) -> None:
    assert provenance.render(spec, image) == provenance.render(spec, image)
