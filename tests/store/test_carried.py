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

from repro_env.image import tar
from repro_env.image.entry import Entry, Member
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import ArtifactError, DiskError, StoreError
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from tests.store import trees
from tests.store.trees import diff_id, member, small

pytestmark = pytest.mark.usefixtures("inflater")


@pytest.fixture
def carried(tmp_path: Path) -> Carried:
    return Carried(tmp_path / "repro" / "blobs")


def _names(carried: Carried) -> list[str]:
    return sorted(path.name for path in carried._folder.iterdir())


def _file(carried: Carried, blob: TreeBlob) -> Path:
    return carried._folder / f"{blob.sha256.removeprefix('sha256:')}.gz"


def _read(members: Iterable[Member]) -> list[tuple[Entry, bytes]]:
    return [(entry, b"".join(chunks)) for entry, chunks in members]


def _tar(members: list[Member]) -> bytes:
    return b"".join(tar.write(members))


def test_a_tree_comes_back_as_it_went_in(carried: Carried) -> None:
    blob = carried.add_tree(small())

    assert blob == TreeBlob(sha256=diff_id(small()), size=len(_tar(small())), files=len(small()))
    assert _read(carried.tree(blob)) == _read(small())
    assert _names(carried) == [".gitignore", _file(carried, blob).name]
    assert (carried._folder / ".gitignore").read_text() == "*\n"


def test_any_gzip_reads_the_blob_and_it_names_no_time_and_no_file(carried: Carried) -> None:
    blob = carried.add_tree(small())
    data = _file(carried, blob).read_bytes()

    assert gzip.decompress(data) == _tar(small())
    assert data[3:8] == bytes(5), "no flags, so no name; mtime 0"


def test_the_same_tree_is_the_same_file_however_its_bytes_come(carried: Carried, tmp_path: Path) -> None:
    data = random.Random(5).randbytes(1_500_000) * 3

    def pieces(size: int) -> list[Member]:
        entry = Entry("file", "file", size=len(data))
        return [(entry, [data[start : start + size] for start in range(0, len(data), size)])]

    other = Carried(tmp_path / "other")
    first, second = carried.add_tree(pieces(1 << 20)), other.add_tree(pieces(4093))

    assert first == second
    assert _file(carried, first).read_bytes() == _file(other, second).read_bytes()


def test_a_tree_written_again_replaces_a_damaged_blob(carried: Carried) -> None:
    blob = carried.add_tree(small())
    _file(carried, blob).write_bytes(b"damaged")

    carried.add_tree(small())

    assert _read(carried.tree(blob)) == _read(small())


def _refused(carried: Carried, blob: TreeBlob) -> ArtifactError:
    with pytest.raises(ArtifactError) as raised:
        _read(carried.tree(blob))
    assert blob.sha256.removeprefix("sha256:") in raised.value.where
    assert raised.value.hint
    return raised.value


def test_no_flipped_byte_of_a_blob_gives_another_tree(carried: Carried) -> None:
    """Some bits change nothing (gzip's time and system, a run of zeros copied from another one); all others are found."""
    members = [member("file", random.Random(1).randbytes(2000))]
    blob = carried.add_tree(members)
    path = _file(carried, blob)
    data = path.read_bytes()
    harmless = 0
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        try:
            assert _read(carried.tree(blob)) == _read(members), f"byte {at}"
            harmless += 1
        except ArtifactError:
            continue
    assert harmless < len(data) / 50


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 100, -9, -8, -1])
def test_a_truncated_blob_is_refused(carried: Carried, keep: int) -> None:
    blob = carried.add_tree(small())
    path = _file(carried, blob)
    path.write_bytes(path.read_bytes()[:keep])

    _refused(carried, blob)


@pytest.mark.parametrize(
    "garbage",
    [b"\0", b"garbage", bytes(512), gzip.compress(b"x"), gzip.compress(bytes(1024)), gzip.compress(b"")[:-1]],
    ids=["nul", "text", "block", "member", "blocks", "cut"],  # not by their bytes: gzip writes the time
)
def test_anything_after_the_end_is_refused(carried: Carried, garbage: bytes) -> None:
    blob = carried.add_tree(small())
    path = _file(carried, blob)
    path.write_bytes(path.read_bytes() + garbage)

    _refused(carried, blob)


