"""Every fault is resumed after, retried, or reported with an error that says what failed, where, and what to do."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator

import pytest

from repro_env.registry.client import Registry
from repro_env.schema.codec import digest_of
from repro_env.schema.errors import ArtifactError, NetworkError, ReproEnvError
from repro_env.schema.image import MANIFEST, Blob
from tests.fakes.front import Front

DATA = os.urandom(1 << 20) * 3
LONG = os.urandom(1 << 20) * 4
LIE = "sha256:" + "2" * 64


@pytest.fixture(scope="module")
def stored_blob(real: str) -> Blob:
    """A blob of 3 MiB in `team/faults`, and manifests under the tags `v1` and `v2`."""
    registry = Registry(real)
    for tag in ("v1", "v2"):
        registry.put_manifest("team/faults", tag, image(registry, tag), MANIFEST)
    return registry.upload("team/faults", lambda: iter([DATA]))


def image(registry: Registry, text: str) -> bytes:
    config = registry.ensure("team/faults", text.encode(), "application/vnd.oci.image.config.v1+json")
    return b'{"schemaVersion":2,"mediaType":"%b","config":{"mediaType":"%b","digest":"%b","size":%d},"layers":[]}' % (
        MANIFEST.encode(),
        config.media_type.encode(),
        config.digest.encode(),
        config.size,
    )


def get(registry: Registry, blob: Blob) -> bytes:
    return b"".join(registry.blob("team/faults", blob.digest, blob.size))


def read(chunks: Iterable[bytes], into: bytearray) -> None:
    for chunk in chunks:
        into += chunk


def check_error(error: ReproEnvError, host: str) -> None:
    """Check that the error says what failed, where, and what to do."""
    assert host in error.where
    assert error.what[0].islower()
    assert not error.what.endswith(".")
    assert error.hint
    assert "Traceback" not in error.what


def test_an_interrupted_download_is_resumed(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "cut", 1 << 20, times=2)
    assert get(registry, stored_blob) == DATA
    assert [request.range for request in front.asked if request.method == "GET" and "/blobs/" in request.path] == [
        "",
        f"bytes={1 << 20}-",
        f"bytes={2 << 20}-",
    ]


def test_a_download_that_is_always_interrupted_fails(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "cut", 1000, times=100)
    with pytest.raises(NetworkError, match="broke off every transfer") as caught:
        get(registry, stored_blob)
    check_error(caught.value, front.host)
    assert front.count("GET", "/blobs/") < 10


def test_a_download_is_resumed_without_range_support(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "cut", 1 << 20)
    front.fail("GET", "/blobs/", "norange")
    assert get(registry, stored_blob) == DATA


@pytest.mark.parametrize("place", [0, 1 << 20, len(DATA) - 1])
def test_wrong_bytes_are_rejected(place: int, front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "wrong", place)
    got = bytearray()
    with pytest.raises(ArtifactError, match="has other bytes") as caught:
        read(registry.blob("team/faults", stored_blob.digest, stored_blob.size), got)
    check_error(caught.value, front.host)
    assert len(got) < len(DATA)


@pytest.mark.parametrize("kind", ["endless", "longer"])
def test_a_blob_longer_than_stated_is_rejected(kind: str, front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", kind, 1)
    got = bytearray()
    with pytest.raises(ArtifactError, match="longer than") as caught:
        read(registry.blob("team/faults", stored_blob.digest, stored_blob.size - 1), got)
    check_error(caught.value, front.host)
    assert len(got) < stored_blob.size


def test_a_wrong_size_is_rejected_before_reading(front: Front, registry: Registry, stored_blob: Blob) -> None:
    with pytest.raises(ArtifactError, match="instead of the stated 5") as caught:
        list(registry.blob("team/faults", stored_blob.digest, 5))
    check_error(caught.value, front.host)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_temporary_error_is_retried(status: int, front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "status", status, times=3, headers={"Retry-After": "0"})
    front.fail("GET", "/manifests/", "status", status, times=3)
    front.fail("HEAD", "/blobs/", "status", status, times=3)
    assert get(registry, stored_blob) == DATA
    assert registry.manifest("team/faults", "v1")
    assert registry.has("team/faults", stored_blob.digest)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "anonymous users are not allowed to pull"),
        (404, "does not have this image"),
        (429, "too many requests"),
        (500, "an internal problem"),
        (418, "status 418"),
    ],
)
def test_a_permanent_error_is_reported(status: int, message: str, front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "status", status, times=100)
    front.fail("GET", "/manifests/", "status", status, times=100)
    for ask in (lambda: get(registry, stored_blob), lambda: registry.manifest("team/faults", "v1")):
        with pytest.raises(NetworkError, match=message) as caught:
            ask()
        check_error(caught.value, front.host)
    assert front.count("GET") < 15


def test_a_long_pause_is_reported_without_waiting(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "status", 429, times=100, headers={"Retry-After": "3600"})
    began = time.monotonic()
    with pytest.raises(NetworkError, match="asks to wait 3600 s"):
        get(registry, stored_blob)
    assert time.monotonic() - began < 10
    assert front.count("GET", "/blobs/") == 1


def test_connections_that_close_without_a_response_are_retried(front: Front, registry: Registry, stored_blob: Blob) -> None:
    for method in ("GET", "HEAD", "POST", "PUT"):
        front.fail(method, "/blobs/", "drop", times=2)
    front.fail("GET", "/manifests/", "drop", times=2)
    front.fail("PUT", "/manifests/", "drop", times=2)
    assert get(registry, stored_blob) == DATA
    sent = registry.ensure("team/faults", b"dropped twice", "text/plain")
    assert registry.small("team/faults", sent) == b"dropped twice"
    assert registry.manifest("team/faults", "v1")
    assert registry.put_manifest("team/faults", "dropped", image(registry, "dropped"), MANIFEST)


@pytest.mark.parametrize("ending", ["cut", "drop"])
def test_a_small_upload_is_retried(ending: str, front: Front, registry: Registry) -> None:
    front.fail("PUT", "/blobs/uploads/", ending, 1000, times=2)
    data = os.urandom(1 << 20)
    sent = registry.upload("team/faults", lambda: iter([data]))
    assert b"".join(registry.blob("team/faults", sent.digest, sent.size)) == data


class Source:
    """Bytes that can be read repeatedly, with a count of the times."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.times = 0

    def read(self) -> Iterator[bytes]:
        self.times += 1
        for start in range(0, len(self.data), 100_000):
            yield self.data[start : start + 100_000]


