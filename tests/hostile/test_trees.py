"""Bundled trees and specs from a stranger, and directories that an image is to be put into: refused, or not followed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from repro_env.oci import tar
from repro_env.oci.entry import Entry, Member
from repro_env.schema import codec
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.spec import Spec
from tests.hostile.stranger import WAYS, Stranger

END = bytes(1024)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    return Stranger.honest(tmp_path_factory.mktemp("stranger") / "honest")


@pytest.fixture
def stranger(template: Stranger, tmp_path: Path) -> Stranger:
    return template.copied(tmp_path / "stranger")


def raw(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", *, how: Literal[0, 1, 2] = 0, **facts: Any) -> bytes:
    """One member as other tools write it; `how`: 0 ustar, 1 GNU, 2 pax (as `tarfile` numbers them)."""
    info = tarfile.TarInfo(name)
    info.type, info.mtime, info.mode, info.size = kind, tar.MTIME, 0o644, len(data)
    for key, value in facts.items():
        setattr(info, key, value)
    return info.tobuf(how) + data + bytes(-len(data) % 512)


def ours(*members: Member) -> bytes:
    """Members by our own encoder, in whatever order."""
    return b"".join(b"".join(tar.write([entry]))[:-1024] for entry in members)


def file(path: str, data: bytes = b"") -> Member:
    return Entry(path, "file", size=len(data), sha256=hashlib.sha256(data).hexdigest()), [data] if data else []


def link(path: str, target: str) -> Member:
    return Entry(path, "link", target=target), ()


TREES: dict[str, bytes] = {
    "../": raw("../climbed") + END,
    "climbing from inside": raw("opt/../../climbed") + END,
    "an absolute path": raw("/etc/cron.d/climbed") + END,
    "a path of dots": raw("opt/./x") + END,
    "an empty part": raw("opt//x") + END,
    "no name": raw("") + END,
    "a symlink out, and a file below it": ours(link("a", "/etc"), file("a/climbed", b"x")) + END,
    "a symlink up, and a file below it": ours(link("a", "../.."), file("a/climbed", b"x")) + END,
    "a symlink, and a directory below it": ours(link("a", "/etc"), (Entry("a/b", "dir"), ()), file("a/b/c", b"x")) + END,
    "a symlink in the place of a directory": ours((Entry("a", "dir"), ()), file("a/b", b"x"), link("a", "/etc")) + END,
    "a hard link out": raw("a", tarfile.LNKTYPE, linkname="/etc/passwd") + END,
    "a character device": raw("a", tarfile.CHRTYPE, devmajor=1, devminor=1) + END,
    "a block device": raw("a", tarfile.BLKTYPE, devmajor=8, devminor=0) + END,
    "a pipe": raw("a", tarfile.FIFOTYPE) + END,
    "a set-user-id file": raw("a", mode=0o4755) + END,
    "another owner": raw("a", uid=1000, gid=1000) + END,
    "an owner's name": raw("a", uname="root") + END,
    "another time": raw("a", mtime=1) + END,
    "a sparse file": raw("a", tarfile.GNUTYPE_SPARSE, b"x") + END,
    "a GNU long name": raw("x" * 300, how=1) + END,
    "a global header": raw("a", tarfile.XGLTYPE, b"11 path=x\n") + END,
    "an extended header with attributes": raw("a", how=2, pax_headers={"SCHILY.xattr.security.capability": "x"}) + END,
    "an extended header of 4 GiB": tar.header(Entry("ü", "file")).replace(b"00000000013", b"37777777777", 1) + END,
    "a size below nothing": raw("a")[:124] + b"\xff" * 12 + raw("a")[136:] + END,
    "a file of 7 GiB that is not there": tar.header(Entry("a", "file", size=7 << 30)) + END,
    "one path twice": ours(file("a"), file("a")) + END,
    "out of order": ours(file("b"), file("a")) + END,
    "a path of 5000 bytes": ours(*((Entry("/".join(["x" * 200] * depth), "dir"), ()) for depth in range(1, 26))) + END,
    "a name of 300 bytes": ours(file("x" * 300)) + END,
    "a directory 300 deep": ours(*((Entry("/".join(["d"] * depth), "dir"), ()) for depth in range(1, 301))) + END,
    "no end": ours(file("a", b"x")),
    "two archives": ours(file("a", b"x")) + END + ours(file("b", b"x")) + END,
    "no tar": b"\x7fELF" * 1000,
}
UNPACKED_ONLY = {"a path of 5000 bytes", "a name of 300 bytes", "a directory 300 deep"}
"""What a tar may say, and no file system here can hold: an image layout can."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TREES)
def test_a_hostile_tree_is_refused(stranger: Stranger, name: str, way: str) -> None:
    stranger.carry_overlay(TREES[name])
    if way == "oci" and name in UNPACKED_ONLY:
        stranger.make(way)
        return
    stranger.refused(
        way, r"has |does not end|is truncated|too many levels|cannot store|not a valid path inside a layer|not read to its end"
    )