def test_another_tree_under_the_name_is_refused(carried: Carried) -> None:
    blob = carried.add_tree(small())
    other = [*small()[:-1], member("opt/env/\N{GREEK SMALL LETTER PI}", b"3.15")]
    _file(carried, blob).write_bytes(gzip.compress(_tar(other)))

    assert "not the ones" in str(_refused(carried, blob))


@pytest.mark.parametrize("step", [-512, -1, 1, 512])
def test_another_size_than_the_spec_says_is_refused(carried: Carried, step: int) -> None:
    blob = carried.add_tree(small())

    _refused(carried, msgspec.structs.replace(blob, size=blob.size + step))


def test_a_bomb_is_not_inflated_past_its_size(carried: Carried) -> None:
    blob = carried.add_tree(small())
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range(300)) + packer.flush()
    entry = Entry("file", "file", size=300 << 20)
    _file(carried, blob).write_bytes(gzip.compress(tar.header(entry)) + bomb)

    tracemalloc.start()
    error = _refused(carried, blob)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert f"more than the {blob.size} bytes" in str(error)
    assert peak < 20 << 20


def test_a_blob_that_is_not_there(carried: Carried) -> None:
    assert "is not there" in str(_refused(carried, TreeBlob(sha256="sha256:" + "0" * 64, size=1024, files=0)))


def test_a_pipe_in_place_of_a_blob_does_not_hang(carried: Carried) -> None:
    blob = carried.add_tree(small())
    _file(carried, blob).unlink()
    os.mkfifo(_file(carried, blob))

    _refused(carried, blob)


def test_a_tree_is_unpacked_only_when_it_is_right(carried: Carried, store: Store) -> None:
    blob = carried.add_tree(small())
    path = _file(carried, blob)
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    with pytest.raises(ArtifactError):
        store.layers.unpack(blob.sha256, carried.tree(blob))
    assert list((store.root / "layers").iterdir()) == []

    path.write_bytes(data)
    assert (store.layers.unpack(blob.sha256, carried.tree(blob)) / "opt/env/big").read_bytes() == trees.BIG


def test_a_file_is_carried_as_its_gzip(carried: Carried, store: Store, tmp_path: Path) -> None:
    data = b"the same again\n" * 300_000
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "wheel").write_bytes(data)

    carried.add_file(tmp_path / "wheel", f"sha256:{digest}", compress=True)

    packed = carried.packed_file(digest, store.facts)
    assert packed is not None
    assert packed.name == f"{digest}.gz"
    assert packed.stat().st_size < len(data) // 50
    assert b"".join(carried.chunks(digest, len(data))) == data
    path = carried.file(digest, len(data), store.blobs)
    assert path == store.blobs.path(digest)
    assert path is not None
    assert path.read_bytes() == data
    store.blobs.remove(digest)
    packed.chmod(0o644)
    packed.write_bytes(gzip.compress(data + b"more"))
    assert carried.packed_file(digest, store.facts) is None
    with pytest.raises(ArtifactError, match="more than"):
        carried.file(digest, len(data), store.blobs)


def test_a_file_is_carried_as_it_is(carried: Carried, store: Store, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "wheel").write_bytes(data)

    carried.add_file(tmp_path / "wheel", f"sha256:{digest}")

    path = carried.file(digest, len(data), store.blobs)
    assert path == carried.path(digest)
    assert path is not None
    assert path.read_bytes() == data
    assert b"".join(carried.chunks(digest, len(data))) == data
    with pytest.raises(ArtifactError, match="more than"):
        list(carried.chunks(digest, len(data) - 1))
    path.chmod(0o644)
    path.write_bytes(data[:-1])
    with pytest.raises(ArtifactError, match="not the ones"):
        list(carried.chunks(digest))


