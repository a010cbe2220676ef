"""The client against a real registry, without faults."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from functools import partial

import pytest

from repro_env.registry.client import Registry
from repro_env.schema.codec import digest_of
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.image import MANIFEST, Blob
from tests.fakes.front import Front

OTHER = "sha256:" + "1" * 64


def blob(data: bytes) -> Blob:
    return Blob(media_type="application/octet-stream", digest=digest_of(data), size=len(data))


def small_chunks(data: bytes, size: int = 70_001) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [0, 1, 100_000, 1 << 20, (1 << 20) + 1, (2 << 20) + 12_345])
def test_an_uploaded_blob_can_be_downloaded(size: int, real: str) -> None:
    data = os.urandom(1024) * (size // 1024 + 1)
    data = data[:size]
    with Registry(real) as registry:
        sent = registry.upload("team/roundtrip", lambda: small_chunks(data))
        assert (sent.digest, sent.size) == (digest_of(data), size)
        assert registry.has("team/roundtrip", sent.digest, size)
        assert not registry.has("team/roundtrip", sent.digest, size + 1)
        assert b"".join(registry.blob("team/roundtrip", sent.digest, size)) == data


def test_only_the_expected_blob_is_stored(real: str) -> None:
    registry = Registry(real)
    for data in (b"short" * 1000, os.urandom(1 << 20) * 2):
        known = blob(data)
        assert registry.upload("team/known", partial(small_chunks, data), known) == known
        for wrong in (data[:-1], data + b"x", b"x" + data[1:]):
            with pytest.raises(ArtifactError, match="were expected"):
                registry.upload("team/known", partial(small_chunks, wrong), known)
            assert not registry.has("team/known", digest_of(wrong))


@pytest.mark.parametrize("after", [0, 1 << 19, 3 << 20])
@pytest.mark.parametrize("error", [OSError("a disk"), NetworkError("an index", where="x"), KeyboardInterrupt()])
def test_an_error_of_the_source_passes_through(after: int, error: BaseException, front: Front, registry: Registry) -> None:
    """Half a blob is never stored as a complete one, whatever the error is."""

    def broken() -> Iterator[bytes]:
        yield from small_chunks(bytes(after))
        raise error

    with pytest.raises(type(error)) as caught:
        registry.upload("team/broken", broken)
    assert caught.value is error
    assert front.count("PUT") == 0
    assert front.count("DELETE") == isinstance(error, Exception)


def test_the_permission_to_push_is_checked_without_sending_anything(front: Front, registry: Registry) -> None:
    registry.check_push("team/checked")
    assert [(request.method, request.status) for request in front.asked if "/uploads/" in request.path] == [
        ("POST", 202),
        ("DELETE", 204),
    ]
    front.fail("POST", "/uploads/", "status", 403)
    with pytest.raises(NetworkError, match="not allowed to push"):
        registry.check_push("team/checked")


def test_an_existing_blob_is_not_sent(front: Front, registry: Registry) -> None:
    first = registry.ensure("team/ensure", b"a document", "text/plain")
    assert front.count("PUT") == 1
    assert registry.ensure("team/ensure", b"a document", "text/plain") == first
    assert front.count("PUT") == 1
    assert registry.small("team/ensure", first) == b"a document"


def test_a_manifest_is_read_by_tag_and_by_digest(real: str) -> None:
    registry = Registry(real)
    config = registry.ensure("team/tags", b"{}", "application/vnd.oci.image.config.v1+json")
    data = b'{"schemaVersion":2,"mediaType":"%b","config":{"mediaType":"%b","digest":"%b","size":2},"layers":[]}' % (
        MANIFEST.encode(),
        config.media_type.encode(),
        config.digest.encode(),
    )
    assert registry.head("team/tags", "v1") is None
    digest, _ = registry.put_manifest("team/tags", "v1", data, MANIFEST)
    assert digest == digest_of(data) == registry.head("team/tags", "v1")
    assert registry.manifest("team/tags", "v1") == registry.manifest("team/tags", digest) == (data, MANIFEST, digest)
    assert registry.image("team/tags", "v1", architecture="amd64")[2] == digest
    with pytest.raises(NetworkError, match=r"does not have this image or blob \(status 404\)"):
        registry.manifest("team/tags", "v2")


def test_connections_are_reused(real: str) -> None:
    import requests

    registry = Registry(real)
    sent = registry.upload("team/reuse", lambda: small_chunks(bytes(1 << 20)))
    session = next(iter(registry.server.web._sessions._all))
    pool = next(iter(session.get_adapter("http://x").poolmanager.pools._container.values()))
    before = pool.num_connections
    for _ in range(5):
        assert registry.has("team/reuse", sent.digest, sent.size)
        assert len(b"".join(registry.blob("team/reuse", sent.digest, sent.size))) == sent.size
    assert pool.num_connections == before
    assert isinstance(session, requests.Session)


def test_importing_the_client_does_not_import_requests() -> None:
    import subprocess
    import sys

    code = "import sys, repro_env.delivery.targets.registry, repro_env.registry.referrers; sys.exit('requests' in sys.modules or 'ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes_are_limited(front: Front, registry: Registry) -> None:
    with pytest.raises(ArtifactError, match="at most"):
        registry.small("team/x", Blob(media_type="x/y", digest=OTHER, size=1 << 40))
    assert not front.asked


def test_the_size_of_chunks_does_not_change_the_blob(real: str) -> None:
    data = os.urandom(1 << 20) * 2
    registry = Registry(real)
    made = {registry.upload("team/crumbs", partial(small_chunks, data, size)).digest for size in (40_001, 1 << 26)}
    assert made == {"sha256:" + hashlib.sha256(data).hexdigest()}
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", made.pop())
