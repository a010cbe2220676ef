"""Reading wheels: the stitched streams of a wheel decompress to the same tar as unpacking it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from repro_env.oci import tar, wheel
from repro_env.oci.entry import Entry, Members, sort_with_parents
from repro_env.oci.gzipencoder import stitch_layer
from repro_env.oci.inflate import Deflated
from repro_env.schema.errors import ArtifactError
from repro_env.store.packages.wheelfile import WheelContents, open_facts
from tests.fakes import wheels

pytestmark = pytest.mark.usefixtures("inflater")

INFO = "demo-1.0.dist-info"
FILES = {
    "demo/__init__.py": b"NAME = 'demo'\n" * 100,
    "demo/empty.py": b"",
    "demo/" + "n" * 110 + ".py": b"a name of more than 100 bytes",
    "demo/größe.txt": "ünï".encode(),
    "demo/data.bin": bytes(range(256)) * 5000,
    "demo-1.0.data/scripts/tool": b"#!python\nprint('tool')\n",
    "demo-1.0.data/headers/demo.h": b"int demo;\n" * 20,
    "demo-1.0.data/data/share/demo/thing": b"thing",
    "demo-1.0.data/purelib/demo_pure.py": b"pure = 1\n" * 9,
}
Write = Callable[[zipfile.ZipFile, zipfile.ZipInfo, bytes], None]


def deflate(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    archive.writestr(info, data, zipfile.ZIP_DEFLATED)


def store(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    archive.writestr(info, data, zipfile.ZIP_STORED)


def zip64(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    """Write local headers with the zip64 extra field, as for members that may exceed 4 GiB."""
    info.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(info, "w", force_zip64=True) as file:
        file.write(data)


def mixed(archive: zipfile.ZipFile, info: zipfile.ZipInfo, data: bytes) -> None:
    (store if len(info.filename) % 2 else deflate)(archive, info, data)


class Pipe(io.FileIO):
    """A file that cannot seek, so `zipfile` writes sizes after the data."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError

    def seek(self, *_: int) -> int:
        raise OSError


def made(path: Path, write: Write, files: Mapping[str, bytes] | None = None, *, streamed: bool = False) -> Path:
    content = dict(FILES if files is None else files)
    content[f"{INFO}/WHEEL"] = wheels.WHEEL
    content[f"{INFO}/entry_points.txt"] = b"[console_scripts]\ndemo = demo:main\n"
    rows = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in content.items()
    )
    content[f"{INFO}/RECORD"] = f"{rows}{INFO}/RECORD,,\n".encode()
    file = Pipe(path, "wb") if streamed else path.open("wb")
    with file, zipfile.ZipFile(file, "w") as archive:
        for name, data in content.items():
            write(archive, zipfile.ZipInfo(name), data)
    return path


def installed(path: Path) -> wheel.Installed:
    return wheel.canonical(open_facts(path, path.name), wheels.layout(), name="demo")


def both(path: Path) -> tuple[bytes, bytes, list[type]]:
    """Return the layer by unpacking, the layer by stitching (decompressed), and the kinds of the contents."""
    found = installed(path)
    contents = WheelContents(path, found)
    entries = sort_with_parents(found.entries)
    kinds: list[type] = []

    def raw() -> Members:
        for entry in entries:
            content = contents.chunks(entry) if entry.kind == "file" else ()
            kinds.extend([type(content)] if entry.path in found.members else [])
            yield entry, content

    proven: list[bytes] = []
    data = b"".join(stitch_layer(raw(), proven.append))
    assert data == b"".join(stitch_layer(raw()))
    whole = gzip.decompress(data)
    assert whole == b"".join(proven)
    return b"".join(tar.write((e, contents.chunks(e) if e.kind == "file" else ()) for e in entries)), whole, kinds


def test_an_installed_file_counts_only_with_the_size_and_crc_of_its_member(tmp_path: Path) -> None:
    path = made(tmp_path / "demo-1.0-py3-none-any.whl", mixed)
    found = installed(path)
    (entry,) = (entry for entry in found.entries if entry.path.endswith("demo/__init__.py"))
    contents, data = WheelContents(path, found), FILES["demo/__init__.py"]
    assert b"".join(contents.chunks(entry, [data[:9], data[9:]])) == data
    for other in (data[:-1], data + b"x", data.replace(b"N", b"M", 1)):
        with pytest.raises(ArtifactError, match="demo/__init__"):
            list(contents.chunks(entry, [other]))


@pytest.mark.parametrize("write", [deflate, store, zip64, mixed])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_stitched_wheel_gives_the_same_tar_as_unpacking(tmp_path: Path, write: Write, streamed: bool) -> None:
    path = made(tmp_path / "demo-1.0-py3-none-any.whl", write, streamed=streamed)
    unpacked, gunzipped, kinds = both(path)
    assert gunzipped == unpacked
    assert (Deflated in kinds) == (write is not store)
    assert (set(kinds) == {Deflated}) == (write in (deflate, zip64))


def test_the_packing_of_a_wheel_changes_the_blob_but_not_the_layer(tmp_path: Path) -> None:
    layers = set()
    for write in (deflate, store, zip64):
        layers.add(both(made(tmp_path / "demo-1.0-py3-none-any.whl", write))[1])
    assert len(layers) == 1


