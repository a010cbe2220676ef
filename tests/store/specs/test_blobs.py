from __future__ import annotations

import gzip
import hashlib
import os
import random
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.oci import tar
from repro_env.oci.entry import Entry, Member
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import ArtifactError, DiskError, StoreError
from repro_env.store import temporary
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store
from tests.store import trees
from tests.store.trees import diff_id, member, small

pytestmark = pytest.mark.usefixtures("inflater")


@pytest.fixture
def spec_blobs(tmp_path: Path) -> SpecBlobs:
    return SpecBlobs(tmp_path / "repro" / "blobs")


def _names(spec_blobs: SpecBlobs) -> list[str]:
    return sorted(path.name for path in spec_blobs.directory.iterdir())


def _file(spec_blobs: SpecBlobs, blob: TreeBlob) -> Path:
    """The file of a blob, which a plain user's test may damage too."""
    path = spec_blobs.directory / f"{blob.sha256.removeprefix('sha256:')}.gz"
    if path.exists():
        path.chmod(0o644)
    return path


def _read(members: Iterable[Member]) -> list[tuple[Entry, bytes]]:
    return [(entry, b"".join(chunks)) for entry, chunks in members]


def _tar(members: list[Member]) -> bytes:
    return b"".join(tar.write(members))


def test_a_tree_is_read_back_unchanged(spec_blobs: SpecBlobs) -> None:
    blob = spec_blobs.add_tree(small())

    assert blob == TreeBlob(sha256=diff_id(small()), size=len(_tar(small())), files=len(small()))
    assert _read(spec_blobs.tree(blob)) == _read(small())
    assert _names(spec_blobs) == [".gitignore", _file(spec_blobs, blob).name]
    assert (spec_blobs.directory / ".gitignore").read_text() == "*\n"


def test_the_blob_is_plain_gzip_without_name_and_time(spec_blobs: SpecBlobs) -> None:
    blob = spec_blobs.add_tree(small())
    data = _file(spec_blobs, blob).read_bytes()

    assert gzip.decompress(data) == _tar(small())
    assert data[3:8] == bytes(5), "no flags (so no name) and mtime 0"


def test_the_chunks_of_a_tree_do_not_change_its_file(spec_blobs: SpecBlobs, tmp_path: Path) -> None:
    data = random.Random(5).randbytes(1_500_000) * 3

    def pieces(size: int) -> list[Member]:
        entry = Entry("file", "file", size=len(data))
        return [(entry, [data[start : start + size] for start in range(0, len(data), size)])]

    other = SpecBlobs(tmp_path / "other")
    first, second = spec_blobs.add_tree(pieces(1 << 20)), other.add_tree(pieces(4093))

    assert first == second
    assert _file(spec_blobs, first).read_bytes() == _file(other, second).read_bytes()


def test_a_tree_written_again_replaces_a_damaged_blob(spec_blobs: SpecBlobs) -> None:
    blob = spec_blobs.add_tree(small())
    _file(spec_blobs, blob).write_bytes(b"damaged")

    spec_blobs.add_tree(small())

    assert _read(spec_blobs.tree(blob)) == _read(small())


def _refused(spec_blobs: SpecBlobs, blob: TreeBlob) -> ArtifactError:
    with pytest.raises(ArtifactError) as raised:
        _read(spec_blobs.tree(blob))
    assert blob.sha256.removeprefix("sha256:") in raised.value.where
    assert raised.value.hint
    return raised.value


def test_every_flipped_byte_of_a_blob_is_found(spec_blobs: SpecBlobs) -> None:
    """Some bits change nothing (gzip's time and system, a run of zeros copied from another one); all others are found."""
    members = [member("file", random.Random(1).randbytes(2000))]
    blob = spec_blobs.add_tree(members)
    path = _file(spec_blobs, blob)
    data = path.read_bytes()
    harmless = 0
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        try:
            assert _read(spec_blobs.tree(blob)) == _read(members), f"byte {at}"
            harmless += 1
        except ArtifactError:
            continue
    assert harmless < len(data) / 50


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 100, -9, -8, -1])
def test_a_truncated_blob_is_refused(spec_blobs: SpecBlobs, keep: int) -> None:
    blob = spec_blobs.add_tree(small())
    path = _file(spec_blobs, blob)
    path.write_bytes(path.read_bytes()[:keep])

    _refused(spec_blobs, blob)


@pytest.mark.parametrize(
    "garbage",
    [b"\0", b"garbage", bytes(512), gzip.compress(b"x"), gzip.compress(bytes(1024)), gzip.compress(b"")[:-1]],
    ids=["nul", "text", "block", "member", "blocks", "cut"],  # not from the bytes, because gzip writes the time
)
def test_bytes_after_the_end_are_refused(spec_blobs: SpecBlobs, garbage: bytes) -> None:
    blob = spec_blobs.add_tree(small())
    path = _file(spec_blobs, blob)
    path.write_bytes(path.read_bytes() + garbage)

    _refused(spec_blobs, blob)


