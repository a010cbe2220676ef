"""Each thing that can go wrong on the way is gone on from, tried again, or refused with a sentence that says what and where."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from repro_env.model.errors import ArtifactError, NetworkError, ReproEnvError
from repro_env.model.image import INDEX, MANIFEST, Blob
from repro_env.registry import upload
from repro_env.registry.client import Registry
from repro_env.registry.manifest import described, digest_of
from tests.fakes.front import Front

DATA = os.urandom(1 << 20) * 3
LONG = os.urandom(1 << 20) * 4
LIE = "sha256:" + "2" * 64


@pytest.fixture(scope="module")
def there(real: str) -> Blob:
    """A blob of three MiB in `t/faults`, and manifests under the tags `v1` and `v2`."""
    registry = Registry(real)
    for tag in ("v1", "v2"):
        registry.put_manifest("team/faults", tag, image(registry, tag), MANIFEST)
    return registry.upload("team/faults", [DATA])


def image(registry: Registry, text: str) -> bytes:
    config = registry.ensure("team/faults", text.encode(), "application/vnd.oci.image.config.v1+json")
    return b'{"schemaVersion":2,"mediaType":"%b","config":{"mediaType":"%b","digest":"%b","size":%d},"layers":[]}' % (
        MANIFEST.encode(),
        config.media_type.encode(),
        config.digest.encode(),
        config.size,
    )


def get(registry: Registry, one: Blob) -> bytes:
    return b"".join(registry.blob("team/faults", one.digest, one.size))


def read(chunks: Iterable[bytes], into: bytearray) -> None:
    for chunk in chunks:
        into += chunk


def fine(error: ReproEnvError, host: str) -> None:
    """A sentence that says what, where and what to do."""
    assert host in error.where
    assert error.what[0].islower()
    assert not error.what.endswith(".")
    assert error.hint
    assert "Traceback" not in error.what


def test_a_cut_download_goes_on_where_it_ended(front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "cut", 1 << 20, times=2)
    assert get(registry, there) == DATA
    assert [one.range for one in front.asked if one.method == "GET" and "/blobs/" in one.path] == [
        "",
        f"bytes={1 << 20}-{len(DATA) - 1}",
        f"bytes={2 << 20}-{len(DATA) - 1}",
    ]


def test_a_download_that_is_always_cut(front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "cut", 1000, times=100)
    with pytest.raises(NetworkError, match="breaks off each time") as caught:
        get(registry, there)
    fine(caught.value, front.host)
    assert front.count("GET", "/blobs/") < 10


def test_ranges_that_are_not_given_are_skipped_to(front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "cut", 1 << 20)
    front.fail("GET", "/blobs/", "norange")
    assert get(registry, there) == DATA


@pytest.mark.parametrize("place", [0, 1 << 20, len(DATA) - 1])
def test_wrong_bytes_are_refused(place: int, front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "wrong", place)
    got = bytearray()
    with pytest.raises(ArtifactError, match="has other bytes") as caught:
        read(registry.blob("team/faults", there.digest, there.size), got)
    fine(caught.value, front.host)
    assert len(got) < len(DATA)


@pytest.mark.parametrize("kind", ["endless", "longer"])
def test_never_more_than_was_said(kind: str, front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", kind, 1)
    got = bytearray()
    with pytest.raises(ArtifactError, match="longer than") as caught:
        read(registry.blob("team/faults", there.digest, there.size - 1), got)
    fine(caught.value, front.host)
    assert len(got) < there.size


def test_another_size_is_refused_before_a_byte_is_read(front: Front, registry: Registry, there: Blob) -> None:
    with pytest.raises(ArtifactError, match="where 5 were said") as caught:
        list(registry.blob("team/faults", there.digest, 5))
    fine(caught.value, front.host)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_problem_of_the_moment_is_waited_for(status: int, front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "status", status, times=3, headers={"Retry-After": "0"})
    front.fail("GET", "/manifests/", "status", status, times=3)
    front.fail("HEAD", "/blobs/", "status", status, times=3)
    assert get(registry, there) == DATA
    assert registry.manifest("team/faults", "v1")
    assert registry.has("team/faults", there.digest)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "anybody without credentials pull"),
        (404, "is not there"),
        (429, "too many requests"),
        (500, "a problem of its own"),
        (418, "status 418"),
    ],
)
def test_a_problem_that_stays_is_named(status: int, said: str, front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "status", status, times=100)
    front.fail("GET", "/manifests/", "status", status, times=100)
    for ask in (lambda: get(registry, there), lambda: registry.manifest("team/faults", "v1")):
        with pytest.raises(NetworkError, match=said) as caught:
            ask()
        fine(caught.value, front.host)
    assert front.count("GET") < 15


def test_a_long_pause_is_told_of_and_not_waited_for(front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "status", 429, times=100, headers={"Retry-After": "3600"})
    began = time.monotonic()
    with pytest.raises(NetworkError, match="a pause of 3600 s"):
        get(registry, there)
    assert time.monotonic() - began < 10
    assert front.count("GET", "/blobs/") == 1


def test_connections_that_end_without_an_answer(front: Front, registry: Registry, there: Blob) -> None:
    for method in ("GET", "HEAD", "POST", "PUT"):
        front.fail(method, "/blobs/", "drop", times=2)
    front.fail("GET", "/manifests/", "drop", times=2)
    front.fail("PUT", "/manifests/", "drop", times=2)
    assert get(registry, there) == DATA
    sent = registry.ensure("team/faults", b"dropped twice", "text/plain")
    assert registry.small("team/faults", sent) == b"dropped twice"
    assert registry.manifest("team/faults", "v1")
    assert registry.put_manifest("team/faults", "dropped", image(registry, "dropped"), MANIFEST)


@pytest.mark.parametrize("ending", ["cut", "drop"])
def test_a_short_upload_is_sent_again(ending: str, front: Front, registry: Registry) -> None:
    front.fail("PUT", "/blobs/uploads/", ending, 1000, times=2)
    data = os.urandom(1 << 20)
    sent = registry.upload("team/faults", iter([data]))
    assert b"".join(registry.blob("team/faults", sent.digest, sent.size)) == data


@pytest.mark.parametrize("place", [0, 1 << 20, 3 << 20])
def test_a_long_upload_goes_on_where_it_was_cut(place: int, front: Front, registry: Registry) -> None:
    """What was made is not made again: the source can be read only once."""
    front.fail("PATCH", "/blobs/uploads/", "cut", place)
    front.fail("PATCH", "/blobs/uploads/", "status", 503)
    sent = registry.upload("team/faults", (LONG[start : start + 100_000] for start in range(0, len(LONG), 100_000)))
    assert (sent.digest, sent.size) == (digest_of(LONG), len(LONG))
    assert front.count("PATCH") == 3
    assert registry.has("team/faults", sent.digest, sent.size)


class Again:
    """Bytes that can be made again; how often they were."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.times = 0

    def __iter__(self) -> Iterator[bytes]:
        self.times += 1
        for start in range(0, len(self.data), 100_000):
            yield self.data[start : start + 100_000]


