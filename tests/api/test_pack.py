"""An archive of a spec is deterministic and complete, and an untrusted archive is checked before it is used."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from repro_env.api.pack import Pack, pack
from repro_env.api.rebuild import rebuild
from repro_env.oci import tar
from repro_env.oci.entry import Entry, Member
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, ReproEnvError, SpecError, UsageError
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened, open_spec
from repro_env.store.specs import files
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import Index, configured
from tests.fakes.messages import Messages


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with configured(monkeypatch, no_index="1"):
        yield


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "project" / "repro"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "wheels") as index:
        yield index


@pytest.fixture
def spec(directory: Path, tmp_path: Path, index: Index) -> Spec:
    """A spec of two bundled wheels, one of them as gzip, and a wheel in an index."""
    own = tmp_path / "wheels"
    made = {
        "alpha": wheels.make(own, "alpha", files={"alpha.py": b"A = 1\n" * 300}),
        "beta": wheels.make(own, "beta", "2.0", {"beta.py": b"X = 2\n" * 1000}),
        "gamma": wheels.make(own, "gamma"),
    }
    spec = specs.make(
        directory, made, carry=["alpha", "gamma"], compress=["gamma"], urls={"beta": [f"{index.proxy}/files/{made['beta'].name}"]}
    )
    (directory / "requirements.txt").write_text("alpha==1.0\nbeta==2.0\n")
    (directory / "private.txt").write_text("not part of the spec")
    return spec


def make_pack(spec: Spec, directory: Path, target: Path, *, everything: bool = False) -> Pack:
    return pack(Opened(spec, directory), target, everything=everything, tell=Messages())


def test_a_complete_archive_rebuilds_without_any_other_file(spec: Spec, directory: Path, index: Index, tmp_path: Path) -> None:
    done = make_pack(spec, directory, tmp_path / "a.tar", everything=True)
    assert done.complete
    assert done.fetched > 0
    assert done.sha256 == "sha256:" + hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest()
    requests = len(index.asked)
    shutil.rmtree(directory)
    store = Store.open(tmp_path / "bare")
    found = open_spec("a.tar", tmp_path, store)
    assert found.spec == spec
    assert found.runs == tmp_path / "runs"
    rebuilt = rebuild(found, store=store, tell=Messages())
    assert rebuilt.image_id == spec.expected.image_id
    assert rebuilt.fetched == 0
    assert len(index.asked) == requests
    assert (found.directory / "requirements.txt").is_file()
    assert not (found.directory / "private.txt").exists()
    assert open_spec("a.tar", tmp_path, store).directory == found.directory


def test_the_same_spec_gives_the_same_bytes(spec: Spec, directory: Path, tmp_path: Path) -> None:
    digests = set()
    for number, umask in enumerate((0o022, 0o077, 0o000)):
        clone = tmp_path / f"clone{number}" / "other"
        shutil.copytree(directory, clone)
        for path in clone.rglob("*"):
            os.utime(path, (number * 1000, number * 1000))
        (clone / "more.txt").write_text(str(number))
        old = os.umask(umask)
        try:
            digests.add(pack(Opened(spec, clone), tmp_path / f"{number}.tar", everything=bool(number), tell=Messages()).sha256)
        finally:
            os.umask(old)
    assert len(digests) == 2  # the first archive is not complete


def test_an_archive_of_an_unpacked_archive_is_identical(spec: Spec, directory: Path, tmp_path: Path) -> None:
    first = make_pack(spec, directory, tmp_path / "a.tar", everything=True)
    found = open_spec("a.tar", tmp_path)
    assert make_pack(found.spec, found.directory, tmp_path / "b.tar", everything=True).sha256 == first.sha256


def test_missing_wheels_are_downloaded_if_the_archive_is_not_complete(spec: Spec, directory: Path, tmp_path: Path) -> None:
    assert not make_pack(spec, directory, tmp_path / "a.tar").complete
    store = Store.open(tmp_path / "bare")
    found = open_spec("a.tar", tmp_path, store)
    rebuilt = rebuild(found, store=store, tell=Messages())
    assert rebuilt.plan is not None
    origins = {item.what.partition("==")[0]: item.origin for item in rebuilt.plan.items}
    assert (origins["alpha"], origins["beta"], origins["base"]) == ("bundled", "url", "bundled")


def test_a_damaged_blob_is_refused_and_the_old_file_stays(spec: Spec, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"old")
    blob = specs.blob(directory, spec.identity.base)
    blob.chmod(0o644)
    blob.write_bytes(gzip.compress(b"other"))
    with pytest.raises(ArtifactError):
        make_pack(spec, directory, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


@pytest.mark.parametrize("name", ["", "missing/a.tar"])
def test_a_target_that_cannot_be_written_is_refused(spec: Spec, directory: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        make_pack(spec, directory, tmp_path / name)


def test_a_missing_source_is_a_warning_and_a_missing_base_is_refused(spec: Spec, directory: Path, tmp_path: Path) -> None:
    assert spec.observed.source is not None
    specs.blob(directory, spec.observed.source.tree).unlink()
    messages = Messages()
    assert not pack(Opened(spec, directory), tmp_path / "a.tar", everything=True, tell=messages).complete
    assert any("source" in line for line in messages.lines)
    specs.blob(directory, spec.identity.base).unlink()
    with pytest.raises(ArtifactError, match="the base was not found"):
        make_pack(spec, directory, tmp_path / "b.tar")


Content = dict[str, bytes]


def rewrite(path: Path, change: Callable[[Content], None]) -> None:
    """Write the same tar with changed members."""
    content: Content = {}
    with path.open("rb") as file:
        for entry, chunks in tar.read(file, where="test"):
            content[entry.path] = b"".join(chunks)
    content.pop("blobs")
    change(content)
    entries: list[Member] = [(Entry("blobs", "dir"), ())]
    entries += [(Entry(name, "file", size=len(data)), (data,)) for name, data in content.items()]
    path.write_bytes(b"".join(tar.write(sorted(entries, key=lambda member: member[0].key))))


def _other_wheel(content: Content) -> None:
    name = next(name for name in content if name.startswith("blobs/") and "." not in name)
    content[name] += b"more"


def _bomb(content: Content) -> None:
    name = next(name for name in content if name.endswith(".gz"))
    content[name] = gzip.compress(bytes(50 << 20))


def _stray_blob(content: Content) -> None:
    content["blobs/" + hashlib.sha256(b"stray").hexdigest()] = b"stray"


def _twice(content: Content) -> None:
    name = next(name for name in content if name.endswith(".gz"))
    data = gzip.decompress(content[name])
    content[name.removesuffix(".gz")] = data


def _set(name: str, data: bytes) -> Callable[[Content], None]:
    return lambda content: content.update({name: data})


def _without_spec(content: Content) -> None:
    del content["spec.json"]


HOSTILE: dict[str, Callable[[Content], None]] = {
    "another file": _set("evil.sh", b"#!/bin/sh\n"),
    "a file below": _set("sub/spec.json", b"{}"),
    "a file below blobs": _set("blobs/x/y", b""),
    "a blob without a digest": _set("blobs/passwd", b""),
    "a wheel of other bytes": _other_wheel,
    "a tree that inflates without end": _bomb,
    "a blob that the spec does not name": _stray_blob,
    "a tree twice": _twice,
    "no spec": _without_spec,
    "an invalid spec": _set("spec.json", b"{}"),
    "a spec with more keys": lambda content: content.update(
        {"spec.json": content["spec.json"].replace(b'"schema"', b'"x":1,"schema"', 1)}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_crafted_archive_is_refused(spec: Spec, directory: Path, tmp_path: Path, name: str) -> None:
    make_pack(spec, directory, tmp_path / "a.tar")
    rewrite(tmp_path / "a.tar", HOSTILE[name])
    store = Store.open()
    with pytest.raises((ArtifactError, SpecError)) as raised:
        open_spec("a.tar", tmp_path, store)
    assert "a.tar" in raised.value.where
    assert raised.value.hint
    assert list((store.root / "specs").iterdir()) == []
    assert list((store.root / "temp").iterdir()) == []


def _bytes(change: Callable[[bytearray], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        copy = bytearray(data)
        change(copy)
        return bytes(copy)

    return changed


def _member(kind: bytes) -> Callable[[bytes], bytes]:
    """Insert a first member of another type: a device or a hard link."""

    def changed(data: bytes) -> bytes:
        block = bytearray(tar.header(Entry("Dockerfile", "file")))
        block[156:157] = kind
        block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 0x20)
        return bytes(block) + data

    return changed


RAW: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "without an end": lambda data: data[:-1024],
    "more after the end": lambda data: data + bytes(512),
    "a changed byte": _bytes(lambda data: data.__setitem__(700, data[700] ^ 1)),
    "a device": _member(b"3"),
    "a hard link": _member(b"1"),
    "a symlink": lambda data: tar.header(Entry("Dockerfile", "link", target="/etc/passwd")) + data,
    "a way out": lambda data: tar.header(Entry("../x", "file")) + data,
    "an absolute path": lambda data: tar.header(Entry("/x", "file")) + data,
    "a directory with the name of a file": lambda data: tar.header(Entry("Dockerfile", "dir")) + data,
    "an executable": lambda data: tar.header(Entry("Dockerfile", "file", executable=True)) + data,
    "a wrong size": lambda data: tar.header(Entry("Dockerfile", "file", size=1 << 50)) + data,
    "twice": lambda data: tar.header(Entry("Dockerfile", "file")) * 2 + data,
}


@pytest.mark.parametrize("name", RAW)
def test_a_tar_that_breaks_a_rule_is_refused(spec: Spec, directory: Path, tmp_path: Path, name: str) -> None:
    make_pack(spec, directory, tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(RAW[name]((tmp_path / "a.tar").read_bytes()))
    store = Store.open()
    with pytest.raises(ReproEnvError) as raised:
        open_spec("a.tar", tmp_path, store)
    assert "a.tar" in raised.value.where
    assert list((store.root / "specs").iterdir()) == []
    assert not (tmp_path.parent / "x").exists()


def test_a_changed_archive_is_unpacked_into_another_directory(spec: Spec, directory: Path, tmp_path: Path) -> None:
    make_pack(spec, directory, tmp_path / "a.tar")
    first = open_spec("a.tar", tmp_path).directory
    (directory / "requirements.txt").write_text("other\n")
    make_pack(spec, directory, tmp_path / "a.tar")
    second = open_spec("a.tar", tmp_path).directory
    assert first != second
    assert (second / "requirements.txt").read_text() == "other\n"


def test_all_files_next_to_a_spec_are_packed(directory: Path, spec: Spec, tmp_path: Path) -> None:
    for name in files.FILES:
        if name not in (files.SPEC, files.REMOTE):
            (directory / name).write_text(name)
    (directory / files.REMOTE).write_bytes(codec.pretty({"schema": "repro-env/remote/1", "copies": []}))
    make_pack(spec, directory, tmp_path / "a.tar")
    assert {path.name for path in open_spec("a.tar", tmp_path).directory.iterdir()} == {*files.FILES, "blobs"}


def test_a_missing_blob_is_made_again_from_the_layer_in_the_store(spec: Spec, directory: Path, tmp_path: Path) -> None:
    first = make_pack(spec, directory, tmp_path / "a.tar")
    rebuild(Opened(spec, directory), store=Store.open(), tell=Messages())
    blob = specs.blob(directory, spec.identity.base)
    kept = blob.read_bytes()
    blob.unlink()
    assert make_pack(spec, directory, tmp_path / "b.tar").sha256 == first.sha256
    assert blob.read_bytes() == kept