def test_a_different_tree_under_the_name_is_refused(spec_blobs: SpecBlobs) -> None:
    blob = spec_blobs.add_tree(small())
    other = [*small()[:-1], member("opt/env/\N{GREEK SMALL LETTER PI}", b"3.15")]
    _file(spec_blobs, blob).write_bytes(gzip.compress(_tar(other)))

    assert "does not match its name" in str(_refused(spec_blobs, blob))


@pytest.mark.parametrize("step", [-512, -1, 1, 512])
def test_a_tree_without_the_size_in_the_spec_is_refused(spec_blobs: SpecBlobs, step: int) -> None:
    blob = spec_blobs.add_tree(small())

    _refused(spec_blobs, msgspec.structs.replace(blob, size=blob.size + step))


def test_a_decompression_bomb_stops_at_its_size(spec_blobs: SpecBlobs) -> None:
    blob = spec_blobs.add_tree(small())
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range(300)) + packer.flush()
    entry = Entry("file", "file", size=300 << 20)
    _file(spec_blobs, blob).write_bytes(gzip.compress(tar.header(entry)) + bomb)

    tracemalloc.start()
    error = _refused(spec_blobs, blob)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert f"larger than the {blob.size} bytes" in str(error)
    assert peak < 20 << 20


def test_a_missing_blob_is_refused(spec_blobs: SpecBlobs) -> None:
    assert "the blob is missing" in str(_refused(spec_blobs, TreeBlob(sha256="sha256:" + "0" * 64, size=1024, files=0)))


def test_a_pipe_in_place_of_a_blob_does_not_hang(spec_blobs: SpecBlobs) -> None:
    blob = spec_blobs.add_tree(small())
    _file(spec_blobs, blob).unlink()
    os.mkfifo(_file(spec_blobs, blob))

    _refused(spec_blobs, blob)


def test_a_damaged_tree_is_not_unpacked(spec_blobs: SpecBlobs, store: Store) -> None:
    blob = spec_blobs.add_tree(small())
    path = _file(spec_blobs, blob)
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    with pytest.raises(ArtifactError):
        store.layers.unpack(blob.sha256, spec_blobs.tree(blob))
    assert list((store.root / "layers").iterdir()) == []

    path.write_bytes(data)
    assert (store.layers.unpack(blob.sha256, spec_blobs.tree(blob)) / "opt/env/big").read_bytes() == trees.BIG


def test_a_file_is_bundled_as_gzip(spec_blobs: SpecBlobs, store: Store, tmp_path: Path) -> None:
    data = b"the same again\n" * 300_000
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "wheel").write_bytes(data)

    spec_blobs.add_file(tmp_path / "wheel", f"sha256:{digest}", compress=True)

    packed = spec_blobs.packed_file(digest, store.facts)
    assert packed is not None
    assert packed.name == f"{digest}.gz"
    assert packed.stat().st_size < len(data) // 50
    assert b"".join(spec_blobs.chunks(digest, len(data))) == data
    path = spec_blobs.file(digest, len(data), store.blobs)
    assert path == store.blobs.path(digest)
    assert path is not None
    assert path.read_bytes() == data
    (store.root / "blobs" / digest.removeprefix("sha256:")).unlink()
    packed.chmod(0o644)
    packed.write_bytes(gzip.compress(data + b"more"))
    assert spec_blobs.packed_file(digest, store.facts) is None
    with pytest.raises(ArtifactError, match="larger than"):
        spec_blobs.file(digest, len(data), store.blobs)


def test_a_file_is_bundled_uncompressed(spec_blobs: SpecBlobs, store: Store, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "wheel").write_bytes(data)

    spec_blobs.add_file(tmp_path / "wheel", f"sha256:{digest}")

    path = spec_blobs.file(digest, len(data), store.blobs)
    assert path == spec_blobs.path(digest)
    assert path is not None
    assert path.read_bytes() == data
    assert b"".join(spec_blobs.chunks(digest, len(data))) == data
    with pytest.raises(ArtifactError, match="larger than"):
        list(spec_blobs.chunks(digest, len(data) - 1))
    path.chmod(0o644)
    path.write_bytes(data[:-1])
    with pytest.raises(ArtifactError, match="does not match its name"):
        list(spec_blobs.chunks(digest))


