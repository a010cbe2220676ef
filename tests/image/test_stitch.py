"""Encoder 1: what it makes is a gzip file of the layer's tar, always the same bytes, and a lying deflate stream is found."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro_env.image import stitch, tar
from repro_env.image.entry import CHUNK, Entry, ordered
from repro_env.image.stitch import Deflated, stitched
from repro_env.model.errors import ArtifactError
from repro_env.store import inflate
from tests.parts import need

Source = tuple[Entry, bytes | Deflated]

HELLO = bytes.fromhex("cb48cdc9c957c8c0472a7265504d1100")
"""A deflate stream that somebody made once, so that no library's compressor decides the golden digest."""
HELLO_TEXT = zlib.decompress(HELLO, -15)
FLUSHED = zlib.compressobj(1, wbits=-15)
ZEROS = FLUSHED.compress(bytes(CHUNK)) + FLUSHED.flush(zlib.Z_FULL_FLUSH)
"""A stream of 1 MiB of zeros that can be put before others: a long stream costs no time to make."""
END = b"\x03\x00"


@pytest.fixture(params=["zlib", "isal.isal_zlib"])
def library(request: pytest.FixtureRequest) -> Any:
    try:
        return importlib.import_module(request.param)
    except ImportError:
        need(False, f"{request.param} is missing: pip install 'repro-env[fast]'")


def deflated(text: bytes, level: int = 6) -> Deflated:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return Deflated(zlib.crc32(text), len(text), [packer.compress(text) + packer.flush()])


def entry_of(path: str, size: int, *, executable: bool = False) -> Entry:
    return Entry(path, "file", executable, size)


def sample() -> list[Source]:
    texts: dict[str, bytes | Deflated] = {
        "a/b/run.sh": b"#!/bin/sh\n",
        "a/empty": b"",
        "a/hello": Deflated(zlib.crc32(HELLO_TEXT), len(HELLO_TEXT), [HELLO]),
        "a/again": Deflated(zlib.crc32(HELLO_TEXT), len(HELLO_TEXT), [HELLO[:3], HELLO[3:]]),
        "a/nothing": Deflated(0, 0, [END]),
        "a/" + "x" * 99: b"101 bytes of path",
        "a/größe/ünï": "ü".encode(),
        "a/block": b"z" * 512,
        "a/blocks": bytes(range(256)) * 256,
        "a/large": b"0123456789abcdef" * 10000,
    }
    entries = [
        entry_of(path, one.size if isinstance(one, Deflated) else len(one), executable=path.endswith(".sh"))
        for path, one in texts.items()
    ]
    entries += [
        Entry("a/link", "link", target="b/run.sh"),
        Entry("a/far", "link", target="/" + "t" * 120),
        Entry("a/old", "gone"),
    ]
    return [(entry, texts.get(entry.path, b"")) for entry in ordered(entries)]


def packed(sources: Iterable[Source], *, step: int = 0, **options: Any) -> bytes:
    """The layer's gzip bytes; plain contents come in pieces of `step` bytes."""

    def pieces(text: bytes) -> Iterator[bytes]:
        return (text[at : at + (step or CHUNK)] for at in range(0, len(text), step or CHUNK))

    return b"".join(stitched(((e, s if isinstance(s, Deflated) else pieces(s)) for e, s in sources), **options))


def as_tar(sources: Iterable[Source]) -> bytes:
    def text(one: bytes | Deflated) -> bytes:
        return zlib.decompress(b"".join(one.chunks), -15) if isinstance(one, Deflated) else one

    return b"".join(tar.write((entry, [text(one)] if entry.size else []) for entry, one in sources))


def test_golden_bytes() -> None:
    """The encoder is frozen: another digest here is another manifest digest for everybody."""
    data = packed(sample())
    assert (stitch.ENCODER, len(data)) == (1, 227915)
    assert hashlib.sha256(data).hexdigest() == "c1f636cf8ec60f007a790a2d3b6a3a98d0e27b64401eaebe8b59844ce9342110"


def test_golden_bytes_of_one_file() -> None:
    """Small enough to be read: header, fixed block, stored block, fixed block, last block, CRC and size."""
    data = packed([(entry_of("a", 5), b"hello")])
    assert data.hex() == (
        "1f8b08000000000000ff4a64a03d30000233131306030860308000060338306530303232333635323630306030303033343662503060a003"
        "282d2e492c62303060189900000500faff68656c6c6f6218052315308c8251300a462c000c006d0dc35800080000"
    )


