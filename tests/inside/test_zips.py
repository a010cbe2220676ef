"""Zips, member by member: what is in each, and what the archive says of it."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fakes.looks import changes, look
from tests.fakes.tensors import Tensor, checkpoint, npy

Members = Mapping[str, bytes]
ONE, TWO = npy(Tensor((1.0, 2.0), (2,), "F32")), npy(Tensor((1.0, 3.0), (2,), "F32"))
CONFIG = '{"layers": [{"name": "a", "units": 3}], "rate": 0.5}'


def zipped(members: Members, facts: Mapping[str, object] | None = None, comment: bytes = b"") -> bytes:
    """Members of which all have the same facts: attributes of `ZipInfo`."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            for fact, value in (facts or {}).items():
                setattr(info, fact, value)
            archive.writestr(info, data)
        archive.comment = comment
    return made.getvalue()


@pytest.mark.parametrize(
    ("left", "right", "named"),
    [
        ({"a/x": b"\0", "b/x": b"2"}, {"a/x": b"\1", "b/x": b"2"}, ["a/x"]),
        ({"a/x": b"1", "b/x": b"2"}, {"a/x": b"2", "b/x": b"1"}, ["a/x.0", "b/x.0"]),
        ({"a/x": b"\0"}, {"b/x": b"\0"}, ["a/x", "b/x"]),
        ({"x": b"\0", "x.npy": ONE}, {"x": b"\0", "x.npy": TWO}, ["x.npy"]),
        ({"x": b"\0", "x.npy": ONE}, {"x": b"\1", "x.npy": ONE}, ["x"]),
        ({"x.npy": ONE}, {"x.npy": TWO}, ["x"]),
        ({"x.npy": ONE}, {"x.npy": ONE, "y.npy": ONE}, ["y"]),
        ({"x.npy": ONE}, {"x": ONE}, ["x", "x"]),
        ({"x": b"\0", "y": b"\0"}, {"y": b"\0", "x": b"\0"}, ["(order)"]),
        ({"a.txt": b"1\n2\n"}, {"a.txt": b"1\n3\n"}, ["a.txt.1"]),
        ({"a.txt": b"1\n2\n"}, {"a.txt": b"1\n2"}, ["a.txt.2"]),
        ({"a.txt": b"1\n"}, {"a.txt": b"1\r\n"}, ["a.txt.0"]),
        ({"a": b"1\x002"}, {"a": b"1\x003"}, ["a"]),
        ({"a": b"\xff1"}, {"a": b"\xff2"}, ["a"]),
        ({"a/c.json": CONFIG.encode()}, {"a/c.json": CONFIG.replace('"a"', '"b"').encode()}, ["a/c.json.layers.0.name"]),
        ({"c.json": CONFIG.encode()}, {"c.json": CONFIG.replace("0.5", "0.50").encode()}, ["c.json.rate"]),
        ({"c.json": CONFIG.encode()}, {"c.json": CONFIG.replace("3", "3.0").encode()}, ["c.json.layers.0.units"]),
        ({"c.json": b'{"a": 1}'}, {"c.json": b'{"a": "1"}'}, ["c.json.a"]),
        ({"c.json": b'{"a": 1, "b": 2}'}, {"c.json": b'{"b": 2, "a": 1}'}, ["c.json (order)"]),
        ({"c.json": b'{"a": 1, "a": 2}'}, {"c.json": b'{"a": 3, "a": 2}'}, ["c.json.0"]),
        ({"c.json": b'["a"'}, {"c.json": b'["b"'}, ["c.json.0"]),
        ({"c.json": b"[1]"}, {"c.json": b"1"}, ["c.json.0", "c.json"]),
    ],
)
def test_every_member_counts_at_its_place(left: Members, right: Members, named: list[str], tmp_path: Path) -> None:
    found = changes(look(tmp_path, ".zip", zipped(left), zipped(right)))
    assert sorted(place for place in found if not place.endswith(("attributes)", "mode)"))) == sorted(named)


def test_json_is_not_the_text_that_it_looks_like(tmp_path: Path) -> None:
    left, right = zipped({"c.json": b'["["]'}), zipped({"c.json": b"["})
    assert look(tmp_path, ".zip", left, right).others == (("c.json.0", "[", None), ("c.json.0", None, "["))


