"""Layer blobs, compressed in the ways that others compress them."""

from __future__ import annotations

import gzip
import os

import pytest
import zstandard

from repro_env.image.entry import CHUNK
from repro_env.image.inflated import inflated
from repro_env.model.errors import ArtifactError

DATA = os.urandom(10_000) + bytes(3 * CHUNK)
ZSTD = zstandard.ZstdCompressor().compress(DATA)
SKIPPED = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
PACKED = {"plain": DATA, "gzip": gzip.compress(DATA), "zstd": ZSTD}


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [7, 4096, 1 << 30])
@pytest.mark.parametrize("kind", PACKED)
def test_any_kind_in_any_pieces(kind: str, size: int) -> None:
    packed = PACKED[kind]
    if size == 7:
        packed = packed[:70_000] if kind == "plain" else packed
    out = list(inflated(pieces(packed, size), where="layer"))
    assert b"".join(out) == (DATA[:70_000] if kind == "plain" and size == 7 else DATA)
    assert max(map(len, out)) <= CHUNK


def test_several_members_and_frames() -> None:
    assert b"".join(inflated([gzip.compress(b"one") + gzip.compress(b""), gzip.compress(b"two")], where="")) == b"onetwo"
    assert b"".join(inflated([SKIPPED + ZSTD + SKIPPED, ZSTD], where="")) == DATA + DATA


def test_nothing_is_nothing() -> None:
    assert list(inflated([b"", b""], where="")) == []


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [12, 5_000, -1])
def test_cut_bytes_are_found(kind: str, cut: int) -> None:
    with pytest.raises(ArtifactError, match="cut short"):
        list(inflated([PACKED[kind][:cut]], where="layer"))


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_damaged_bytes_and_what_follows_are_found(kind: str) -> None:
    packed = bytearray(PACKED[kind])
    packed[-3] ^= 1 if kind == "gzip" else 0
    with pytest.raises(ArtifactError, match="damaged"):
        list(inflated([bytes(packed) + b"garbage that is no frame"], where="layer"))


def test_a_bomb_comes_in_small_pieces() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(200 << 20))
    assert len(bomb) < 50_000
    assert all(len(chunk) <= CHUNK for chunk in inflated([bomb], where="layer"))