def test_a_file_with_wrong_bytes_is_not_bundled(spec_blobs: SpecBlobs, tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(b"other")

    with pytest.raises(ArtifactError, match="wheel: the file does not have the expected content"):
        spec_blobs.add_file(tmp_path / "wheel", "0" * 64)
    assert _names(spec_blobs) == [".gitignore"]


def test_chunks_of_a_gzip_blob_are_uncompressed(spec_blobs: SpecBlobs) -> None:
    blob = spec_blobs.add_tree(small())

    assert b"".join(spec_blobs.chunks(blob.sha256)) == _tar(small())


def test_has_reads_a_blob_once_and_notices_changes(spec_blobs: SpecBlobs, store: Store) -> None:
    blob = spec_blobs.add_tree(small())
    assert not spec_blobs.has("0" * 64, store.facts)
    assert spec_blobs.has(blob.sha256, store.facts)
    assert spec_blobs.has(blob.sha256, store.facts)

    path = _file(spec_blobs, blob)
    path.write_bytes(path.read_bytes()[:-1])
    assert not spec_blobs.has(blob.sha256, store.facts)


def test_has_does_not_read_a_blob_that_was_just_written(
    spec_blobs: SpecBlobs, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = spec_blobs.add_tree(small(), facts=store.facts)
    monkeypatch.setattr(SpecBlobs, "chunks", lambda *_: pytest.fail("it was read"))

    assert spec_blobs.has(blob.sha256, store.facts)


def _listed(members: list[Member]) -> list[Entry]:
    return [
        msgspec.structs.replace(entry, sha256=hashlib.sha256(b"".join(chunks)).hexdigest()) if entry.kind == "file" else entry
        for entry, chunks in members
    ]


def test_an_undamaged_blob_is_listed_once(spec_blobs: SpecBlobs, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = [(entry, chunks) for entry, (_, chunks) in zip(_listed(small()), small(), strict=True)]
    blob = spec_blobs.add_tree(hashed, facts=store.facts)
    assert spec_blobs.entries(blob, store.facts) == _listed(small())

    def unread(self: SpecBlobs, blob: TreeBlob) -> Iterator[Member]:
        raise AssertionError("it was read again")

    monkeypatch.setattr(SpecBlobs, "tree", unread)
    assert spec_blobs.entries(blob, store.facts) == _listed(small())


def test_a_changed_blob_is_listed_again(spec_blobs: SpecBlobs, store: Store) -> None:
    """A stored list is not used for a file that is damaged, missing or of a wrong size."""
    blob = spec_blobs.add_tree(small(), facts=store.facts)
    spec_blobs.entries(blob, store.facts)
    with pytest.raises(ArtifactError, match="in the spec"):
        spec_blobs.entries(msgspec.structs.replace(blob, size=blob.size + 1), store.facts)
    data = bytearray(_file(spec_blobs, blob).read_bytes())
    data[len(data) // 2] ^= 1
    _file(spec_blobs, blob).write_bytes(data)
    with pytest.raises(ArtifactError):
        spec_blobs.entries(blob, store.facts)
    _file(spec_blobs, blob).unlink()
    with pytest.raises(ArtifactError, match="the blob is missing"):
        spec_blobs.entries(blob, store.facts)


def test_keep_only_removes_other_blobs_but_no_other_files(spec_blobs: SpecBlobs, tmp_path: Path) -> None:
    kept, old = spec_blobs.add_tree(small()), spec_blobs.add_tree(small()[:3])
    (tmp_path / "wheel").write_bytes(b"wheel")
    spec_blobs.add_file(tmp_path / "wheel", hashlib.sha256(b"wheel").hexdigest())
    (spec_blobs.directory / "notes.txt").write_text("mine")

    spec_blobs.keep_only({kept.sha256})

    assert _names(spec_blobs) == sorted([".gitignore", _file(spec_blobs, kept).name, "notes.txt"])
    assert old.sha256 != kept.sha256
    SpecBlobs(tmp_path / "nowhere").keep_only(set())


def test_a_source_that_fails_leaves_nothing(spec_blobs: SpecBlobs) -> None:
    def failing() -> Iterator[bytes]:
        yield bytes(3 << 20)
        raise ArtifactError("is damaged", where="file")

    with pytest.raises(ArtifactError, match="file: is damaged"):
        spec_blobs.add_tree([(Entry("file", "file", size=5 << 20), failing())])
    assert _names(spec_blobs) == [".gitignore"]


def test_the_next_capture_removes_files_of_a_killed_one(spec_blobs: SpecBlobs) -> None:
    dead = spec_blobs.directory / f"{temporary._PREFIX}dead"
    dead.mkdir(parents=True)
    (dead / "blob").write_bytes(b"half")
    Path(f"{dead}.lock").write_bytes(b"")

    blob = spec_blobs.add_tree(small())

    assert _names(spec_blobs) == [".gitignore", _file(spec_blobs, blob).name]


def test_only_a_digest_is_accepted_as_a_name(spec_blobs: SpecBlobs) -> None:
    with pytest.raises(StoreError, match="not a sha256"):
        spec_blobs.path("../spec.json")


def test_a_full_disk_is_reported_and_nothing_is_left_behind(small_disk: Path) -> None:
    spec_blobs = SpecBlobs(small_disk / "blobs")
    kept = spec_blobs.add_tree(small()[:3])
    before = os.statvfs(small_disk)

    with pytest.raises(DiskError, match="not enough disk space"):
        spec_blobs.add_tree([member("file", os.urandom(6_000_000))])

    after = os.statvfs(small_disk)
    assert (after.f_bfree, after.f_ffree) == (before.f_bfree, before.f_ffree)
    assert _read(spec_blobs.tree(kept)) == _read(small()[:3])