def test_no_compressor_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    want = packed(sample())

    def never(*_: object, **__: object) -> None:
        pytest.fail("bytes of a layer are not to depend on a compressor")

    monkeypatch.setattr(zlib, "compressobj", never)
    monkeypatch.setattr(zlib, "compress", never)
    assert packed(sample(), prove=lambda _: None) == want


def test_all_readers_get_the_bytes_of_the_tar(tmp_path: Path, library: Any) -> None:
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
    """Member after member, as a reader that knows nothing of ours does it."""
    parts = []
    while data:
        member = library.decompressobj(31)
        parts.append(member.decompress(data))
        assert member.eof
        data = member.unused_data
    return b"".join(parts)


def test_proving_gives_the_tar_and_the_same_bytes(library: Any) -> None:
    seen: list[bytes] = []
    assert packed(sample(), prove=seen.append, library=library) == packed(sample())
    assert b"".join(seen) == as_tar(sample())
    assert max(map(len, seen)) <= CHUNK


@pytest.mark.parametrize("step", [1, 7, 512, 65534, 65535, 65536, 131070])
def test_how_contents_come_changes_nothing(step: int) -> None:
    assert packed(sample(), step=step) == packed(sample())


def test_every_run_of_zeros_and_every_byte() -> None:
    """Lengths around each of deflate's length symbols, where one more or less is another code."""
    for length in range(1100):
        for byte in (b"\0", b"0", b"1"):
            assert coded(byte * length) == byte * length
    assert coded(bytes(range(256)) * 3) == bytes(range(256)) * 3


def coded(piece: bytes) -> bytes:
    run = stitch._Run()
    return gzip.decompress(run.coded(piece) + run.end())


PIECES = st.lists(st.one_of(st.binary(max_size=40), st.integers(1, 600).map(bytes), st.integers(1, 40).map(lambda n: b"0" * n)))
CONTENTS = PIECES.map(b"".join)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=130).filter(
    lambda name: name not in (".", "..") and not name.startswith(".wh.")
)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, st.tuples(CONTENTS, st.sampled_from([None, 0, 1, 9])), max_size=6), st.integers(1, 700))
def test_any_layer_comes_back(tree: dict[str, tuple[bytes, int | None]], step: int) -> None:
    sources: list[Source] = []
    for path in sorted(tree, key=str.encode):
        text, level = tree[path]
        sources.append((entry_of(path, len(text)), text if level is None else deflated(text, level)))
    seen: list[bytes] = []
    data = packed(sources, step=step, prove=seen.append)
    want = as_tar(sources)
    assert b"".join(seen) == want
    assert inflated(data, zlib) == want
    assert data == packed(sources)


@settings(max_examples=60)
@given(PIECES)
def test_any_bytes_are_coded(pieces: list[bytes]) -> None:
    run = stitch._Run()
    data = b"".join(run.stored(piece) if len(piece) % 5 == 1 else run.coded(piece) for piece in pieces) + run.end()
    assert gzip.decompress(data) == b"".join(pieces)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 65535, 65536, 131070, 131071, 3 * CHUNK + 1])
