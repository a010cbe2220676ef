"""Encoder 1: the gzip of a layer's tar, always with the same bytes; a wrong deflate stream is found."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro_env.oci import gzipencoder, inflate, tar
from repro_env.oci.entry import CHUNK, Entry, sort_with_parents
from repro_env.oci.gzipencoder import stitch_layer
from repro_env.oci.inflate import Deflated
from repro_env.schema.errors import ArtifactError
from tests.parts import need

Source = tuple[Entry, bytes | Deflated]

HELLO = bytes.fromhex("cb48cdc9c957c8c0472a7265504d1100")
"""A fixed deflate stream, so that the golden digest does not depend on a compressor."""
HELLO_TEXT = zlib.decompress(HELLO, -15)
FLUSHED = zlib.compressobj(1, wbits=-15)
ZEROS = FLUSHED.compress(bytes(CHUNK)) + FLUSHED.flush(zlib.Z_FULL_FLUSH)
"""A stream of 1 MiB of zeros that can be put before other streams, so that long streams are quick to make."""
END = b"\x03\x00"


@pytest.fixture(params=["zlib", "isal.isal_zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library that decompresses."""
    try:
        monkeypatch.setattr(inflate, "ZLIB", importlib.import_module(request.param))
    except ImportError:
        need(False, f"{request.param} is missing: it has no wheel for this Python")
    return inflate.ZLIB


def deflated(text: bytes, level: int = 6) -> Deflated:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return Deflated(zlib.crc32(text), len(text), [packer.compress(text) + packer.flush()], "a/file")


def entry_of(path: str, size: int, *, executable: bool = False) -> Entry:
    return Entry(path, "file", executable, size)


def sample() -> list[Source]:
    texts: dict[str, bytes | Deflated] = {
        "a/b/run.sh": b"#!/bin/sh\n",
        "a/empty": b"",
        "a/hello": Deflated(zlib.crc32(HELLO_TEXT), len(HELLO_TEXT), [HELLO], ""),
        "a/again": Deflated(zlib.crc32(HELLO_TEXT), len(HELLO_TEXT), [HELLO[:3], HELLO[3:]], ""),
        "a/nothing": Deflated(0, 0, [END], ""),
        "a/" + "x" * 99: b"101 bytes of path",
        "a/größe/ünï": "ü".encode(),
        "a/block": b"z" * 512,
        "a/blocks": bytes(range(256)) * 256,
        "a/large": b"0123456789abcdef" * 10000,
    }
    entries = [
        entry_of(path, item.size if isinstance(item, Deflated) else len(item), executable=path.endswith(".sh"))
        for path, item in texts.items()
    ]
    entries += [
        Entry("a/link", "link", target="b/run.sh"),
        Entry("a/far", "link", target="/" + "t" * 120),
        Entry("a/old", "gone"),
    ]
    return [(entry, texts.get(entry.path, b"")) for entry in sort_with_parents(entries)]


def packed(sources: Iterable[Source], *, step: int = 0, **options: Any) -> bytes:
    """Return the layer's gzip. Plain contents are given in chunks of `step` bytes."""

    def pieces(text: bytes) -> Iterator[bytes]:
        return (text[at : at + (step or CHUNK)] for at in range(0, len(text), step or CHUNK))

    return b"".join(stitch_layer(((e, s if isinstance(s, Deflated) else pieces(s)) for e, s in sources), **options))


def as_tar(sources: Iterable[Source]) -> bytes:
    def text(content: bytes | Deflated) -> bytes:
        return zlib.decompress(b"".join(content.chunks), -15) if isinstance(content, Deflated) else content

    return b"".join(tar.write((entry, [text(source)] if entry.size else []) for entry, source in sources))


def test_golden_bytes() -> None:
    """The encoder is frozen: a different digest here means different manifest digests for all users."""
    data = packed(sample())
    assert (gzipencoder.ENCODER, len(data)) == (1, 227915)
    assert hashlib.sha256(data).hexdigest() == "c1f636cf8ec60f007a790a2d3b6a3a98d0e27b64401eaebe8b59844ce9342110"