@pytest.mark.parametrize("fault", [("cut", 3 << 20), ("drop", 0), ("status", 503), None])
def test_what_can_be_made_again_is_not_held(
    fault: tuple[str, int] | None, front: Front, registry: Registry, tmp_path: Path
) -> None:
    source = Again(os.urandom(100) + LONG)
    if fault:
        front.fail("PATCH", "/blobs/uploads/", *fault)
    registry = Registry(front.host, pause=0.001, folder=tmp_path / "not-there")  # a file there could not be made
    sent = registry.upload("team/faults", source)
    assert (sent.digest, sent.size) == (digest_of(source.data), len(source.data))
    assert registry.has("team/faults", sent.digest, sent.size)
    assert source.times == (1 if fault is None else 2)


def test_an_upload_whose_answer_is_lost_is_not_sent_twice(front: Front, registry: Registry) -> None:
    front.fail("PATCH", "/blobs/uploads/", "drop")
    front.fail("PUT", "/blobs/uploads/", "drop")
    sent = registry.upload("team/faults", iter([LONG, b"lost"]))
    assert registry.has("team/faults", sent.digest, len(LONG) + 4)


def test_an_upload_that_is_always_cut_is_given_up(front: Front, registry: Registry) -> None:
    front.fail("PATCH", "/blobs/uploads/", "cut", 1000, times=100)
    with pytest.raises(NetworkError, match="loses each upload") as caught:
        registry.upload("team/faults", iter([LONG]))
    fine(caught.value, front.host)


