from __future__ import annotations

import json

import pytest

from repro_env.oci.manifest import DOCKER_LIST, DOCKER_MANIFEST, Index, Manifest, choose, parse
from repro_env.schema.errors import ArtifactError, PlatformError
from repro_env.schema.image import INDEX, MANIFEST

DIGEST = "sha256:" + "0" * 64
WHERE = "registry.example.com/a:b"


def entry(kind: str = "application/octet-stream", **more: object) -> dict[str, object]:
    return {"mediaType": kind, "digest": DIGEST, "size": 3} | more


def manifest(**more: object) -> bytes:
    return json.dumps({"schemaVersion": 2, "config": entry(), "layers": [entry(), entry()]} | more).encode()


def index(*platforms: str) -> bytes:
    made = []
    for number, name in enumerate(platforms):
        system, architecture, *variant = name.split("/")
        platform = {"os": system, "architecture": architecture} | ({"variant": variant[0]} if variant else {})
        made.append(entry(MANIFEST, size=number, platform=platform))
    return json.dumps({"schemaVersion": 2, "manifests": made}).encode()


@pytest.mark.parametrize("kind", [MANIFEST, DOCKER_MANIFEST])
def test_an_image_manifest_is_parsed(kind: str) -> None:
    found = parse(manifest(mediaType=kind, annotations={"a": "b"}, other=[1]), kind, where=WHERE)
    assert isinstance(found, Manifest)
    assert [layer.size for layer in found.layers] == [3, 3]


@pytest.mark.parametrize("kind", [INDEX, DOCKER_LIST])
def test_an_index_gives_the_image_for_a_platform(kind: str) -> None:
    found = parse(index("linux/arm64/v8", "linux/amd64", "linux/amd64/v3", "unknown/unknown"), kind, where=WHERE)
    assert isinstance(found, Index)
    assert choose(found, architecture="amd64", where=WHERE).size == 1
    assert choose(found, architecture="arm64", where=WHERE).size == 0
    with pytest.raises(PlatformError, match=r"linux/s390x, only for: linux/amd64, linux/arm64$"):
        choose(found, architecture="s390x", where=WHERE)


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (manifest(), "text/html", "is not an image"),
        (manifest(), "application/vnd.docker.distribution.manifest.v1+prettyjws", "is not an image"),
        (manifest(mediaType=INDEX), MANIFEST, "has the media type"),
        (manifest(manifests=[]), MANIFEST, "both a manifest and an index"),
        (manifest(fsLayers=[]), MANIFEST, "both a manifest and an index"),
        (manifest(manifests=[]), INDEX, "both a manifest and an index"),
        (b"{", MANIFEST, "not complete JSON"),
        (b"[]", MANIFEST, "not a valid"),
        (manifest(schemaVersion=1), MANIFEST, "schemaVersion"),
        (manifest(layers=[entry(digest="sha256:xyz")]), MANIFEST, "digest"),
        (manifest(layers=[entry(digest="sha512:" + "0" * 128)]), MANIFEST, "digest"),
        (manifest(layers=[entry(digest=DIGEST + "\n")]), MANIFEST, "digest"),
        (manifest(layers=[entry(size=-1)]), MANIFEST, "size"),
        (manifest(layers=[entry(size=10**30)]), MANIFEST, "size"),
        (manifest(layers=[entry(size="3")]), MANIFEST, "size"),
        (manifest(layers=[entry("a\nb")]), MANIFEST, "mediaType"),
        (manifest(layers=[entry()] * 1001), MANIFEST, "layers"),
        (manifest(layers=None), MANIFEST, "layers"),
        (manifest(config=None), MANIFEST, "config"),
        (b'{"schemaVersion":2,"manifests":' + b"[" * 100_000, INDEX, "Index|JSON|recursion"),
        (manifest() + b"x", MANIFEST, "JSON"),
    ],
)
def test_invalid_input_is_rejected(data: bytes, kind: str, message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        parse(data, kind, where=WHERE)
    assert caught.value.where == WHERE
    assert caught.value.hint
