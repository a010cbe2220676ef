"""Layer rule 2: other tools read its tars, and its reader accepts exactly what the encoder writes."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro_env.oci import tar
from repro_env.oci.entry import Entry, Member, sort_with_parents
from repro_env.oci.layer import diff_id
from repro_env.schema.errors import ArtifactError


def member(path: str, content: bytes = b"", *, executable: bool = False) -> Member:
    digest = hashlib.sha256(content).hexdigest()
    return Entry(path, "file", executable, len(content), digest), ([content] if content else [])


def sample() -> list[Member]:
    texts = {
        "a/b/run.sh": b"#!/bin/sh\n",
        "a/empty": b"",
        "a/" + "x" * 99: b"100 bytes of path and more",
        "a/" + "y" * 250: b"long",
        "a/größe/ünï": "ü".encode(),
        "a/block": b"z" * 512,
    }
    entries = [Entry(p, "file", p.endswith(".sh"), len(t), hashlib.sha256(t).hexdigest()) for p, t in texts.items()]
    entries += [
        Entry("a/link", "link", target="b/run.sh"),
        Entry("a/far", "link", target="/" + "t" * 120),
        Entry("a/old", "gone"),
    ]
    return [(entry, [texts[entry.path]] if texts.get(entry.path) else []) for entry in sort_with_parents(entries)]


def written(members: Iterable[Member]) -> bytes:
    return b"".join(tar.write(members))


def read_back(data: bytes) -> list[tuple[Entry, bytes]]:
    return [(entry, b"".join(chunks)) for entry, chunks in tar.read([data[:700], b"", data[700:]], where="test")]


def test_tarfile_reads_the_same_paths_modes_and_bytes() -> None:
    with tarfile.open(fileobj=io.BytesIO(written(sample()))) as archive:
        found = {member.name: member for member in archive.getmembers()}
        assert found["a/b/run.sh"].mode == 0o755
        assert found["a/empty"].mode == 0o644
        assert found["a/größe"].isdir()
        assert found["a/.wh.old"].size == 0
        assert found["a/far"].linkname == "/" + "t" * 120
        assert {(value.uid, value.gid, value.uname, value.mtime) for value in found.values()} == {(0, 0, "", tar.MTIME)}
        content = archive.extractfile("a/größe/ünï")
        assert content is not None
        assert content.read() == "ü".encode()


def test_gnu_tar_lists_the_members(tmp_path: Path) -> None:
    (tmp_path / "layer.tar").write_bytes(written(sample()))
    done = subprocess.run(
        ["tar", "--list", "--quoting-style=literal", "-f", str(tmp_path / "layer.tar")], capture_output=True, check=True
    )
    assert done.stderr == b""
    names = [line.rstrip("/") for line in done.stdout.decode().splitlines()]
    assert names == ["a/.wh.old" if entry.kind == "gone" else entry.path for entry, _ in sample()]


def test_the_reader_reads_what_the_encoder_wrote() -> None:
    back = read_back(written(sample()))
    assert [entry.path for entry, _ in back] == [entry.path for entry, _ in sample()]
    assert written([(entry, [text] if text else []) for entry, text in back]) == written(sample())


@pytest.mark.parametrize(("path", "mode"), [("tmp", 0o1777), ("var/tmp", 0o1777), ("home/ann/tmp", 0o755), ("opt", 0o755)])
def test_every_user_may_write_to_directories_for_temporary_files(path: str, mode: int) -> None:
    data = b"".join(tar.write([(Entry(path, "dir"), ())]))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getmember(path).mode == mode
    assert [entry.path for entry, _ in tar.read([data], where="test")] == [path]


def test_golden_bytes() -> None:
    """The encoder is frozen: a different digest here means different image IDs for all users."""
    assert diff_id(sample()) == "sha256:567048b54f35ebbe21f4fd5e5459ecb7ffc9189c5562923b27822c49878c8ccd"


def test_files_of_8_gib_and_more_get_a_pax_size() -> None:
    block = tar.header(Entry("big", "file", size=(8 << 30) + 1))
    assert b"19 size=8589934593\n" in block
    with tarfile.open(fileobj=io.BytesIO(block), mode="r|") as archive:
        info = archive.next()
        assert info is not None
        assert info.size == (8 << 30) + 1


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=130).filter(
    lambda name: name not in (".", "..") and not name.startswith(".wh.")
)


@given(st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map("/".join), st.binary(max_size=600), max_size=6))
def test_any_tree_is_read_back(tree: dict[str, bytes]) -> None:
    directories = {"/".join(path.split("/")[:depth]) for path in tree for depth in range(1, path.count("/") + 1)}
    files = {path: text for path, text in tree.items() if path not in directories}
    members = [
        (entry, [files[entry.path]] if files.get(entry.path) else [])
        for entry in sort_with_parents(Entry(path, "file", size=len(text)) for path, text in files.items())
    ]
    assert {entry.path: text for entry, text in read_back(written(members)) if entry.kind == "file"} == files


def test_a_content_without_its_entrys_size_is_refused() -> None:
    with pytest.raises(ArtifactError, match="has 3 bytes instead of the expected 4"):
        written([(Entry("a", "file", size=4), [b"abc"])])


def block_of(name: str, kind: bytes = b"0", **fields: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.mtime, info.mode = kind, tar.MTIME, int(fields.get("mode", "0o644"), 8)
    info.linkname = fields.get("link", "")
    return info.tobuf(tarfile.USTAR_FORMAT) + bytes(1024)


def concatenated(*members: Member) -> bytes:
    return b"".join(written([member])[:-1024] for member in members) + bytes(1024)


HOSTILE = {
    "parent": block_of("../x"),
    "inner parent": block_of("a/../../x"),
    "absolute": block_of("/etc/passwd"),
    "empty part": block_of("a//b"),
    "dot": block_of("./a"),
    "hard link": block_of("a", tarfile.LNKTYPE, link="b"),
    "character device": block_of("a", tarfile.CHRTYPE),
    "block device": block_of("a", tarfile.BLKTYPE),
    "pipe": block_of("a", tarfile.FIFOTYPE),
    "setuid": block_of("a", mode="0o4755"),
    "gnu long name": block_of("a", tarfile.GNUTYPE_LONGNAME),
    "whiteout of parent": block_of(".wh..."),
    "opaque": block_of("a/.wh..wh..opq"),
    "twice": concatenated(member("a"), member("a")),
    "out of order": concatenated(member("b"), member("a")),
    "below a symlink": concatenated((Entry("a", "link", target="/etc"), []), member("a/passwd")),
    "cut in the header": written([member("a", b"x")])[:100],
    "cut in the content": written([member("a", b"x" * 600)])[:700],
    "no end": written([member("a", b"x")])[:-1024],
    "one end block": written([member("a", b"x")])[:-512],
    "bytes after the end": written([member("a", b"x")]) + b"\0",
    "padding": written([member("a", b"x")])[:513] + b"!" + written([member("a", b"x")])[514:],
    "not a tar": b"x" * 2048,
    "lying pax length": tar.header(Entry("ü", "file")).replace(b"11 path", b"99 path") + bytes(1024),
    "checksum": written([member("a")]).replace(b"0000644", b"0000645", 1),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_the_reader_refuses_what_the_encoder_does_not_write(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        read_back(data)