def test_plain_contents_of_any_size(size: int) -> None:
    text = (b"0123456789abcde" * (size // 15 + 1))[:size]
    sources: list[Source] = [(entry_of("a", size), text)]
    data = packed(sources, step=CHUNK)
    assert gzip.decompress(data) == as_tar(sources)
    assert len(data) < size + size // 65535 * 5 + 400


def test_plain_contents_are_not_held() -> None:
    """What goes in comes out before more is asked for: a member of many GiB needs no memory."""
    asked = 0

    def chunks() -> Iterator[bytes]:
        nonlocal asked
        for _ in range(64):
            asked += 1
            yield bytes(CHUNK)

    got = 0
    for piece in stitched([(entry_of("a", 64 * CHUNK), chunks())]):
        got += len(piece)
        assert asked * CHUNK - got < 2 * CHUNK
    assert got > 64 * CHUNK


def test_a_content_of_another_size_than_its_entry() -> None:
    with pytest.raises(ArtifactError, match="has 5 bytes where 4 were expected"):
        packed([(entry_of("a", 4), b"hello")])
    with pytest.raises(ArtifactError, match="has 0 bytes where 4 were expected"):
        packed([(entry_of("a", 4), b"")])
    with pytest.raises(ArtifactError, match="has 5 bytes where 4 were expected"):
        packed([(entry_of("a", 4), deflated(b"hello"))])
    with pytest.raises(ArtifactError, match="has 5 bytes where 0 were expected"):
        packed([(entry_of("a", 0), deflated(b"hello"))])


def lie(text: bytes, **changes: Any) -> Deflated:
    good = deflated(text)
    return Deflated(**{"crc": good.crc, "size": good.size, "chunks": good.chunks, **changes})


TEXT = b"".join(b"%d " % number for number in range(5000))
STREAM = b"".join(deflated(TEXT).chunks)
LIES = {
    "junk after the end": (lie(TEXT, chunks=[STREAM + b"x"]), "after the end"),
    "junk in a chunk of its own": (lie(TEXT, chunks=[STREAM, b"x"]), "after the end"),
    "a second stream": (lie(TEXT, chunks=[STREAM + STREAM]), "after the end"),
    "another CRC": (lie(TEXT, crc=zlib.crc32(TEXT) ^ 1), "size or CRC"),
    "more than it says": (lie(TEXT, size=len(TEXT) - 1), "more than the"),
    "less than it says": (lie(TEXT, size=len(TEXT) + 1), "size or CRC"),
    "cut short": (lie(TEXT, chunks=[STREAM[:-1]]), "size or CRC"),
    "cut in the middle": (lie(TEXT, chunks=[STREAM[: len(STREAM) // 2]]), "size or CRC"),
    "nothing at all": (lie(TEXT, chunks=[]), "size or CRC"),
    "no deflate stream": (lie(TEXT, chunks=[b"\xff" * 100]), "cannot be inflated"),
    "a bomb": (lie(TEXT, chunks=[ZEROS * 1024, END]), "more than the"),
    "a gzip header": (lie(TEXT, chunks=[gzip.compress(TEXT)]), "cannot be inflated"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lying_stream_is_found_when_proving(name: str, library: Any) -> None:
    content, words = LIES[name]
    seen = 0

    def count(data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    with pytest.raises(ArtifactError, match=words) as raised:
        packed([(entry_of("a/file", content.size), content)], prove=count, library=library)
    assert raised.value.where == "a/file"
    assert seen <= tar.BLOCK + content.size, "no more comes out than was said"


@pytest.mark.parametrize(("size", "pax"), [((4 << 30) + 16 * CHUNK, False), (12 << 30, True)])
def test_members_over_4_gib_by_construction(size: int, pax: bool) -> None:
    """Nothing is inflated here: the tar header has the whole size, the gzip member's trailer what fits into 32 bits."""
    content = Deflated(crc=0x12345678, size=size, chunks=[b"stream"])
    head = tar.header(entry_of("big", size))
    assert (b"size=" in head) == pax
    data = packed([(entry_of("big", size), content)])
    run = stitch._Run()
    assert data.startswith(run.coded(head) + run.end() + stitch._HEADER + b"stream")
    at = data.index(b"stream") + 6
    assert data[at : at + 8] == (0x12345678).to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")


@pytest.mark.soak
@pytest.mark.parametrize("size", [(4 << 30) + CHUNK, (8 << 30) + CHUNK])
def test_members_over_4_gib_for_real(size: int) -> None:
    crc = 0
    for _ in range(size // CHUNK):
        crc = zlib.crc32(bytes(CHUNK), crc)
    want = hashlib.sha256()
    for chunk in tar.write([(entry_of("big", size), (bytes(CHUNK) for _ in range(size // CHUNK)))]):
        want.update(chunk)
    got = hashlib.sha256()
    chunks = [ZEROS] * (size // CHUNK) + [END]
    data = packed([(entry_of("big", size), Deflated(crc, size, chunks))], prove=got.update, library=inflate.ZLIB)
    assert got.hexdigest() == want.hexdigest()
    done = subprocess.run(["sh", "-c", "gzip -dc | sha256sum"], input=data, capture_output=True, check=True)
    assert (done.stdout.split()[0].decode(), done.stderr) == (want.hexdigest(), b"")
    with tarfile.open(fileobj=BytesIO(data), mode="r:gz") as archive:
        assert [one.size for one in archive] == [size]
