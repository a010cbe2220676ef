"""Conda package files: both formats, and hostile packages made by hand."""

from __future__ import annotations

import bz2
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard

from repro_env.oci import conda as rule
from repro_env.oci.entry import Entry
from repro_env.schema.errors import ArtifactError
from repro_env.store.packages import condafile
from repro_env.store.temporary import Temp
from tests.fakes import conda

PREFIX = "/home/ann/envs/ml"
ITEMS = {
    "bin/tool": conda.text(f"#!{conda.PLACEHOLDER}/bin/python\n", executable=True),
    "lib/tool.so": conda.Item(b"\x7fELF" + conda.PLACEHOLDER.encode() + b"/lib\0end", True, "binary"),
    "lib/link.so": conda.link("tool.so"),
    "share/hard": conda.Item(hard="lib/tool.so"),
    "share/Müller.txt": conda.text("plain", placeholder=False),
    "share/directory": conda.Item(directory=True),
}


def package(**more: object) -> conda.Package:
    return conda.Package("tool", ITEMS, **more)  # type: ignore[arg-type] # passed on


def unpacked(path: Path, directory: Path) -> tuple[rule.Facts, dict[str, Path]]:
    (directory / "unpacked").mkdir()
    return condafile.link(path, path.name, PREFIX, directory / "unpacked")


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, target
    return found


def zipped(directory: Path, info: bytes, pkg: bytes) -> Path:
    path = directory / "tool-1.0-0.conda"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("info-tool-1.0-0.tar.zst", zstandard.compress(info))
        archive.writestr("pkg-tool-1.0-0.tar.zst", zstandard.compress(pkg))
    return path


