"""Decompressing layer blobs of other tools."""

from __future__ import annotations

import gzip
import os

import pytest
import zstandard

from repro_env.oci.decompression import decompress
from repro_env.oci.entry import CHUNK
from repro_env.schema.errors import ArtifactError

DATA = os.urandom(10_000) + bytes(3 * CHUNK)
ZSTD = zstandard.ZstdCompressor().compress(DATA)
SKIPPED = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
PACKED = {"plain": DATA, "gzip": gzip.compress(DATA), "zstd": ZSTD}


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [7, 4096, 1 << 30])
@pytest.mark.parametrize("kind", PACKED)
def test_every_compression_is_read_in_chunks_of_any_size(kind: str, size: int) -> None:
    packed = PACKED[kind]
    if size == 7:
        packed = packed[:70_000] if kind == "plain" else packed
    out = list(decompress(pieces(packed, size), where="layer"))
    assert b"".join(out) == (DATA[:70_000] if kind == "plain" and size == 7 else DATA)
    assert max(map(len, out)) <= CHUNK


def test_several_members_and_frames_are_read() -> None:
    assert b"".join(decompress([gzip.compress(b"one") + gzip.compress(b""), gzip.compress(b"two")], where="")) == b"onetwo"
    assert b"".join(decompress([SKIPPED + ZSTD + SKIPPED, ZSTD], where="")) == DATA + DATA


def test_an_empty_blob_gives_no_bytes() -> None:
    assert list(decompress([b"", b""], where="")) == []


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [12, 5_000, -1])
def test_a_truncated_blob_is_refused(kind: str, cut: int) -> None:
    with pytest.raises(ArtifactError, match="truncated"):
        list(decompress([PACKED[kind][:cut]], where="layer"))


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_damaged_and_trailing_bytes_are_refused(kind: str) -> None:
    packed = bytearray(PACKED[kind])
    packed[-3] ^= 1 if kind == "gzip" else 0
    with pytest.raises(ArtifactError, match="damaged"):
        list(decompress([bytes(packed) + b"garbage after the frame"], where="layer"))


def test_a_decompression_bomb_comes_in_small_chunks() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(200 << 20))
    assert len(bomb) < 50_000
    sizes = [len(chunk) for chunk in decompress([bomb], where="layer")]
    assert (max(sizes) <= CHUNK, sum(sizes)) == (True, 200 << 20)