def test_other_bytes_than_sent_are_refused_by_the_registry(front: Front, registry: Registry) -> None:
    front.fail("PATCH", "/blobs/uploads/", "wrong", 5)
    with pytest.raises(NetworkError, match="DIGEST_INVALID") as caught:
        registry.upload("team/faults", iter([LONG, b"other"]))
    fine(caught.value, front.host)
    assert not registry.has("team/faults", digest_of(LONG + b"other"))


@pytest.mark.parametrize(("status", "said"), [(403, "push"), (413, "takes nothing of this size"), (507, "a problem of its own")])
def test_an_upload_that_is_refused(status: int, said: str, front: Front, registry: Registry) -> None:
    for method in ("POST", "PATCH", "PUT"):
        front.fail(method, "/blobs/uploads/", "status", status, times=100)
        for data in (b"short", LONG):
            if method == "PATCH" and data == b"short":
                continue
            with pytest.raises(NetworkError, match=said) as caught:
                registry.upload("team/faults", iter([data]))
            fine(caught.value, front.host)
        front._faults.clear()


@pytest.mark.parametrize(
    "target", ["http://registry.example.com/x", "ftp://registry.example.com/", "file:///etc/passwd", "http://[", "https://"]
)
def test_redirects_to_what_is_not_encrypted_are_refused(target: str, front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "redirect", target)
    with pytest.raises(NetworkError, match="sends on to") as caught:
        get(registry, there)
    fine(caught.value, front.host)
    front.fail("POST", "/blobs/uploads/", "location", target)
    with pytest.raises(NetworkError, match="sends on to") as caught:
        registry.upload("team/faults", [b"elsewhere"])
    fine(caught.value, front.host)


def test_a_redirect_to_another_host_gets_no_credentials(
    front: Front, real: str, registry: Registry, there: Blob, nothing_known: object
) -> None:
    front.token = True
    with Front(real) as storage:
        front.fail(
            "GET",
            "/blobs/",
            "redirect",
            f"http://{storage.host}/v2/team/faults/blobs/{there.digest}?X-Amz-Signature=abc",
            times=2,
        )
        storage.fail("GET", "/blobs/", "cut", 1 << 20)
        # The first answer of the front is 401 without a fault: faults come first, so the token is there by then.
        registry.manifest("team/faults", "v1")
        assert get(registry, there) == DATA
        assert {one.authorization for one in storage.asked} == {""}
        storage.fail("GET", "/blobs/", "status", 403)
        front.fail("GET", "/blobs/", "redirect", f"http://{storage.host}/v2/team/faults/blobs/{there.digest}?X-Amz-Signature=abc")
        with pytest.raises(NetworkError, match="answers with status 403") as caught:
            get(registry, there)
    fine(caught.value, front.host)
    assert "abc" not in str(caught.value)