def with_member(directory: Path, *bad: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Write a package with members that it does not list."""
    good = conda.write(package(), directory / "good")
    with zipfile.ZipFile(good) as archive:
        info = zstandard.decompress(archive.read("info-tool-1.0-0.tar.zst"))
        pkg = zstandard.decompress(archive.read("pkg-tool-1.0-0.tar.zst"))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive, tarfile.open(fileobj=io.BytesIO(pkg)) as old:
        for tar_info in old:
            archive.addfile(tar_info, old.extractfile(tar_info) if tar_info.isreg() else None)
        for tar_info, data in bad:
            tar_info.size = len(data)
            archive.addfile(tar_info, io.BytesIO(data))
    return zipped(directory, info, out.getvalue())


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
def test_both_formats_give_the_same_facts(tmp_path: Path, ending: str) -> None:
    facts, contents = unpacked(conda.write(package(ending=ending), tmp_path), tmp_path)
    linked = {path.path: path for path in facts.linked}
    assert set(linked) == set(ITEMS)
    assert contents["bin/tool"].read_bytes() == f"#!{PREFIX}/bin/python\n".encode()
    assert contents["lib/tool.so"].read_bytes().startswith(b"\x7fELF" + PREFIX.encode() + b"/lib\0")
    assert linked["lib/tool.so"].size == len(ITEMS["lib/tool.so"].data)
    assert linked["lib/link.so"].target == "tool.so"
    assert (linked["bin/tool"].executable, linked["share/Müller.txt"].executable) == (True, False)
    assert contents["share/hard"].read_bytes() == ITEMS["lib/tool.so"].data  # the list has no placeholder for it


def test_the_prefix_is_inserted_into_a_hard_link(tmp_path: Path) -> None:
    text = f"{conda.PLACEHOLDER}/x\n".encode()
    items = {"share/first": conda.Item(text), "share/second": conda.Item(hard="share/first", placeholder="text")}
    path = conda.write(conda.Package("tool", items), tmp_path)
    _, contents = unpacked(path, tmp_path)
    assert contents["share/second"].read_bytes() == f"{PREFIX}/x\n".encode()


def test_info_is_read_alone(tmp_path: Path) -> None:
    path = conda.write(package(noarch="python", entry_points=["t = t.cli:main"], depends=["python"]), tmp_path)
    with path.open("rb") as file:
        found = condafile.info(file, path.name)
    assert (found.name, found.noarch, found.depends) == ("tool", "python", ("python",))
    assert {path.path for path in found.paths} == set(ITEMS)


def test_the_content_of_installed_files_is_right(tmp_path: Path) -> None:
    path = conda.write(package(), tmp_path)
    facts, _ = unpacked(path, tmp_path)
    from tests.oci.condapackages import LAYOUT

    becomes = rule.canonical(facts, LAYOUT)
    with condafile.UnpackedPackage(path, path.name, PREFIX, Temp(tmp_path)) as opened:
        contents = condafile.CondaContents(opened, becomes)
        (tool,) = (entry for entry in becomes.entries if entry.path == "bin/tool")
        assert b"".join(contents.chunks(tool)) == f"#!{PREFIX}/bin/python\n".encode()
        (record,) = (entry for entry in becomes.entries if entry.path == "conda-meta/tool-1.0-0.json")
        assert b"".join(contents.chunks(record)) == becomes.literals[record.path]
        assert list(tmp_path.glob(".temp-*"))
    assert not list(tmp_path.glob(".temp-*"))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ((member("../out"), b"x"), "has the path '../out'"),
        ((member("/etc/passwd"), b"x"), "has the path '/etc/passwd'"),
        ((member("a/../../b"), b"x"), "has the path"),
        ((member("a\nb"), b"x"), "has the path"),
        ((member("bin/tool"), b"x"), "has bin/tool twice"),
        ((member("dev", tarfile.CHRTYPE), b""), "has dev, which is not a file, directory or link"),
        ((member("fifo", tarfile.FIFOTYPE), b""), "has fifo, which is not a file, directory or link"),
        ((member("hard", tarfile.LNKTYPE, "/etc/passwd"), b""), "the hard link hard of the package points to '/etc/passwd'"),
        ((member("hard", tarfile.LNKTYPE, "lib/link.so"), b""), "the hard link hard of the package"),
    ],
)
def test_a_member_outside_of_the_package_or_of_an_invalid_kind_is_refused(
    tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes], why: str
) -> None:
    with pytest.raises(ArtifactError, match=why):
        unpacked(with_member(tmp_path, bad), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "tool-1.0-0.conda", "unpacked"]


def test_an_unlisted_member_is_not_installed(tmp_path: Path) -> None:
    facts, _ = unpacked(with_member(tmp_path, (member("share/extra"), b"x")), tmp_path)
    assert "share/extra" not in {path.path for path in facts.linked}


def test_a_listed_path_must_be_in_the_package(tmp_path: Path) -> None:
    good = conda.write(package(), tmp_path / "good")
    with zipfile.ZipFile(good) as archive:
        info = zstandard.decompress(archive.read("info-tool-1.0-0.tar.zst"))
    with pytest.raises(ArtifactError, match=r"lists bin/tool, which is missing"):
        unpacked(zipped(tmp_path, info, tar_of((member("other"), b"x"))), tmp_path)


class TestBombs:
    def test_an_extended_header_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        header = member("x", tarfile.XHDTYPE)
        header.size = 1 << 32
        body = header.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 20)
        with pytest.raises(ArtifactError, match="extended header is too large"):
            unpacked(zipped(tmp_path, tar_of(), body), tmp_path)

    def test_an_info_directory_that_is_too_large_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(condafile, "MAX_INFO", 100)
        path = conda.write(package(), tmp_path)
        with pytest.raises(ArtifactError, match="info/ directory of the package is too large"), path.open("rb") as file:
            condafile.info(file, path.name)
        with pytest.raises(ArtifactError, match="info/ directory of the package is too large"):
            unpacked(path, tmp_path)

    def test_a_package_that_is_too_large_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(condafile, "MAX_UNPACKED", 200)
        with pytest.raises(ArtifactError, match="the package is too large"):
            unpacked(conda.write(package(), tmp_path), tmp_path)

    def test_too_many_members_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rule, "MAX_PATHS", 5)
        with pytest.raises(ArtifactError, match=r"more than [0-9,]+ members"):
            unpacked(conda.write(package(), tmp_path), tmp_path)


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
@pytest.mark.parametrize(
    "data", [b"", b"no archive", b"PK\x05\x06" + bytes(18), bz2.compress(b"no tar"), bz2.compress(bytes(10_240))[:-9]]
)
def test_a_file_that_is_not_a_package_is_refused(tmp_path: Path, ending: str, data: bytes) -> None:
    path = tmp_path / f"tool-1.0-0{ending}"
    path.write_bytes(data)
    with pytest.raises(ArtifactError):
        unpacked(path, tmp_path)


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    """A damaged archive gives an `ArtifactError` or the same package, never a crash."""
    path = conda.write(package(), tmp_path)
    data = path.read_bytes()
    refused = 0
    for at in range(0, len(data), 37):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            condafile.link(path, path.name, PREFIX, Path(_fresh(tmp_path, at)))
        except ArtifactError:
            refused += 1
    assert refused > 10


def _fresh(directory: Path, number: int) -> Path:
    made = directory / str(number)
    made.mkdir()
    return made


def test_an_entry_that_is_not_in_the_package_is_refused(tmp_path: Path) -> None:
    path = conda.write(package(), tmp_path)
    from tests.oci.condapackages import LAYOUT

    facts, _ = unpacked(path, tmp_path)
    becomes = rule.canonical(facts, LAYOUT)
    becomes.members["bin/other"] = "bin/other"
    opened = condafile.UnpackedPackage(path, path.name, PREFIX, Temp(tmp_path))
    with opened, pytest.raises(ArtifactError, match="is not in tool-1"):
        list(condafile.CondaContents(opened, becomes).chunks(Entry("bin/other", "file")))