GOOD = ours((Entry("opt", "dir"), ()), file("opt/x", b"x" * 5000)) + END
PACKED: dict[str, tuple[bytes, int | None]] = {
    "a bomb": (gzip.compress(bytes(256 << 20), 1), None),
    "a bomb after the tree": (gzip.compress(GOOD, mtime=0) + gzip.compress(bytes(256 << 20), 1), None),
    "another tree": (gzip.compress(ours((Entry("opt", "dir"), ()), file("opt/y", b"y" * 5000)) + END), None),
    "no gzip": (b"no gzip", None),
    "nothing": (b"", None),
    "a cut gzip": (gzip.compress(GOOD, mtime=0)[:-4], None),
    "a gzip with another CRC": (gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), None),
    "bytes after the end": (gzip.compress(GOOD, mtime=0) + b"PK\x03\x04", None),
    "a smaller size than it has": (gzip.compress(GOOD, mtime=0), len(GOOD) - 1),
    "a size of 8 EiB": (gzip.compress(GOOD, mtime=0), (1 << 63) - 1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PACKED)
def test_a_blob_that_is_not_a_tree_is_refused(stranger: Stranger, name: str, way: str) -> None:
    packed, size = PACKED[name]
    stranger.carry_overlay(GOOD, packed=packed, size=size)
    stranger.refused(way, r"damaged|is truncated|is larger than|does not match its name|the build needs|does not end|has ")


@pytest.mark.parametrize("way", WAYS)
def test_a_tree_that_is_a_symlink_to_a_private_file_is_refused(stranger: Stranger, way: str) -> None:
    stranger.carry_overlay(GOOD)
    (path,) = stranger.blobs.glob(hashlib.sha256(GOOD).hexdigest() + "*")
    path.unlink()
    path.symlink_to(stranger.top / "canary" / "private.txt")
    assert "not for anybody" not in str(stranger.refused(way, "it is a symbolic link, not a regular file"))


def replaced(**changes: Any) -> Callable[[Spec], Spec]:
    return lambda spec: msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, **changes))


def layers(change: Callable[[list[Any]], Iterable[Any]]) -> Callable[[Spec], Spec]:
    return lambda spec: replaced(layers=tuple(change(list(spec.expected.layers))))(spec)


def diff_id(kind: str) -> Callable[[Spec], Spec]:
    """One layer is said to be another."""
    return layers(
        lambda all_: [
            msgspec.structs.replace(layer, diff_id="sha256:" + "1" * 64) if layer.kind == kind else layer for layer in all_
        ]
    )


def holds(*names: str) -> Callable[[Spec], Spec]:
    return layers(
        lambda all_: [msgspec.structs.replace(layer, holds=names) if layer.kind == "distributions" else layer for layer in all_]
    )


