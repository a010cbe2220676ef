from __future__ import annotations

import hashlib
import threading

import pytest

from repro_env.oci.layer import HashThread

SIZES = {
    "nothing": [],
    "empty": [0, 0],
    "small": [1, 512, 0, 3],
    "many small": [512] * 3000,
    "large": [1 << 20, 1 << 18, (1 << 18) - 1, 1],
    "mixed": [512, 1 << 20, 300, 512, 70_000, 200_000, 1 << 19, 0, 7] * 3,
}


@pytest.mark.parametrize("name", SIZES)
def test_a_thread_hashes_the_same_bytes(name: str) -> None:
    chunks = [bytes([number % 251]) * size for number, size in enumerate(SIZES[name])]
    with HashThread() as hasher:
        for chunk in chunks:
            hasher.update(chunk)
        digest = hasher.digest()
    assert digest == f"sha256:{hashlib.sha256(b''.join(chunks)).hexdigest()}"


def test_few_bytes_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    with HashThread() as hasher:
        hasher.update(b"x" * 1000)
        assert hasher.digest() == f"sha256:{hashlib.sha256(b'x' * 1000).hexdigest()}"


def test_the_thread_ends_when_the_bytes_cannot_be_read() -> None:
    before = threading.active_count()

    def hash_unreadable() -> None:
        with HashThread() as hasher:
            for _ in range(20):
                hasher.update(bytes(1 << 20))
            assert threading.active_count() == before + 1
            raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        hash_unreadable()
    assert threading.active_count() == before