def test_golden_bytes_of_one_file() -> None:
    """Small enough to read: header, fixed block, stored block, fixed block, last block, CRC and size."""
    data = packed([(entry_of("a", 5), b"hello")])
    assert data.hex() == (
        "1f8b08000000000000ff4a64a03d30000233131306030860308000060338306530303232333635323630306030303033343662503060a003"
        "282d2e492c62303060189900000500faff68656c6c6f6218052315308c8251300a462c000c006d0dc35800080000"
    )


def test_no_compressor_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    want = packed(sample())

    def never(*_: object, **__: object) -> None:
        pytest.fail("bytes of a layer are not to depend on a compressor")

    monkeypatch.setattr(zlib, "compressobj", never)
    monkeypatch.setattr(zlib, "compress", never)
    assert packed(sample(), prove=lambda _: None) == want


def test_all_gzip_readers_get_the_bytes_of_the_tar(tmp_path: Path, library: Any) -> None:
    data, want = packed(sample()), as_tar(sample())
    assert inflated(data, library) == want
    assert gzip.decompress(data) == want
    assert subprocess.run(["gzip", "-dc"], input=data, capture_output=True, check=True).stdout == want
    subprocess.run(["gzip", "--test"], input=data, check=True)
    (tmp_path / "layer.tar.gz").write_bytes(data)
    listed = subprocess.run(
        ["tar", "-tzf", str(tmp_path / "layer.tar.gz"), "--quoting-style=literal"], capture_output=True, check=True
    )
    assert (len(listed.stdout.splitlines()), listed.stderr) == (len(sample()), b"")
    with tarfile.open(tmp_path / "layer.tar.gz") as archive:
        assert len(archive.getmembers()) == len(sample())


def inflated(data: bytes, library: Any) -> bytes:
    """Decompress member after member, as any gzip reader does."""
    parts = []
    while data:
        member = library.decompressobj(31)
        parts.append(member.decompress(data))
        assert member.eof
        data = member.unused_data
    return b"".join(parts)


@pytest.mark.usefixtures("library")
def test_proving_passes_the_tar_and_yields_the_same_bytes() -> None:
    proven: list[bytes] = []
    assert packed(sample(), prove=proven.append) == packed(sample())
    assert b"".join(proven) == as_tar(sample())
    assert max(map(len, proven)) <= CHUNK


@pytest.mark.parametrize("step", [1, 7, 512, 65534, 65535, 65536, 131070])
def test_the_chunks_of_contents_do_not_change_the_result(step: int) -> None:
    assert packed(sample(), step=step) == packed(sample())


def test_runs_of_zeros_and_all_bytes_are_encoded() -> None:
    """Lengths around each length symbol of deflate, where the code changes."""
    for length in range(1100):
        for byte in (b"\0", b"0", b"1"):
            assert coded(byte * length) == byte * length
    assert coded(bytes(range(256)) * 3) == bytes(range(256)) * 3


def coded(piece: bytes) -> bytes:
    run = gzipencoder._Run()
    return gzip.decompress(run.coded(piece) + run.end())


PIECES = st.lists(st.one_of(st.binary(max_size=40), st.integers(1, 600).map(bytes), st.integers(1, 40).map(lambda n: b"0" * n)))
CONTENTS = PIECES.map(b"".join)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=130).filter(
    lambda name: name not in (".", "..") and not name.startswith(".wh.")
)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, st.tuples(CONTENTS, st.sampled_from([None, 0, 1, 9])), max_size=6), st.integers(1, 700))
def test_any_layer_can_be_decompressed(tree: dict[str, tuple[bytes, int | None]], step: int) -> None:
    sources: list[Source] = []
    for path in sorted(tree, key=str.encode):
        text, level = tree[path]
        sources.append((entry_of(path, len(text)), text if level is None else deflated(text, level)))
    proven: list[bytes] = []
    data = packed(sources, step=step, prove=proven.append)
    expected = as_tar(sources)
    assert b"".join(proven) == expected
    assert inflated(data, zlib) == expected
    assert data == packed(sources)


@settings(max_examples=60)
@given(PIECES)
def test_any_bytes_can_be_encoded(pieces: list[bytes]) -> None:
    run = gzipencoder._Run()
    data = b"".join(run.stored(piece) if len(piece) % 5 == 1 else run.coded(piece) for piece in pieces) + run.end()
    assert gzip.decompress(data) == b"".join(pieces)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 65535, 65536, 131070, 131071, 3 * CHUNK + 1])
