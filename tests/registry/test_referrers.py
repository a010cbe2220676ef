"""Referrers of an image: with the API, without it, and with both."""

from __future__ import annotations

import json

import pytest

from repro_env.oci.manifest import EMPTY_DATA, Descriptor, Manifest, blob_of, parse
from repro_env.registry import referrers
from repro_env.registry.client import Registry
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.image import INDEX, MANIFEST, Blob
from tests.fakes.front import Front

SPEC = "application/vnd.example.spec"
SBOM = "application/vnd.example.sbom"


def subject(registry: Registry, text: str) -> Blob:
    """A new image in `team/referrers`."""
    config = registry.ensure("team/referrers", text.encode(), "application/vnd.oci.image.config.v1+json")
    entry = {"mediaType": config.media_type, "digest": config.digest, "size": config.size}
    data = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": entry, "layers": []}).encode()
    registry.put_manifest("team/referrers", "image", data, MANIFEST)
    return blob_of(data, MANIFEST)


@pytest.fixture(params=[True, False], ids=["api", "tag"])
def either(request: pytest.FixtureRequest, front: Front) -> Front:
    """A registry with the API, and one without it."""
    front.referrers = request.param
    return front


def attach(registry: Registry, image: Blob, text: str, kind: str = SPEC) -> Blob:
    blob = registry.ensure("team/referrers", text.encode(), "application/json")
    return referrers.attach(registry, "team/referrers", image, kind, [described(blob, {"org.example.name": text})])


def described(blob: Blob, annotations: dict[str, str]) -> Descriptor:
    return Descriptor(blob.media_type, blob.digest, blob.size, None, annotations)


def test_attached_manifests_are_listed(either: Front, registry: Registry, request: pytest.FixtureRequest) -> None:
    image = subject(registry, request.node.name)
    assert referrers.list_referrers(registry, "team/referrers", image.digest) == ()
    made = {attach(registry, image, "spec").digest, attach(registry, image, "sbom", SBOM).digest}
    found = referrers.list_referrers(registry, "team/referrers", image.digest)
    assert {descriptor.digest for descriptor in found} == made
    assert [descriptor.digest for descriptor in found] == sorted(made)
    (spec,) = referrers.list_referrers(registry, "team/referrers", image.digest, SPEC)
    data, media_type, _ = registry.manifest("team/referrers", spec.digest)
    manifest = parse(data, media_type, where="x")
    assert isinstance(manifest, Manifest)
    assert manifest.subject is not None
    assert (manifest.subject.digest, manifest.artifact_type) == (image.digest, SPEC)
    assert registry.small("team/referrers", manifest.config) == EMPTY_DATA
    assert registry.small("team/referrers", manifest.layers[0]) == b"spec"


def test_the_tag_is_written_only_without_the_api(either: Front, registry: Registry, request: pytest.FixtureRequest) -> None:
    image = subject(registry, request.node.name)
    attach(registry, image, "spec")
    kept = registry.head("team/referrers", referrers.fallback_tag(image.digest))
    assert (kept is None) is either.referrers


def test_attaching_twice_gives_one_entry(either: Front, registry: Registry, request: pytest.FixtureRequest) -> None:
    image = subject(registry, request.node.name)
    assert attach(registry, image, "spec") == attach(registry, image, "spec")
    assert len(referrers.list_referrers(registry, "team/referrers", image.digest)) == 1


def test_entries_of_the_tag_stay_listed_after_the_api_appears(front: Front, registry: Registry) -> None:
    """Entries of the tag are not lost."""
    image = subject(registry, "before and after")
    first = attach(registry, image, "before")
    front.referrers = True
    second = attach(registry, image, "after")
    assert {descriptor.digest for descriptor in referrers.list_referrers(registry, "team/referrers", image.digest)} == {
        first.digest,
        second.digest,
    }