def test_a_file_with_other_bytes_is_not_carried(carried: Carried, tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(b"other")

    with pytest.raises(ArtifactError, match="wheel: has other bytes"):
        carried.add_file(tmp_path / "wheel", "0" * 64)
    assert _names(carried) == [".gitignore"]


def test_chunks_of_a_packed_blob_are_its_own_bytes(carried: Carried) -> None:
    blob = carried.add_tree(small())

    assert b"".join(carried.chunks(blob.sha256)) == _tar(small())


def test_has_reads_a_blob_once_and_sees_that_it_was_changed(carried: Carried, store: Store) -> None:
    blob = carried.add_tree(small())
    assert not carried.has("0" * 64, store.facts)
    assert carried.has(blob.sha256, store.facts)
    assert carried.has(blob.sha256, store.facts)

    path = _file(carried, blob)
    path.write_bytes(path.read_bytes()[:-1])
    assert not carried.has(blob.sha256, store.facts)


def test_has_does_not_read_what_was_just_written(carried: Carried, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = carried.add_tree(small(), facts=store.facts)
    monkeypatch.setattr(Carried, "chunks", lambda *_: pytest.fail("it was read"))

    assert carried.has(blob.sha256, store.facts)


def _listed(members: list[Member]) -> list[Entry]:
    return [
        msgspec.structs.replace(entry, sha256=hashlib.sha256(b"".join(chunks)).hexdigest()) if entry.kind == "file" else entry
        for entry, chunks in members
    ]


def test_a_whole_blob_is_listed_once(carried: Carried, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = carried.add_tree(small(), facts=store.facts)
    assert carried.entries(blob, store.facts) == _listed(small())

    def unread(self: Carried, blob: TreeBlob) -> Iterator[Member]:
        raise AssertionError("it was read again")

    monkeypatch.setattr(Carried, "tree", unread)
    assert carried.entries(blob, store.facts) == _listed(small())


def test_a_blob_that_is_not_what_was_listed_is_read(carried: Carried, store: Store) -> None:
    """Nothing that was known of a digest speaks for a file that is damaged, missing or of another size."""
    blob = carried.add_tree(small(), facts=store.facts)
    carried.entries(blob, store.facts)
    with pytest.raises(ArtifactError, match="where the spec says"):
        carried.entries(msgspec.structs.replace(blob, size=blob.size + 1), store.facts)
    data = bytearray(_file(carried, blob).read_bytes())
    data[len(data) // 2] ^= 1
    _file(carried, blob).write_bytes(data)
    with pytest.raises(ArtifactError):
        carried.entries(blob, store.facts)
    _file(carried, blob).unlink()
    with pytest.raises(ArtifactError, match="is not there"):
        carried.entries(blob, store.facts)


def test_keep_only_removes_other_blobs_and_no_other_file(carried: Carried, tmp_path: Path) -> None:
    kept, old = carried.add_tree(small()), carried.add_tree(small()[:3])
    (tmp_path / "wheel").write_bytes(b"wheel")
    carried.add_file(tmp_path / "wheel", hashlib.sha256(b"wheel").hexdigest())
    (carried._folder / "notes.txt").write_text("mine")

    carried.keep_only({kept.sha256})

    assert _names(carried) == sorted([".gitignore", _file(carried, kept).name, "notes.txt"])
    assert old.sha256 != kept.sha256
    Carried(tmp_path / "nowhere").keep_only(set())


def test_a_source_that_fails_leaves_nothing(carried: Carried) -> None:
    def failing() -> Iterator[bytes]:
        yield bytes(3 << 20)
        raise ArtifactError("is damaged", where="file")

    with pytest.raises(ArtifactError, match="file: is damaged"):
        carried.add_tree([(Entry("file", "file", size=5 << 20), failing())])
    assert _names(carried) == [".gitignore"]


def test_what_a_killed_capture_left_goes_with_the_next_one(carried: Carried) -> None:
    dead = carried._folder / ".temp" / "dead"
    dead.mkdir(parents=True)
    (dead / "blob").write_bytes(b"half")
    Path(f"{dead}.lock").write_bytes(b"")

    blob = carried.add_tree(small())

    assert _names(carried) == [".gitignore", _file(carried, blob).name]


def test_a_name_that_is_no_digest(carried: Carried) -> None:
    with pytest.raises(StoreError, match="not a sha256"):
        carried.path("../spec.json")


@pytest.mark.root
def test_a_full_disk_is_named_and_left_as_it_was(small_disk: Path) -> None:
    carried = Carried(small_disk / "blobs")
    kept = carried.add_tree(small()[:3])
    before = os.statvfs(small_disk)

    with pytest.raises(DiskError, match="no room left"):
        carried.add_tree([member("file", os.urandom(6_000_000))])

    after = os.statvfs(small_disk)
    assert (after.f_bfree, after.f_ffree) == (before.f_bfree, before.f_ffree)
    assert _read(carried.tree(kept)) == _read(small()[:3])