def test_redirects_without_end(front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/blobs/", "redirect", f"/v2/team/faults/blobs/{there.digest}", times=100)
    with pytest.raises(NetworkError, match="redirects more than") as caught:
        get(registry, there)
    fine(caught.value, front.host)


def test_an_upload_that_is_redirected_is_refused(front: Front, registry: Registry) -> None:
    for method in ("POST", "PUT"):
        front.fail(method, "/blobs/uploads/", "redirect", "https://registry.example.com/x")
        with pytest.raises(NetworkError, match=f"redirects a {method} elsewhere") as caught:
            registry.upload("team/faults", [b"x"])
        fine(caught.value, front.host)


def test_a_tag_that_moves(front: Front, registry: Registry, there: Blob) -> None:
    """Between HEAD and GET: what is read is one whole manifest under its own digest, and the old one is still had by its own."""
    before = registry.head("team/faults", "v1")
    assert before is not None
    old = registry.manifest("team/faults", "v1")
    registry.put_manifest("team/faults", "v1", image(registry, "moved"), MANIFEST)
    data, _, digest = registry.manifest("team/faults", "v1")
    assert digest == digest_of(data) != before
    assert registry.manifest("team/faults", before) == old


def test_an_answer_for_another_digest_is_refused(front: Front, registry: Registry, there: Blob) -> None:
    digest = registry.head("team/faults", "v2")
    assert digest is not None
    front.fail("GET", "/manifests/", "wrong", 3)
    with pytest.raises(ArtifactError, match="another manifest") as caught:
        registry.manifest("team/faults", digest)
    fine(caught.value, front.host)


def test_a_digest_that_is_a_lie_is_refused(front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/manifests/", "lie", LIE)
    with pytest.raises(ArtifactError, match="says that the digest is") as caught:
        registry.manifest("team/faults", "v2")
    fine(caught.value, front.host)
    front.fail("PUT", "/manifests/", "lie", LIE)
    with pytest.raises(ArtifactError, match="says that it keeps") as caught:
        registry.put_manifest("team/faults", "v3", image(registry, "v3"), MANIFEST)
    fine(caught.value, front.host)
    front.fail("PUT", "/blobs/uploads/", "lie", LIE)
    with pytest.raises(ArtifactError, match="says that it keeps") as caught:
        registry.upload("team/faults", [b"a lie"])
    fine(caught.value, front.host)


def test_a_manifest_without_end_or_too_large(front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/manifests/", "endless")
    with pytest.raises(NetworkError, match="over 4,194,304 bytes") as caught:
        registry.manifest("team/faults", "v2")
    fine(caught.value, front.host)
    front.fail("GET", "/manifests/", "body", bytes(5 << 20))
    with pytest.raises(NetworkError, match="at most 4,194,304") as caught:
        registry.manifest("team/faults", "v2")
    fine(caught.value, front.host)


def test_a_cut_manifest_is_asked_for_again(front: Front, registry: Registry, there: Blob) -> None:
    front.fail("GET", "/manifests/", "cut", 10, times=2)
    assert registry.manifest("team/faults", "v2")
    front.fail("GET", "/manifests/", "cut", 10, times=100)
    with pytest.raises(NetworkError, match="breaks off each time"):
        registry.manifest("team/faults", "v2")


def test_an_index_whose_entry_is_another_image(front: Front, registry: Registry, there: Blob) -> None:
    data, _, digest = registry.manifest("team/faults", "v2")
    entry = b'{"mediaType":"%b","digest":"%b","size":%d,"platform":{"os":"linux","architecture":"amd64"}}'
    for size, good in ((len(data), True), (len(data) + 1, False)):
        index = b'{"schemaVersion":2,"mediaType":"%b","manifests":[%b]}' % (
            INDEX.encode(),
            entry % (MANIFEST.encode(), digest.encode(), size),
        )
        made = described(index, INDEX)
        registry.put_manifest("team/faults", "many", index, INDEX)
        if good:
            assert registry.image("team/faults", made.digest, architecture="amd64")[2] == digest
        else:
            with pytest.raises(ArtifactError, match="another size") as caught:
                registry.image("team/faults", made.digest, architecture="amd64")
            fine(caught.value, front.host)


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
def test_a_token_that_ends_while_a_blob_is_sent(method: str, front: Front, registry: Registry) -> None:
    front.token = True
    front.fail(method, "/blobs/uploads/", "revoke")
    sent = registry.upload("team/tokens", iter([LONG, method.encode()]))
    assert registry.has("team/tokens", sent.digest, sent.size)
    assert len(front.tokens) == (1 if method == "POST" else 2)


def test_what_is_held_is_all_that_memory_takes(front: Front, registry: Registry) -> None:
    import tracemalloc

    def many() -> object:
        for _ in range(40):
            yield bytes(1 << 20)

    tracemalloc.start()
    try:
        Registry(front.behind).upload("team/memory", many())  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 8 * upload.HELD
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
    """Several faults at once, by chance: what comes out is exact, or one of our errors."""
    chance = random.Random(seed)
    good, refused = 0, []
    for number in range(count):
        front._faults.clear()
        front.token = chance.random() < 0.5
        for _ in range(chance.randint(1, 6)):
            method, path, faults = chance.choice(KINDS)
            kind, value = chance.choice(faults)
            front.fail(method, path, kind, value)
        data = chance.randbytes(chance.choice([10, 1 << 20, 5 << 19, 3 << 20]))
        registry = Registry(front.host, pause=0.0)
        try:
            sent = registry.upload("team/mixed", Again(data) if number % 2 else iter([data[:70_000], data[70_000:]]))
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
    assert all(error.hint for error in refused)
    front._faults.clear()


def test_mixtures_of_faults(front: Front) -> None:
    mixtures(1, 15, front)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_many_mixtures_of_faults(seed: int, front: Front) -> None:
    mixtures(seed, 100, front)