def test_zip64_headers_are_in_the_test_wheel(tmp_path: Path) -> None:
    """Check that the wheels of the test above have zip64 headers."""
    path = made(tmp_path / "demo-1.0-py3-none-any.whl", zip64)
    assert path.read_bytes()[28:30] == (20).to_bytes(2, "little"), "an extra field of 20 bytes in the first local header"


def test_offsets_over_4_gib_are_read(tmp_path: Path) -> None:
    """A wheel after a sparse gap of 5 GiB: the offset of each member needs more than 32 bits."""
    small = made(tmp_path / "small.whl", mixed)
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with path.open("wb") as file:
        file.seek(5 << 30)
        file.write(small.read_bytes())
    unpacked, gunzipped, _ = both(path)
    assert gunzipped == unpacked
    assert path.stat().st_blocks * 512 < 64 << 20


@pytest.mark.soak
def test_a_member_over_4_gib_is_read(tmp_path: Path) -> None:
    """`zipfile` writes 5 GiB of zeros. The stitched tar has the same sha256 as the unpacked one."""
    path, size, chunk = tmp_path / "demo-1.0-py3-none-any.whl", 5 << 30, bytes(1 << 20)
    want = hashlib.sha256()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("demo/big.bin", "w", force_zip64=True) as file:
            for _ in range(size >> 20):
                file.write(chunk)
                want.update(chunk)
        digest = base64.urlsafe_b64encode(want.digest()).rstrip(b"=").decode()
        archive.writestr(f"{INFO}/WHEEL", wheels.WHEEL)
        row = f"{INFO}/WHEEL,sha256={base64.urlsafe_b64encode(hashlib.sha256(wheels.WHEEL).digest()).rstrip(b'=').decode()},"
        archive.writestr(f"{INFO}/RECORD", f"demo/big.bin,sha256={digest},{size}\n{row}\n{INFO}/RECORD,,\n")
    found = installed(path)
    contents = WheelContents(path, found)
    entries = sort_with_parents(found.entries)
    unpacked, proven = hashlib.sha256(), hashlib.sha256()
    for piece in tar.write((e, contents.chunks(e) if e.kind == "file" else ()) for e in entries):
        unpacked.update(piece)
    raw = ((e, contents.chunks(e) if e.kind == "file" else ()) for e in entries)
    assert sum(map(len, stitch_layer(raw, proven.update))) < 64 << 20
    assert proven.hexdigest() == unpacked.hexdigest()


def flipped(path: Path, name: str, offset: int) -> None:
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(name)
    at = member.header_offset + 30 + len(name.encode()) + offset
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("write", [deflate, store])
def test_damage_is_found_when_proving(tmp_path: Path, write: Write) -> None:
    path = made(tmp_path / "demo-1.0-py3-none-any.whl", write)
    flipped(path, "demo/__init__.py", 7)
    with pytest.raises(ArtifactError, match=r"is damaged|size and CRC"):
        both(path)


def test_a_wheel_that_is_truncated_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "demo-1.0-py3-none-any.whl", deflate)
    found = installed(path)
    contents = WheelContents(path, found)
    (entry,) = (entry for entry in found.entries if entry.path.endswith("data.bin"))
    assert isinstance(contents.chunks(entry), Deflated)
    os.truncate(path, 100)
    content = contents.chunks(entry)
    assert isinstance(content, Deflated)
    with pytest.raises(ArtifactError, match=r"demo-1.0\S+ \S+/demo/data.bin: the file cannot be unpacked"):
        list(content.chunks)


def test_an_entry_that_is_not_in_the_wheel_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "demo-1.0-py3-none-any.whl", deflate)
    contents = WheelContents(path, installed(path))
    with pytest.raises(ArtifactError, match="cannot be unpacked"):
        contents.chunks(Entry("no/such", "file", size=1))
    path.unlink()
    missing = WheelContents(path, contents._installed)
    with pytest.raises(ArtifactError, match="cannot be unpacked"):
        missing.chunks(next(entry for entry in contents._installed.entries if entry.path in contents._installed.members))


def overlapping(path: Path) -> None:
    """Let the second member's row of the directory point at the first one's data."""
    data = bytearray(path.read_bytes())
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 4)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    path.write_bytes(bytes(data))


def reaching(path: Path) -> None:
    """Let the last member declare the size of the whole file."""
    data = bytearray(path.read_bytes())
    last = data.rindex(b"PK\x01\x02")
    data[last + 20 : last + 24] = len(data).to_bytes(4, "little")
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "words"), [(overlapping, "overlaps with another member"), (reaching, "overlaps with its directory")]
)
def test_members_that_share_bytes_are_refused(tmp_path: Path, harm: Callable[[Path], None], words: str) -> None:
    path = made(tmp_path / "demo-1.0-py3-none-any.whl", deflate)
    harm(path)
    with pytest.raises(ArtifactError, match=words):
        open_facts(path, path.name)


def test_the_stream_of_a_member_is_stitched_unchanged(tmp_path: Path) -> None:
    path = made(tmp_path / "demo-1.0-py3-none-any.whl", deflate)
    found = installed(path)
    contents = WheelContents(path, found)
    (entry,) = (entry for entry in found.entries if entry.path.endswith("data.bin"))
    content = contents.chunks(entry)
    assert isinstance(content, Deflated)
    stream = b"".join(content.chunks)
    assert stream in path.read_bytes()
    assert zlib.decompress(stream, -15) == FILES["demo/data.bin"]
    assert (content.crc, content.size) == (zlib.crc32(FILES["demo/data.bin"]), len(FILES["demo/data.bin"]))