@pytest.mark.parametrize("fault", [("cut", 0), ("cut", 3 << 20), ("drop", 0), ("status", 503), None])
def test_an_interrupted_upload_is_started_again(fault: tuple[str, int] | None, front: Front, registry: Registry) -> None:
    source = Source(os.urandom(100) + LONG)
    if fault:
        front.fail("PATCH", "/blobs/uploads/", *fault)
    sent = registry.upload("team/faults", source.read)
    assert (sent.digest, sent.size) == (digest_of(source.data), len(source.data))
    assert registry.has("team/faults", sent.digest, sent.size)
    assert source.times == (1 if fault is None else 2)


def test_an_upload_whose_answer_is_lost_is_not_sent_twice(front: Front, registry: Registry) -> None:
    front.fail("PATCH", "/blobs/uploads/", "drop")
    front.fail("PUT", "/blobs/uploads/", "drop")
    sent = registry.upload("team/faults", lambda: iter([LONG, b"lost"]))
    assert registry.has("team/faults", sent.digest, len(LONG) + 4)


def test_an_upload_that_is_always_interrupted_fails(front: Front, registry: Registry) -> None:
    front.fail("PATCH", "/blobs/uploads/", "cut", 1000, times=100)
    with pytest.raises(NetworkError, match="broke off the connection") as caught:
        registry.upload("team/faults", lambda: iter([LONG]))
    check_error(caught.value, front.host)


def test_the_registry_rejects_corrupted_bytes(front: Front, registry: Registry) -> None:
    front.fail("PATCH", "/blobs/uploads/", "wrong", 5)
    with pytest.raises(NetworkError, match="DIGEST_INVALID") as caught:
        registry.upload("team/faults", lambda: iter([LONG, b"other"]))
    check_error(caught.value, front.host)
    assert not registry.has("team/faults", digest_of(LONG + b"other"))


@pytest.mark.parametrize(
    ("status", "message"), [(403, "push"), (413, "does not accept data of this size"), (507, "an internal problem")]
)
def test_a_rejected_upload_is_reported(status: int, message: str, front: Front, registry: Registry) -> None:
    for method in ("POST", "PATCH", "PUT"):
        front.fail(method, "/blobs/uploads/", "status", status, times=100)
        for data in (b"short", LONG):
            if method == "PATCH" and data == b"short":
                continue
            with pytest.raises(NetworkError, match=message) as caught:
                registry.upload("team/faults", [data].__iter__)
            check_error(caught.value, front.host)
        front._faults.clear()


@pytest.mark.parametrize(
    "target", ["http://registry.example.com/x", "ftp://registry.example.com/", "file:///etc/passwd", "http://[", "https://"]
)
def test_redirects_to_unencrypted_urls_are_rejected(target: str, front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "redirect", target)
    with pytest.raises(NetworkError, match="the server refers to") as caught:
        get(registry, stored_blob)
    check_error(caught.value, front.host)
    front.fail("POST", "/blobs/uploads/", "location", target)
    with pytest.raises(NetworkError, match="the server refers to") as caught:
        registry.upload("team/faults", lambda: iter([b"elsewhere"]))
    check_error(caught.value, front.host)