def test_all_pages_are_listed(front: Front, registry: Registry) -> None:
    front.referrers, front.page = True, 2
    image = subject(registry, "pages")
    made = {attach(registry, image, str(number)).digest for number in range(5)}
    front.asked.clear()
    assert {descriptor.digest for descriptor in referrers.list_referrers(registry, "team/referrers", image.digest)} == made
    assert front.count("GET", "start=") == 2


def test_entries_of_other_programs_in_the_tag_are_kept(registry: Registry) -> None:
    image = subject(registry, "others")
    tag = referrers.fallback_tag(image.digest)
    mine = attach(registry, image, "first")
    data, _, _ = registry.manifest("team/referrers", tag)
    index = json.loads(data)
    index["annotations"] = {"org.example.by": "another program"}
    index["manifests"][0]["urls"] = ["https://registry.example.com/x"]
    index["manifests"][0]["annotations"] = {"org.example.own": "note"}
    registry.put_manifest("team/referrers", tag, json.dumps(index).encode(), INDEX)
    attach(registry, image, "second")
    again = json.loads(registry.manifest("team/referrers", tag)[0])
    assert again["annotations"] == index["annotations"]
    assert index["manifests"][0] in again["manifests"]
    assert len(again["manifests"]) == 2
    assert mine.digest in {entry["digest"] for entry in again["manifests"]}


def test_the_same_input_gives_the_same_digest(registry: Registry) -> None:
    image = subject(registry, "same")
    blobs = [registry.ensure("team/referrers", text, "text/plain") for text in (b"a", b"b")]
    made = [
        referrers.attach(registry, "team/referrers", image, SPEC, [described(blob, annotations) for blob in blobs])
        for annotations in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    ]
    assert made[0] == made[1]


def test_an_entry_that_another_program_overwrote_is_added_again(front: Front, registry: Registry) -> None:
    """The lost entry is added again."""
    image = subject(registry, "race")
    other = attach(registry, image, "other")
    tag = referrers.fallback_tag(image.digest)
    alone = registry.manifest("team/referrers", tag)[0]
    # Once, the registry stores the other program's index instead of ours.
    front.fail("PUT", f"/manifests/{tag}", "instead", alone)
    mine = attach(registry, image, "mine")
    assert {descriptor.digest for descriptor in referrers.list_referrers(registry, "team/referrers", image.digest)} == {
        other.digest,
        mine.digest,
    }


@pytest.mark.parametrize(
    ("fault", "value", "error"),
    [
        ("body", b"{", ArtifactError),
        ("body", b'{"schemaVersion":2}', ArtifactError),
        ("status", 500, NetworkError),
        ("endless", 0, NetworkError),
    ],
)
def test_an_unreadable_list_is_an_error(
    fault: str, value: object, error: type[Exception], front: Front, registry: Registry
) -> None:
    image = subject(registry, "broken")
    attach(registry, image, "spec")
    front.fail("GET", f"/manifests/{referrers.fallback_tag(image.digest)}", fault, value, times=20)
    with pytest.raises(error):
        referrers.list_referrers(registry, "team/referrers", image.digest)


def test_a_tag_that_is_not_an_index_is_an_error(registry: Registry) -> None:
    image = subject(registry, "something else")
    data, media_type, _ = registry.manifest("team/referrers", image.digest)
    registry.put_manifest("team/referrers", referrers.fallback_tag(image.digest), data, media_type)
    with pytest.raises(ArtifactError, match="is not an index") as caught:
        attach(registry, image, "spec")
    assert "sha256-" in caught.value.where


@pytest.mark.parametrize("link", ["https://registry.example.com/v2/x", "http://127.0.0.1:1/v2/x"])
def test_the_next_page_must_be_on_the_same_server(link: str, front: Front, registry: Registry) -> None:
    front.referrers, front.page = True, 1
    image = subject(registry, "elsewhere")
    attach(registry, image, "one")
    front.fail("GET", "/referrers/", "page", {"Link": f'<{link}>; rel="next"'})
    with pytest.raises(NetworkError, match="on another server"):
        referrers.list_referrers(registry, "team/referrers", image.digest)
