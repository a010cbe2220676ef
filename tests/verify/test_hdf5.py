"""Times in the headers of HDF5 files; files that h5py and PyTables wrote are in `recorded/`."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest

from repro_env.verify import hdf5
from repro_env.verify.evidence import Evidence
from repro_env.verify.judge import Judge

MESSAGE = b"\x12\0\x08\0\0\0\0\0\x01\0\0\0%s"
NOW, THEN = (1782900930).to_bytes(4, "little"), (1782987330).to_bytes(4, "little")


def made(name: str) -> bytes:
    recorded = json.loads((Path(__file__).parent / "recorded" / "hdf5.json").read_bytes())["left"]["files"][name]
    return zlib.decompress(base64.b64decode(recorded["zlib"])) if "zlib" in recorded else base64.b64decode(recorded["base64"])


def level(left: bytes, right: bytes, *results: str) -> str | None:
    return Judge(Evidence(), Evidence(), results=results).of_bytes("a.h5", "a.h5", "result", left, right).level


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (MESSAGE % b"\1\0\0\0", MESSAGE % b"\2\0\0\0"),  # no time
        (b"\x12\0\x09" + (MESSAGE % NOW)[3:], b"\x12\0\x09" + (MESSAGE % THEN)[3:]),  # another message
        (MESSAGE % NOW + b"a", MESSAGE % THEN + b"b"),
        (MESSAGE % NOW, MESSAGE % THEN + b"b"),
        (NOW, THEN),
    ],
)
def test_what_is_no_time_counts(left: bytes, right: bytes) -> None:
    assert level(hdf5.MAGIC + left, hdf5.MAGIC + right) == "different"


def test_a_time_is_explained_by_the_format_and_shown() -> None:
    left, right = (hdf5.MAGIC + MESSAGE % time for time in (NOW, THEN))
    found = Judge(Evidence(), Evidence()).of_bytes("a.h5", "a.h5", "result", left, right)
    assert (found.level, found.ignored_count) == ("equal except for", 1)
    assert (found.ignored[0].then, found.ignored[0].now) == ("1782900930", "1782987330")
    assert level(left, right, "a.h5") == "different", "the user named it"
    assert level(left[8:], right[8:]) == "different", "of HDF5 alone"


@pytest.mark.parametrize("name", ["new.hdf5", "ordered.h5", "tables.h5"])
def test_every_bit_that_is_no_time_counts(name: str) -> None:
    data = made(name)
    bare, found = hdf5.timeless(data)
    times = [at for at, (one, other) in enumerate(zip(data, bare, strict=True)) if one != other]
    assert found
    assert len(times) <= 20 * len(found)
    for at in range(8, len(data), 1 if name == "tables.h5" else 7):
        other = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert (level(data, other) == "equal except for") == (at in times and name == "tables.h5"), at


def test_a_header_counts_as_one_by_its_checksum_alone() -> None:
    data = made("new.hdf5")
    at = data.index(b"OHDR")
    assert hdf5.timeless(data[:at] + data[at + 1 :])[1] == hdf5.timeless(data)[1][4:]
    assert hdf5.timeless(data[: at + 60])[1] == [], "cut off"