def test_plain_contents_of_any_size_are_stored(size: int) -> None:
    text = (b"0123456789abcde" * (size // 15 + 1))[:size]
    sources: list[Source] = [(entry_of("a", size), text)]
    data = packed(sources, step=CHUNK)
    assert gzip.decompress(data) == as_tar(sources)
    assert len(data) < size + size // 65535 * 5 + 400


def test_plain_contents_are_not_held_in_memory() -> None:
    """Each chunk is yielded before the next is read, so a member of many GiB needs little memory."""
    asked = 0

    def chunks() -> Iterator[bytes]:
        nonlocal asked
        for _ in range(64):
            asked += 1
            yield bytes(CHUNK)

    got = 0
    for piece in stitch_layer([(entry_of("a", 64 * CHUNK), chunks())]):
        got += len(piece)
        assert asked * CHUNK - got < 2 * CHUNK
    assert got > 64 * CHUNK


def test_a_content_without_its_entrys_size_is_refused() -> None:
    with pytest.raises(ArtifactError, match="has 5 bytes instead of the expected 4"):
        packed([(entry_of("a", 4), b"hello")])
    with pytest.raises(ArtifactError, match="has 0 bytes instead of the expected 4"):
        packed([(entry_of("a", 4), b"")])
    with pytest.raises(ArtifactError, match="has 5 bytes instead of the expected 4"):
        packed([(entry_of("a", 4), deflated(b"hello"))])
    with pytest.raises(ArtifactError, match="has 5 bytes instead of the expected 0"):
        packed([(entry_of("a", 0), deflated(b"hello"))])


def lie(text: bytes, **changes: Any) -> Deflated:
    good = deflated(text)
    return Deflated(**{"crc": good.crc, "size": good.size, "chunks": good.chunks, "where": good.where, **changes})


TEXT = b"".join(b"%d " % number for number in range(5000))
STREAM = b"".join(deflated(TEXT).chunks)
LIES = {
    "junk after the end": (lie(TEXT, chunks=[STREAM + b"x"]), "after the end"),
    "junk in a chunk of its own": (lie(TEXT, chunks=[STREAM, b"x"]), "after the end"),
    "a second stream": (lie(TEXT, chunks=[STREAM + STREAM]), "after the end"),
    "another CRC": (lie(TEXT, crc=zlib.crc32(TEXT) ^ 1), "size and CRC"),
    "more than it says": (lie(TEXT, size=len(TEXT) - 1), "larger than the"),
    "less than it says": (lie(TEXT, size=len(TEXT) + 1), "size and CRC"),
    "cut short": (lie(TEXT, chunks=[STREAM[:-1]]), "is truncated"),
    "cut in the middle": (lie(TEXT, chunks=[STREAM[: len(STREAM) // 2]]), "is truncated"),
    "nothing at all": (lie(TEXT, chunks=[]), "is truncated"),
    "no deflate stream": (lie(TEXT, chunks=[b"\xff" * 100]), "is damaged"),
    "a bomb": (lie(TEXT, chunks=[ZEROS * 1024, END]), "larger than the"),
    "a gzip header": (lie(TEXT, chunks=[gzip.compress(TEXT)]), "is damaged"),
}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", LIES)
def test_a_wrong_deflate_stream_is_found_when_proving(name: str) -> None:
    content, words = LIES[name]
    with pytest.raises(ArtifactError, match=words):
        list(content)
    size = 0

    def count(data: bytes) -> None:
        nonlocal size
        size += len(data)

    with pytest.raises(ArtifactError, match=words) as raised:
        packed([(entry_of("a/file", content.size), content)], prove=count)
    assert raised.value.where == "a/file"
    assert size <= tar.BLOCK + content.size, "at most the declared size is decompressed"


@pytest.mark.parametrize(("size", "pax"), [((4 << 30) + 16 * CHUNK, False), (12 << 30, True)])
def test_the_trailer_of_a_member_over_4_gib_is_right(size: int, pax: bool) -> None:
    """The tar header has the complete size, the gzip trailer its lower 32 bits."""
    assert (b"size=" in tar.header(entry_of("big", size))) == pax
    assert gzipencoder._trailer(0x12345678, size) == (0x12345678).to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(
        4, "little"
    )