@pytest.mark.parametrize(
    ("facts", "named", "now"),
    [
        ({"date_time": (2026, 7, 1, 10, 15, 30)}, "x (time)", "2026-07-01 10:15:30"),
        ({"external_attr": 0o120777 << 16}, "x (mode)", "lrwxrwxrwx 120777"),
        ({"external_attr": 0o100755 << 16}, "x (mode)", "-rwxr-xr-x 100755"),
        ({"external_attr": 1 | 0o600 << 16}, "x (attributes)", "system 3, versions 20 and 20, flags 0, internal 0, external 1"),
        ({"create_system": 0}, "x (attributes)", "system 0, versions 20 and 20, flags 0, internal 0, external 0"),
        ({"compress_type": zipfile.ZIP_DEFLATED}, "x (compression)", "deflated"),
        ({"comment": b"said"}, "x (comment)", "b'said'"),
        ({"extra": b"ux\x01\x00\x05"}, "x (extra)", "7578010005 7578010005"),
        ({"extra": b"UT\x05\x00\x01" + struct.pack("<i", 1782900930)}, "x (mtime)", "2026-07-01 10:15:30"),
    ],
)
def test_what_an_archive_says_of_a_member_counts(facts: dict[str, object], named: str, now: str, tmp_path: Path) -> None:
    found = look(tmp_path, ".zip", zipped({"x": b"\0"}), zipped({"x": b"\0"}, facts))
    assert (named, now) in [(place, now) for place, _, now in found.others]
    assert len(found.others) == 1 or "x (attributes)" in changes(found)
    assert changes(look(tmp_path, ".zip", zipped({"x": b"\0"}, facts), zipped({"x": b"\0"}, facts))) == []


def test_no_byte_of_an_archive_is_left_out(tmp_path: Path) -> None:
    plain = zipped({"x": b"\0", "y": b"\1"})
    assert changes(look(tmp_path, ".zip", plain, zipped({"x": b"\0", "y": b"\1"}, comment=b"said"))) == ["(comment)"]
    directory = plain.index(b"PK\x01\x02")
    hidden = plain[:directory] + b"hidden" + plain[directory:-6] + struct.pack("<I", directory + 6) + plain[-2:]
    assert changes(look(tmp_path, ".zip", plain, hidden)) == ["(bytes between members)"]
    at = plain.index(b"PK\x03\x04", 1)
    later = plain[: at + 10] + b"\1\1" + plain[at + 12 :]
    assert changes(look(tmp_path, ".zip", plain, later)) == ["y (local header)"]
    wrong = plain.replace(b"y\1", b"y\2")
    assert changes(look(tmp_path, ".zip", plain, wrong)) == ["y", "y (checksum)"]
    renamed = plain.replace(b"y\1", b"z\1")
    assert "two names" in look(tmp_path, ".zip", plain, renamed).problem


def test_what_torch_packed_is_named_after_its_file(tmp_path: Path) -> None:
    for about in ("version", ".data/version"):
        left, right = ({f"{top}/{about}": b"3", f"{top}/code/a.py": b"1"} for top in ("file ?#%", "other"))
        assert changes(look(tmp_path, ".pt", zipped(left), zipped(right))) == ["(directory)"]
        changed = {**left, "file ?#%/code/a.py": b"2"}
        assert changes(look(tmp_path, ".pt", zipped(left), zipped(changed))) == ["code/a.py.0"]
    assert changes(look(tmp_path, ".pt", checkpoint({"a": 1}, name="a"), checkpoint({"a": 1}, name="b"))) == ["(directory)"]


def test_members_that_both_have_are_named(tmp_path: Path) -> None:
    left, right = {"docProps/core.xml": b"1", "x.npy": ONE, "a": b"1"}, {"docProps/core.xml": b"2", "x.npy": ONE, "b": b"1"}
    assert look(tmp_path, ".docx", zipped(left), zipped(right)).names == ("docProps/core.xml", "x.npy")


def test_the_time_in_the_header_of_gzip_is_a_value(tmp_path: Path) -> None:
    data = pickle.dumps({"a": 1})
    left, right = (gzip.compress(data, mtime=second) for second in (1782900930, 1782900931))
    found = look(tmp_path, ".pkl.gz", left, right)
    assert found.others == (("(time)", "2026-07-01 10:15:30", "2026-07-01 10:15:31"),)
    assert changes(look(tmp_path, ".pkl", data, gzip.compress(data, mtime=0))) == [
        "(compression)",
        "(time)",
        "(header)",
    ]


def test_a_text_that_is_too_long_for_lines_is_compared_as_bytes(tmp_path: Path) -> None:
    left, right = ({"a": json.dumps(number).encode() + b"\n" * 100001} for number in (1, 2))
    assert changes(look(tmp_path, ".zip", zipped(left), zipped(right))) == ["a"]
