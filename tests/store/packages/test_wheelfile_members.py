"""Members of zip files: read as by `zipfile`, and the same damage is found."""

from __future__ import annotations

import io
import random
import zipfile

import pytest

from repro_env.oci.entry import CHUNK
from repro_env.schema.errors import ArtifactError
from repro_env.store.packages import wheelfile

CONTENTS = {
    "empty": b"",
    "small": b"text\n" * 10,
    "zeros": bytes(5 * CHUNK + 7),
    "noise": random.Random(7).randbytes(CHUNK + 1),
    "mixed": b"".join(random.Random(n).randbytes(500) + bytes(500) for n in range(3000)),
}


pytestmark = pytest.mark.usefixtures("inflater")


def made(method: int, level: int | None = None) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method, compresslevel=level) as archive:
        for name, data in CONTENTS.items():
            archive.writestr(name, data)
    return file


def info(file: io.BytesIO, name: str) -> zipfile.ZipInfo:
    return zipfile.ZipFile(file).getinfo(name)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize(("method", "level"), [(zipfile.ZIP_STORED, None), (zipfile.ZIP_DEFLATED, 1), (zipfile.ZIP_DEFLATED, 9)])
def test_content_is_complete_and_in_chunks(name: str, method: int, level: int | None) -> None:
    file = made(method, level)
    parts = list(wheelfile.content(file, info(file, name), ""))
    assert b"".join(parts) == CONTENTS[name]
    assert all(len(part) <= CHUNK for part in parts)


@pytest.mark.parametrize("declared", [0, 100, 5 * CHUNK, 5 * CHUNK + 8])
def test_at_most_the_declared_size_is_read(declared: int) -> None:
    file = made(zipfile.ZIP_DEFLATED)
    lie = info(file, "zeros")
    lie.file_size = declared
    got = 0
    with pytest.raises(ArtifactError, match="archive declares"):  # noqa: PT012
        for chunk in wheelfile.content(file, lie, ""):
            got += len(chunk)
    assert got <= declared or declared > 5 * CHUNK + 7


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_flipped_byte_is_found(method: int) -> None:
    file = made(method)
    member = info(file, "small")
    quiet = 0
    start = member.header_offset + 30 + len(member.filename)
    for at in range(start, start + member.compress_size):
        data = bytearray(file.getvalue())
        data[at] ^= 0x10
        try:
            got = b"".join(wheelfile.content(io.BytesIO(bytes(data)), member, ""))
        except ArtifactError:
            continue
        assert got == CONTENTS["small"], "only the last bits of a deflate stream are unused"
        quiet += 1
    assert quiet <= 1


def test_a_truncated_file_is_refused() -> None:
    file = made(zipfile.ZIP_DEFLATED)
    member = info(file, "noise")
    for size in (member.header_offset + 10, member.header_offset + 40, member.header_offset + member.compress_size // 2):
        with pytest.raises(ArtifactError):
            list(wheelfile.content(io.BytesIO(file.getvalue()[:size]), member, ""))


def test_unknown_compression_methods_are_refused() -> None:
    file = made(zipfile.ZIP_BZIP2)
    with pytest.raises(NotImplementedError, match="method 12"):
        list(wheelfile.content(file, info(file, "small"), ""))