SPECS: dict[str, Callable[[Spec], Spec]] = {
    "another image ID": replaced(image_id="sha256:" + "0" * 64),
    "no layers": replaced(layers=()),
    "a layer less": layers(lambda all_: all_[:-1]),
    "a layer twice": layers(lambda all_: [*all_, all_[-1]]),
    "layers in another order": layers(lambda all_: all_[::-1]),
    "another base": diff_id("base"),
    "another interpreter": diff_id("interpreter"),
    "another overlay": diff_id("overlay"),
    "another marker": diff_id("marker"),
    "a layer that holds nothing": holds(),
    "a layer that holds what there is not": holds("other==1.0"),
    "a layer that holds one thing twice": holds("plain==1.0", "plain==1.0"),
    "a layer that holds another version": holds("plain==2.0"),
    "a layer that holds a path": holds("../../plain==1.0"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SPECS)
def test_a_spec_that_contradicts_itself_is_refused(stranger: Stranger, name: str, way: str) -> None:
    stranger.write(SPECS[name](stranger.spec))
    stranger.refused(way, "contradicts itself")


TEXTS: dict[str, Callable[[Any], Any]] = {
    "a base that is a path": lambda spec: spec["identity"]["base"].update(sha256="sha256:../../canary/private.txt"),
    "a digest of another kind": lambda spec: spec["identity"]["base"].update(sha256="md5:" + "0" * 32),
    "a size below nothing": lambda spec: spec["identity"]["base"].update(size=-1),
    "a size of 10^30": lambda spec: spec["identity"]["base"].update(size=10**30),
    "a prefix that climbs": lambda spec: spec["identity"]["layout"].update(prefix="/opt/../etc"),
    "a prefix that is no path": lambda spec: spec["identity"]["layout"].update(prefix="etc"),
    "scripts that climb": lambda spec: spec["identity"]["layout"].update(scripts="../../bin"),
    "site-packages that climb": lambda spec: spec["identity"]["layout"].update(purelib="../../../etc"),
    "a wheel's name with a slash": lambda spec: spec["identity"]["distributions"][0].update(filename="../x-1.0-py3-none-any.whl"),
    "a wheel's name with a line break": lambda spec: spec["identity"]["distributions"][0].update(filename="x\nRUN id.whl"),
    "a variable with a line break": lambda spec: spec["identity"]["config"]["env"].append({"name": "A\nB", "value": "x"}),
    "a variable named =": lambda spec: spec["identity"]["config"]["env"].append({"name": "A=B", "value": "x"}),
    "a key that nobody knows": lambda spec: spec["identity"].update(run="id"),
    "a layer of another kind": lambda spec: spec["expected"]["layers"][0].update(kind="device"),
    "a media type with a line break": lambda spec: spec["expected"].update(
        packed=[{"diff_id": "sha256:" + "0" * 64, "blob": {"media_type": "a\nb", "digest": "sha256:" + "0" * 64, "size": 1}}]
    ),
    "a schema of tomorrow": lambda spec: spec.update(schema="repro-env/spec/99"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_spec_with_an_invalid_field_is_refused(stranger: Stranger, name: str) -> None:
    data = json.loads((stranger.directory / "spec.json").read_bytes())
    TEXTS[name](data)
    with pytest.raises(ReproEnvError) as raised:
        codec.decode(json.dumps(data).encode(), Spec, where="spec.json")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b'"' + b"x" * (1 << 20) + b'"', b"\xff\xfe", b"null"])
def test_bytes_that_are_not_a_spec_are_refused(data: bytes) -> None:
    with pytest.raises(ReproEnvError) as raised:
        codec.decode(data, Spec, where="spec.json")
    assert len(str(raised.value)) < 1000


def manifest(out: Path) -> Any:
    (manifest,) = json.loads((out / "index.json").read_bytes())["manifests"]
    return json.loads((out / "blobs/sha256" / manifest["digest"].partition(":")[2]).read_bytes())


def test_links_in_place_of_the_blobs_of_a_layout_are_replaced(stranger: Stranger) -> None:
    """Each blob's name leads to something private: the links are replaced, and what they name is not written to."""
    stranger.make("oci")
    target = stranger.top / "canary" / "private.txt"
    for path in (stranger.out / "blobs/sha256").iterdir():
        path.unlink()
        path.symlink_to(target)
    (stranger.out / "index.json").unlink()
    stranger.make("oci")
    assert target.read_text() == "not for anybody\n"
    for path in (stranger.out / "blobs/sha256").iterdir():
        assert not path.is_symlink()
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


@pytest.mark.parametrize("harm", ["cut", "longer", "other bytes", "a directory", "a pipe"])
def test_a_blob_of_a_layout_that_does_not_match_its_name_is_replaced_or_refused(stranger: Stranger, harm: str) -> None:
    stranger.make("oci")
    blobs = stranger.out / "blobs/sha256"
    path = max(blobs.iterdir(), key=lambda blob: blob.stat().st_size)
    data = path.read_bytes()
    path.unlink()
    if harm == "a directory":
        (path / "inner").mkdir(parents=True)
        with pytest.raises(ReproEnvError, match="there is a directory in the place of a blob"):
            stranger.make("oci")
        return
    if harm == "a pipe":
        os.mkfifo(path)
    else:
        path.write_bytes({"cut": data[:-1], "longer": data + b"x", "other bytes": b"x" * len(data)}[harm])
    stranger.make("oci")
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "index",
    [b"", b"[]", b"[" * 100_000, b'{"schemaVersion":2}', b'{"schemaVersion":2,"manifests":[1]}', b"\xff", b'{"manifests":{}}'],
)
def test_a_layout_with_an_invalid_index_is_refused(stranger: Stranger, index: bytes) -> None:
    stranger.make("oci")
    (stranger.out / "index.json").write_bytes(index)
    with pytest.raises(ReproEnvError, match="is not the index of an image layout"):
        stranger.make("oci")
    assert (stranger.out / "index.json").read_bytes() == index


@pytest.mark.parametrize("what", ["a directory of another user", "a file", "another layout version"])
def test_an_output_path_that_is_not_a_layout_is_refused(stranger: Stranger, what: str) -> None:
    if what == "a file":
        stranger.out.write_text("mine")
    else:
        stranger.out.mkdir()
        (stranger.out / "mine.txt").write_text("mine")
        if what == "another layout version":
            (stranger.out / "oci-layout").write_text('{"imageLayoutVersion":"9.9.9"}')
    with pytest.raises(ReproEnvError, match=r"is neither empty nor|Not a directory"):
        stranger.make("oci")
    assert (stranger.out if what == "a file" else stranger.out / "mine.txt").read_text() == "mine"


def test_a_tree_blob_may_not_be_a_path() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"sha256":"sha256:../x","size":1,"files":1}', type=TreeBlob)
