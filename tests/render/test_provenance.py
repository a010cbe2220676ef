"""The statement: what in-toto and SLSA ask for, and nothing that is not known."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from repro_env.image.config import config
from repro_env.image.manifest import Image, blob
from repro_env.model.image import GZIP
from repro_env.model.spec import BaseHint, Spec
from repro_env.render import provenance
from repro_env.render.provenance import Facts


@pytest.fixture
def image(spec: Spec) -> Image:
    diff_ids = [one.diff_id for one in spec.expected.layers]
    return Image(config(spec.identity, diff_ids), tuple(blob(one.encode(), GZIP) for one in diff_ids))


def parsed(spec: Spec, image: Image, facts: Facts | None = None) -> Any:
    return json.loads(provenance.render(spec, image, facts))


def test_what_was_made_and_of_what(spec: Spec, image: Image) -> None:
    found = parsed(spec, image)
    assert (found["_type"], found["predicateType"]) == ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1")
    assert [f"sha256:{one['digest']['sha256']}" for one in found["subject"]] == [
        image.manifest_blob.digest,
        spec.expected.image_id,
    ]
    build = found["predicate"]["buildDefinition"]
    assert build["externalParameters"] == {"spec": spec.digest}
    made_of = {f"sha256:{one['digest']['sha256']}": one for one in build["resolvedDependencies"]}
    artifacts = {one.sha256 for one in spec.identity.distributions}
    assert made_of.keys() == artifacts | {spec.identity.base.sha256, spec.identity.interpreter.tree.sha256}  # type: ignore[union-attr]
    linked = {hint.sha256: hint.urls[0] for hint in spec.hints.wheels if hint.urls}
    assert {digest: one["uri"] for digest, one in made_of.items() if "uri" in one} == linked


def test_without_facts_it_follows_from_spec_and_image(spec: Spec, image: Image) -> None:
    assert provenance.render(spec, image) == provenance.render(spec, image)
    assert "metadata" not in parsed(spec, image)["predicate"]["runDetails"]


def test_facts_of_the_caller(spec: Spec, image: Image) -> None:
    facts = Facts(name="registry.example.com/a:1", builder="https://ci.example.com/", started="2026-01-01T00:00:00Z")
    found = parsed(spec, image, facts)
    assert found["subject"][0]["name"] == "registry.example.com/a:1"
    assert found["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example.com/"
    assert found["predicate"]["runDetails"]["metadata"] == {"startedOn": "2026-01-01T00:00:00Z"}


def test_the_image_that_a_base_was_made_of(spec: Spec, image: Image) -> None:
    digest = f"sha256:{'d' * 64}"
    hint = BaseHint(
        reference="registry.example.com/python:3.11", digest=digest, platform=spec.identity.platform, layers=(), kept=True
    )
    pulled = msgspec.structs.replace(spec, hints=msgspec.structs.replace(spec.hints, base=hint))
    (one,) = [
        one
        for one in parsed(pulled, image)["predicate"]["buildDefinition"]["resolvedDependencies"]
        if one["name"] == "image of the base"
    ]
    assert one["digest"] == {"sha256": "d" * 64}
    assert one["uri"].startswith(f"pkg:oci/python@{digest}?repository_url=registry.example.com/python")
