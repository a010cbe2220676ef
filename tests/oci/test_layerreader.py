"""Layers of other tools: every dialect of tar is read, and members that cannot be represented are reported."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from repro_env.oci import imagetree, layerreader, tar
from repro_env.oci.entry import Entry
from repro_env.oci.layerreader import scan
from repro_env.schema.errors import ArtifactError

LONG = "d" * 90 + "/" + "e" * 120 + "/ünïcode"


def made(*members: dict[str, Any], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Make a tar. Each member is given by attributes of TarInfo and `data`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for facts in members:
            info = tarfile.TarInfo(facts["name"])
            data = facts.get("data", b"")
            info.size = len(data)
            for key, value in facts.items():
                if key not in ("name", "data"):
                    setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def file(name: str, data: bytes = b"x", **more: Any) -> dict[str, Any]:
    return {"name": name, "data": data, **more}


def directory(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": tarfile.DIRTYPE, **more}


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> dict[str, Any]:
    return {"name": name, "type": kind, "linkname": target}


def paths(data: bytes) -> list[str]:
    return [node.path for node in scan([data], where="layer").nodes]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("packer", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_every_tar_format_gives_the_same_nodes(form: int, packer: Any) -> None:
    members = [
        directory("./bin", mode=0o1777),
        file("bin/tool", b"#!tool", mode=0o4755, uid=7, gid=8, mtime=99),
        file("/empty", b"", mode=0o600),
        link("bin/alias", "/bin/../bin/tool"),
        link("bin/same", "./bin/tool", tarfile.LNKTYPE),
        file("a" * 80 + "/" + "n" * 90),
        {"name": "dev/null", "type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
        {"name": "run/pipe", "type": tarfile.FIFOTYPE},
    ]
    if form != tarfile.USTAR_FORMAT:
        members += [file(LONG), link("far", LONG), file("owned", uid=3_000_000)]
    data = made(*members, form=form)
    found = scan([packer(data)], where="layer")
    assert found.problems == ()
    assert found.diff_id == "sha256:" + hashlib.sha256(data).hexdigest()
    assert found.size == len(data)
    tool = next(node for node in found.nodes if node.path == "bin/tool")
    assert (tool.mode, tool.uid, tool.gid, tool.mtime, tool.size) == (0o4755, 7, 8, 99, 6)
    assert tool.sha256 == hashlib.sha256(b"#!tool").hexdigest()
    assert data[tool.offset : tool.offset + 6] == b"#!tool"
    kinds = {node.path: node.kind for node in found.nodes}
    assert kinds["bin"] == "dir"
    assert kinds["empty"] == "file"
    assert kinds["bin/alias"] == "link"
    assert kinds["bin/same"] == "hard"
    assert kinds["dev/null"] == "device"
    assert kinds["run/pipe"] == "pipe"
    if form != tarfile.USTAR_FORMAT:
        assert kinds[LONG] == "file"
        assert next(node.target for node in found.nodes if node.path == "far") == LONG
        assert next(node.uid for node in found.nodes if node.path == "owned") == 3_000_000


def test_an_archive_of_gnu_tar_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_bytes(b"1" * 70_000)
    (tmp_path / "in/hard").hardlink_to(tmp_path / "in/file")
    for form in ("v7", "oldgnu", "gnu", "ustar", "posix"):
        data = subprocess.run(["tar", "-C", tmp_path, f"--format={form}", "-c", "in"], check=True, capture_output=True).stdout
        found = scan([data], where=form)
        assert found.problems == (), form
        listed = {entry.path: entry.sha256 for entry in imagetree.flatten([found.nodes]).entries() if entry.kind == "file"}
        assert listed == dict.fromkeys(("in/file", "in/hard"), hashlib.sha256(b"1" * 70_000).hexdigest()), form


def test_extended_attributes_and_fractional_times_are_read() -> None:
    pax = {"SCHILY.xattr.security.capability": "\x01\x00", "SCHILY.xattr.user.a": "b", "mtime": "12.75"}
    (node,) = scan([made(file("f", pax_headers=pax))], where="").nodes
    assert node.mtime == 12
    assert dict(node.xattrs) == {"security.capability": "\x01\x00", "user.a": "b"}


def test_layers_of_repro_env_are_read() -> None:
    entries = [
        Entry("a", "dir"),
        Entry("a/f", "file", True, 3),
        Entry("a/gone", "gone"),
        Entry("a/l", "link", target="../x"),
        Entry(LONG, "file"),
    ]
    data = b"".join(tar.write((entry, [b"abc"] if entry.size else []) for entry in entries))
    found = scan([data], where="layer")
    assert found.problems == ()
    assert [(node.path, node.kind) for node in found.nodes] == [(entry.path, entry.kind) for entry in entries]
    assert layerreader.to_entry(found.nodes[1]) == Entry("a/f", "file", True, 3, hashlib.sha256(b"abc").hexdigest())


def test_the_sink_gets_the_tar() -> None:
    data = made(file("a/RECORD", b"rows"), file("a/other", b"no"))
    passed: list[bytes] = []
    scan([gzip.compress(data)], where="", sink=passed.append)
    assert b"".join(passed) == data


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([file("../out")], "not a path inside"),
        ([file("a/../../out")], "not a path inside"),
        ([link("h", "../../etc/shadow", tarfile.LNKTYPE)], "not a path inside"),
        ([file("n" * 300)], "not a path inside"),
        ([file("twice"), file("twice", b"other")], "twice"),
        ([link("l", "/etc"), file("l/passwd")], "below"),
        ([file(".wh.")], "whiteout without a name"),
        ([file(".wh..wh.plnk")], "whiteout without a name"),
        ([file("odd", type=b"V")], "cannot be read"),
        ([file("sparse", pax_headers={"GNU.sparse.major": "1"})], "sparse"),
    ],
)
def test_members_that_cannot_be_represented_are_reported_and_left_out(members: list[dict[str, Any]], problem: str) -> None:
    found = scan([made(*members, file("good", b"good"))], where="layer")
    assert any(problem in reported for reported in found.problems), found.problems
    assert found.nodes[-1].path == "good"
    assert found.nodes[-1].sha256 == hashlib.sha256(b"good").hexdigest()
    assert not any(".." in node.path.split("/") for node in found.nodes)


def test_names_that_are_not_utf_8_are_reported() -> None:
    block = bytearray(made(file("bad!"))[:1024])
    block[:4] = b"\xff\xfe!!"
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:512]) + 256)
    found = scan([bytes(block), bytes(1024)], where="layer")
    assert "UTF-8" in found.problems[0]
    assert found.nodes == ()


def test_wrong_sizes_and_broken_headers_are_errors() -> None:
    good = made(file("f", b"data" * 200))
    with pytest.raises(ArtifactError, match="truncated"):
        scan([good[:900]], where="layer")
    with pytest.raises(ArtifactError, match="not a tar"):
        scan([b"hello" * 200], where="layer")
    with pytest.raises(ArtifactError, match="not a tar"):
        scan([b"\xfd7zXZ\0" + bytes(range(256)) * 4], where="layer")
    broken = bytearray(made(file("a"), file("b")))
    broken[1030] ^= 1
    with pytest.raises(ArtifactError, match="damaged"):
        scan([bytes(broken)], where="layer")
    with pytest.raises(ArtifactError, match="larger than 1,000 bytes"):
        scan([gzip.compress(bytes(100_000))], where="layer", limit=1000)
    for field in (b"\xff" * 12, b"\x80" + b"\xff" * 11):  # base 256: a negative number, and 2**87
        header = bytearray(good[:512])
        header[124:136] = field
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 256)
        with pytest.raises(ArtifactError):
            scan([bytes(header), good[512:]], where="layer")


def test_an_endless_extended_header_is_refused() -> None:
    header = bytearray(made(file("f"))[:512])
    header[156:157] = b"L"
    header[124:136] = b"77777777777\0"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 256)
    with pytest.raises(ArtifactError, match="impossible size"):
        scan([bytes(header)], where="layer")


def test_bytes_after_the_end_are_reported() -> None:
    assert "after the end" in scan([made(file("f")) + b"hidden"], where="layer").problems[0]


def test_a_tar_without_end_blocks_is_read() -> None:
    assert paths(made(file("f"))[:1024]) == ["f"]


def test_a_layer_with_too_many_problems_is_refused() -> None:
    with pytest.raises(ArtifactError, match="more than 1,000"):
        scan([made(*[file("../out")] * 1001)], where="layer")