def test_a_redirect_to_another_host_gets_no_credentials(
    front: Front, real: str, registry: Registry, stored_blob: Blob, docker_directory: object
) -> None:
    front.token = True
    with Front(real) as storage:
        front.fail(
            "GET",
            "/blobs/",
            "redirect",
            f"http://{storage.host}/v2/team/faults/blobs/{stored_blob.digest}?X-Amz-Signature=signed",
            times=2,
        )
        storage.fail("GET", "/blobs/", "cut", 1 << 20)
        # The front sends faults before its first 401 response, so the token exists by then.
        registry.manifest("team/faults", "v1")
        assert get(registry, stored_blob) == DATA
        assert {request.authorization for request in storage.asked} == {""}
        storage.fail("GET", "/blobs/", "status", 403)
        front.fail(
            "GET",
            "/blobs/",
            "redirect",
            f"http://{storage.host}/v2/team/faults/blobs/{stored_blob.digest}?X-Amz-Signature=signed",
        )
        with pytest.raises(NetworkError, match="answers with status 403") as caught:
            get(registry, stored_blob)
    check_error(caught.value, front.host)
    assert "signed" not in str(caught.value)


def test_endless_redirects_are_an_error(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/blobs/", "redirect", f"/v2/team/faults/blobs/{stored_blob.digest}", times=100)
    with pytest.raises(NetworkError, match="redirects more than") as caught:
        get(registry, stored_blob)
    check_error(caught.value, front.host)


def test_a_redirected_upload_is_rejected(front: Front, registry: Registry) -> None:
    for method in ("POST", "PUT"):
        front.fail(method, "/blobs/uploads/", "redirect", "https://registry.example.com/x")
        with pytest.raises(NetworkError, match=f"redirects a {method} request, which is not supported") as caught:
            registry.upload("team/faults", lambda: iter([b"x"]))
        check_error(caught.value, front.host)


def test_a_moving_tag_gives_a_consistent_manifest(front: Front, registry: Registry, stored_blob: Blob) -> None:
    """The tag moves between HEAD and GET: the manifest is consistent with its digest, and the old one is available by digest."""
    before = registry.head("team/faults", "v1")
    assert before is not None
    old = registry.manifest("team/faults", "v1")
    registry.put_manifest("team/faults", "v1", image(registry, "moved"), MANIFEST)
    data, _, digest = registry.manifest("team/faults", "v1")
    assert digest == digest_of(data) != before
    assert registry.manifest("team/faults", before) == old


def test_a_manifest_with_another_digest_is_rejected(front: Front, registry: Registry, stored_blob: Blob) -> None:
    digest = registry.head("team/faults", "v2")
    assert digest is not None
    front.fail("GET", "/manifests/", "wrong", 3)
    with pytest.raises(ArtifactError, match="another manifest") as caught:
        registry.manifest("team/faults", digest)
    check_error(caught.value, front.host)


def test_a_wrong_stated_digest_is_rejected(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/manifests/", "lie", LIE)
    with pytest.raises(ArtifactError, match="states the digest") as caught:
        registry.manifest("team/faults", "v2")
    check_error(caught.value, front.host)
    front.fail("PUT", "/manifests/", "lie", LIE)
    with pytest.raises(ArtifactError, match="the registry stored") as caught:
        registry.put_manifest("team/faults", "v3", image(registry, "v3"), MANIFEST)
    check_error(caught.value, front.host)
    front.fail("PUT", "/blobs/uploads/", "lie", LIE)
    with pytest.raises(ArtifactError, match="the registry stored") as caught:
        registry.upload("team/faults", lambda: iter([b"a lie"]))
    check_error(caught.value, front.host)


def test_a_manifest_that_is_too_large_is_rejected(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/manifests/", "endless")
    with pytest.raises(NetworkError, match="larger than 4,194,304 bytes") as caught:
        registry.manifest("team/faults", "v2")
    check_error(caught.value, front.host)
    front.fail("GET", "/manifests/", "body", bytes(5 << 20))
    with pytest.raises(NetworkError, match="larger than 4,194,304") as caught:
        registry.manifest("team/faults", "v2")
    check_error(caught.value, front.host)


def test_an_incomplete_manifest_is_requested_again(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/manifests/", "cut", 10, times=2)
    assert registry.manifest("team/faults", "v2")
    front.fail("GET", "/manifests/", "cut", 10, times=100)
    with pytest.raises(NetworkError, match="broke off every transfer"):
        registry.manifest("team/faults", "v2")


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
def test_a_token_that_expires_during_an_upload_is_renewed(method: str, front: Front, registry: Registry) -> None:
    front.token = True
    front.fail(method, "/blobs/uploads/", "revoke")
    sent = registry.upload("team/tokens", lambda: iter([LONG, method.encode()]))
    assert registry.has("team/tokens", sent.digest, sent.size)
    assert len(front.tokens) == (1 if method == "POST" else 2)


def test_an_upload_uses_little_memory(front: Front, registry: Registry) -> None:
    import tracemalloc

    def many() -> Iterator[bytes]:
        for _ in range(40):
            yield bytes(1 << 20)

    tracemalloc.start()
    try:
        Registry(front.behind).upload("team/memory", many)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


KINDS = (
    (
        "GET",
        "/blobs/sha",
        [
            ("cut", 0),
            ("cut", 1 << 19),
            ("drop", 0),
            ("wrong", 77),
            ("status", 503),
            ("status", 429),
            ("norange", 0),
            ("endless", 0),
        ],
    ),
    ("POST", "/uploads/", [("drop", 0), ("status", 502), ("location", "http://registry.example.com/x")]),
    (
        "PATCH",
        "/uploads/",
        [("cut", 0), ("cut", 1 << 20), ("drop", 0), ("wrong", 12345), ("status", 500), ("status", 401), ("revoke", 0)],
    ),
    ("PUT", "/uploads/", [("drop", 0), ("status", 504), ("lie", LIE), ("status", 404), ("revoke", 0)]),
    ("HEAD", "/blobs/", [("drop", 0), ("status", 500), ("status", 404)]),
)


def mixtures(seed: int, count: int, front: Front) -> None:
    """Several random faults at once: the result is exact, or one of our errors."""
    chance = random.Random(seed)
    good, refused = 0, []
    for _ in range(count):
        front._faults.clear()
        front.token = chance.random() < 0.5
        for _ in range(chance.randint(1, 6)):
            method, path, faults = chance.choice(KINDS)
            kind, value = chance.choice(faults)
            front.fail(method, path, kind, value)
        data = chance.randbytes(chance.choice([10, 1 << 20, 5 << 19, 3 << 20]))
        registry = Registry(front.host, pause=0.0)
        try:
            sent = registry.upload("team/mixed", Source(data).read)
            assert (sent.digest, sent.size) == (digest_of(data), len(data))
            got = b"".join(registry.blob("team/mixed", sent.digest, sent.size))
        except ReproEnvError as error:
            refused.append(error)
            continue
        finally:
            registry.close()
        assert got == data
        good += 1
    assert good > count // 4
    assert {bool(error.hint) for error in refused} == {True}
    front._faults.clear()


def test_a_mixture_of_faults_gives_exact_bytes_or_an_error(front: Front) -> None:
    mixtures(1, 15, front)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_many_mixtures_of_faults_give_exact_bytes_or_an_error(seed: int, front: Front) -> None:
    mixtures(seed, 100, front)


MISSING = b'{"errors": [{"code": "MANIFEST_BLOB_UNKNOWN", "message": "blob unknown to registry"}]}'
"""As a registry answers while another program sends the same blob."""


def test_a_manifest_is_sent_again_if_the_registry_cannot_find_a_blob_for_a_moment(
    front: Front, registry: Registry, stored_blob: Blob
) -> None:
    data = image(registry, "twice")
    front.fail("PUT", "/manifests/", "refuse", MISSING, headers={"status": "400"}, times=2)
    assert registry.put_manifest("team/faults", "twice", data, MANIFEST)[0] == digest_of(data)
    assert front.count("PUT", "/manifests/") == 3


def test_a_manifest_whose_blob_stays_missing_is_an_error(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("PUT", "/manifests/", "refuse", MISSING, headers={"status": "400"}, times=100)
    with pytest.raises(NetworkError, match="MANIFEST_BLOB_UNKNOWN") as caught:
        registry.put_manifest("team/faults", "never", image(registry, "never"), MANIFEST)
    check_error(caught.value, front.host)
    assert front.count("PUT", "/manifests/") < 10


def test_all_pages_of_the_tags_are_read(front: Front, registry: Registry, stored_blob: Blob) -> None:
    front.fail("GET", "/tags/list", "body", b'{"name": "team/faults", "tags": null}')
    assert registry.tags("team/faults") == []
    front.fail("GET", "/tags/list", "body", b'{"name": "team/faults", "tags": 7}')
    with pytest.raises(NetworkError, match="the list of tags is invalid") as caught:
        registry.tags("team/faults")
    check_error(caught.value, front.host)
    first = '{"name": "team/faults", "tags": ["first"]}'
    front.fail(
        "GET", "/tags/list", "body", first.encode(), headers={"Link": '</v2/team/faults/tags/list?last=first>; rel="next"'}
    )
    tags = registry.tags("team/faults")
    assert (tags[0], {"v1", "v2"} <= set(tags)) == ("first", True)
    assert registry.tags("team/nothing-here") == []
