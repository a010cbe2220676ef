"""Zip files, member by member: the content and the headers of each."""

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
HEADER = "mode ?rw------- 600, method %d, system %d, versions 20 and 20, flags 0, attributes 0 and %d"
CONFIG = '{"layers": [{"name": "a", "units": 3}], "rate": 0.5}'


def make_zip(members: Members, facts: Mapping[str, object] | None = None, comment: bytes = b"") -> bytes:
    """A zip file whose members all have the same `facts`: attributes of `ZipInfo`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            for fact, value in (facts or {}).items():
                setattr(info, fact, value)
            archive.writestr(info, data)
        archive.comment = comment
    return buffer.getvalue()


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
def test_a_difference_in_a_member_is_named_by_its_place(left: Members, right: Members, named: list[str], tmp_path: Path) -> None:
    found = changes(look(tmp_path, ".zip", make_zip(left), make_zip(right)))
    assert sorted(found) == sorted(named)


def test_a_string_of_json_differs_from_the_same_line_of_text(tmp_path: Path) -> None:
    left, right = make_zip({"c.json": b'["["]'}), make_zip({"c.json": b"["})
    assert look(tmp_path, ".zip", left, right).others == (("c.json.0", "[", None), ("c.json.0", None, "["))


@pytest.mark.parametrize(
    ("facts", "named", "now"),
    [
        ({"date_time": (2026, 7, 1, 10, 15, 30)}, "x (time)", "2026-07-01 10:15:30"),
        (
            {"external_attr": 0o120777 << 16},
            "x (header)",
            "mode lrwxrwxrwx 120777, method 0, system 3, versions 20 and 20, flags 0, attributes 0 and 0",
        ),
        (
            {"external_attr": 0o100755 << 16},
            "x (header)",
            "mode -rwxr-xr-x 100755, method 0, system 3, versions 20 and 20, flags 0, attributes 0 and 0",
        ),
        ({"external_attr": 1 | 0o600 << 16}, "x (header)", HEADER % (0, 3, 1)),
        ({"create_system": 0}, "x (header)", HEADER % (0, 0, 0)),
        ({"compress_type": zipfile.ZIP_DEFLATED}, "x (header)", HEADER % (8, 3, 0)),
        ({"comment": b"note"}, "x (header)", HEADER % (0, 3, 0) + ", comment b'note'"),
        ({"extra": b"ux\x01\x00\x05"}, "x (header)", HEADER % (0, 3, 0) + ", extra 7578010005, extra 7578010005"),
        ({"extra": b"UT\x05\x00\x01" + struct.pack("<i", 1782900930)}, "x (mtime)", "2026-07-01 10:15:30"),
    ],
)
def test_every_field_in_the_header_of_a_member_is_compared(
    facts: dict[str, object], named: str, now: str, tmp_path: Path
) -> None:
    found = look(tmp_path, ".zip", make_zip({"x": b"\0"}), make_zip({"x": b"\0"}, facts))
    assert [(named, now)] == [(place, now) for place, _, now in found.others]
    assert changes(look(tmp_path, ".zip", make_zip({"x": b"\0"}, facts), make_zip({"x": b"\0"}, facts))) == []


def test_bytes_outside_of_members_are_compared_or_refused(tmp_path: Path) -> None:
    plain = make_zip({"x": b"\0", "y": b"\1"})
    assert changes(look(tmp_path, ".zip", plain, make_zip({"x": b"\0", "y": b"\1"}, comment=b"note"))) == ["(comment)"]
    directory = plain.index(b"PK\x01\x02")
    hidden = plain[:directory] + b"hidden" + plain[directory:-6] + struct.pack("<I", directory + 6) + plain[-2:]
    assert look(tmp_path, ".zip", plain, hidden).problem == "has bytes before its directory"
    at = plain.index(b"PK\x03\x04", 1)
    later = plain[: at + 10] + b"\1\1" + plain[at + 12 :]
    assert changes(look(tmp_path, ".zip", plain, later)) == ["y (header)"]
    without_sizes = plain[: at + 14] + bytes(12) + plain[at + 26 :]
    assert look(tmp_path, ".zip", plain, without_sizes).others[0][0] == "y (header)"
    wrong = plain.replace(b"y\1", b"y\2")
    assert changes(look(tmp_path, ".zip", plain, wrong)) == ["y", "y (checksum)"]
    renamed = plain.replace(b"y\1", b"z\1")
    assert "two names" in look(tmp_path, ".zip", plain, renamed).problem


def test_the_directory_in_an_archive_of_torch_is_named_after_the_file(tmp_path: Path) -> None:
    for about in ("version", ".data/version"):
        left, right = ({f"{top}/{about}": b"3", f"{top}/code/a.py": b"1"} for top in ("file ?#%", "other"))
        assert changes(look(tmp_path, ".pt", make_zip(left), make_zip(right))) == ["(directory)"]
        changed = {**left, "file ?#%/code/a.py": b"2"}
        assert changes(look(tmp_path, ".pt", make_zip(left), make_zip(changed))) == ["code/a.py.0"]
    assert changes(look(tmp_path, ".pt", checkpoint({"a": 1}, name="a"), checkpoint({"a": 1}, name="b"))) == ["(directory)"]


def test_members_in_both_archives_are_named(tmp_path: Path) -> None:
    left, right = {"docProps/core.xml": b"1", "x.npy": ONE, "a": b"1"}, {"docProps/core.xml": b"2", "x.npy": ONE, "b": b"1"}
    assert look(tmp_path, ".docx", make_zip(left), make_zip(right)).names == ("docProps/core.xml", "x.npy")


def test_the_time_in_a_gzip_header_is_compared(tmp_path: Path) -> None:
    data = pickle.dumps({"a": 1})
    left, right = (gzip.compress(data, mtime=second) for second in (1782900930, 1782900931))
    found = look(tmp_path, ".pkl.gz", left, right)
    assert found.others == (("(time)", "2026-07-01 10:15:30", "2026-07-01 10:15:31"),)
    assert changes(look(tmp_path, ".pkl", data, gzip.compress(data, mtime=0))) == [
        "(compression)",
        "(time)",
        "(header)",
    ]


def test_a_text_with_too_many_lines_is_compared_as_bytes(tmp_path: Path) -> None:
    left, right = ({"a": json.dumps(number).encode() + b"\n" * 100001} for number in (1, 2))
    assert changes(look(tmp_path, ".zip", make_zip(left), make_zip(right))) == ["a"]
