from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repro_env.schema.errors import ArtifactError, DiskError, StoreError
from repro_env.store.blobs import write_hashed
from repro_env.store.store import Store

DATA = os.urandom(700_000)
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()


def _chunks(data: bytes) -> Iterator[bytes]:
    yield from (data[start : start + 100_000] for start in range(0, len(data), 100_000))


def _everything(store: Store) -> list[Path]:
    return [path for directory in ("blobs", "temp") for path in (store.root / directory).rglob("*")]


def test_a_blob_is_kept_under_its_digest_and_cannot_be_written(store: Store) -> None:
    assert store.blobs.path(DIGEST) is None

    path = store.blobs.put(_chunks(DATA), DIGEST, where="example.org")

    assert path == store.blobs.path(DIGEST) == store.blobs.path(DIGEST.removeprefix("sha256:"))
    assert path.read_bytes() == DATA
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert _everything(store) == [path]


def test_an_existing_blob_is_not_fetched_again(store: Store) -> None:
    path = store.blobs.put(_chunks(DATA), DIGEST, where="example.org")

    def never() -> Iterator[bytes]:
        pytest.fail("it was fetched")
        yield b""

    assert store.blobs.put(never(), DIGEST, where="example.org") == path


def test_commands_that_use_a_blob_at_once_do_not_read_it_again(store: Store) -> None:
    name = store.blobs.put(_chunks(DATA), DIGEST, where="example.org").name
    key = (store.root / "boot" / name).read_text().partition(" ")[2]
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda _: store.boot.is_marked(name, key), range(4000)))


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"x", b"", bytes([DATA[0] ^ 1]) + DATA[1:]])
def test_a_blob_with_wrong_bytes_is_refused_and_the_source_named(store: Store, data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"example\.org/numpy\.whl: the file does not have the expected content") as raised:
        store.blobs.put(_chunks(data), DIGEST, where="example.org/numpy.whl")
    assert DIGEST.removeprefix("sha256:")[:16] in str(raised.value)
    assert _everything(store) == []


def test_bytes_with_an_unknown_digest_are_stored_under_their_own(store: Store) -> None:
    path, digest = store.blobs.add([b"de", b"mo"])
    assert digest == "sha256:" + hashlib.sha256(b"demo").hexdigest()
    assert store.blobs.path(digest) == path
    assert store.blobs.add([b"demo"]) == (path, digest)


def test_a_source_that_fails_leaves_nothing(store: Store) -> None:
    def failing() -> Iterator[bytes]:
        yield DATA[:1000]
        raise ConnectionResetError("reset by peer")

    with pytest.raises(ConnectionResetError):
        store.blobs.put(failing(), DIGEST, where="example.org")
    assert _everything(store) == []


def test_a_damaged_blob_of_an_earlier_boot_counts_as_missing(store: Store) -> None:
    path = store.blobs.put(_chunks(DATA), DIGEST, where="example.org")
    path.chmod(0o644)
    path.write_bytes(DATA[:5000])
    after = Store.open(store.root)
    after.boot._now = "another boot"

    assert after.blobs.path(DIGEST) is None
    assert after.blobs.put(_chunks(DATA), DIGEST, where="example.org").read_bytes() == DATA


def test_a_blob_can_be_read_again_within_a_boot(store: Store) -> None:
    path = store.blobs.put(_chunks(DATA), DIGEST, where="example.org")
    facts = path.stat()
    path.chmod(0o644)
    path.write_bytes(bytes(len(DATA)))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert store.blobs.path(DIGEST) == path
    assert store.blobs.path(DIGEST, again=True) is None


def test_only_a_digest_is_accepted_as_a_name(store: Store) -> None:
    with pytest.raises(StoreError, match="not a sha256"):
        store.blobs.path("sha256:../../../etc/passwd")


def test_a_full_disk_is_reported_and_nothing_is_left_behind(small_disk: Path) -> None:
    store = Store.open(small_disk / "store")
    before = os.statvfs(small_disk)
    data = os.urandom(5_000_000)

    with pytest.raises(DiskError, match="5,000,000 bytes needed"):
        store.blobs.put(_chunks(data), hashlib.sha256(data).hexdigest(), where="example.org", size=5_000_000)

    after = os.statvfs(small_disk)
    assert (after.f_bfree, after.f_ffree) == (before.f_bfree, before.f_ffree)
    assert store.blobs.put(_chunks(DATA), DIGEST, where="example.org").read_bytes() == DATA


def test_a_source_that_is_not_read_to_its_end_is_closed_at_once(tmp_path: Path) -> None:
    """Not when the error is forgotten: a download would keep its connection as long."""
    closed = []

    def chunks() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 1024
        finally:
            closed.append(True)

    source = chunks()
    next(source)
    with pytest.raises(FileNotFoundError) as caught:
        write_hashed(tmp_path / "missing" / "blob", source)
    assert closed, caught
