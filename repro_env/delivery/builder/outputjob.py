"""Jobs of worker processes that send one layer to an output as a gzip blob, and prove its diff ID meanwhile.

A layer of wheels is stitched from the wheels' own deflate streams, so its blob depends only on the wheels and a frozen
rule. A bundled tree is sent as the bytes of its blob. Only conda packages and the source, which have no compressed form,
are compressed by zlib, whose version then decides the digest of the blob. The image ID depends on none of this.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from repro_env.delivery.builder.blobsource import HINT
from repro_env.delivery.builder.job import (
    Group,
    HasBlob,
    Job,
    JobResult,
    Marker,
    OpenGroup,
    Source,
    Tree,
    open_group,
    remember_group,
)
from repro_env.delivery.target import Output
from repro_env.environment.wheels.layers import GroupContents
from repro_env.io.files import open_regular
from repro_env.oci import config, inflate, layer, tar, wheellayers
from repro_env.oci.entry import CHUNK, Entry, Members, find_misplaced, members
from repro_env.oci.gzipencoder import Stitches, stitch_layer
from repro_env.schema.artifact import CondaPackage, TreeBlob
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.image import Packed
from repro_env.schema.progress import Advance
from repro_env.store.layerblobs import BUNDLED, STITCHED, ZLIB, bundled_blob, remember
from repro_env.store.packages.wheelfile import WheelContents
from repro_env.store.specs.blobs import BLOB_DIGEST, SpecBlobs, compress_chunks, file_key
from repro_env.store.store import Store

SOURCE_LAYER = "placed"
"""Kind of the facts of source layers: `<sha256 of the tree> <path>` -> diff ID."""


def serve(root: Path, output: Output, job: Job, advance: Advance) -> JobResult:
    """Do one job with the store at `root`. If it raises one of our errors, it leaves nothing behind."""
    store = Store.open(root)
    if isinstance(job, HasBlob):
        return JobResult(packed=Packed(diff_id=job.blob.digest, blob=job.blob) if output.has(job.blob) else None)
    if isinstance(job, Group):
        return _group(store, output, job, advance)
    if isinstance(job, Tree):
        return JobResult(packed=_tree(store, output, job, advance))
    if isinstance(job, Source):
        return JobResult(packed=_source(store, output, job, advance))
    return JobResult(packed=_marker(store, output, job, advance))


def _group(store: Store, output: Output, job: Group, advance: Advance) -> JobResult:
    with open_group(store, job) as group:
        if misplaced := find_misplaced(group.layer.entries):
            raise BuildError(
                "the path is below a file or symlink of its own layer", where=misplaced, hint="the spec contradicts itself"
            )
        compression = ZLIB if any(isinstance(part.artifact, CondaPackage) for part in job.parts) else STITCHED
        produce = _stitched if compression == STITCHED else _compressed
        stream = _ReplayableChunks(lambda: produce(group, job), advance)
        packed = Packed(diff_id=job.diff_id, blob=output.take(stream, job.known))
        if job.known is None:
            remember_group(store, job, group)
            remember(store.facts, compression, packed)
        return JobResult(packed=packed, sizes=group.sizes)


def _compressed(group: OpenGroup, job: Group) -> Iterator[bytes]:
    sources = {key: source for key, source in group.sources.items() if source is not None}
    layer_members = members(group.layer.entries, GroupContents(group.layer.owner, sources))
    return compress_chunks(_verified_chunks(tar.write(layer_members), job.diff_id))


def _stitched(group: OpenGroup, job: Group) -> Iterator[bytes]:
    def contents() -> Stitches:
        for entry in group.layer.entries:
            if entry.kind != "file":
                yield entry, ()
                continue
            key, path = group.layer.owner[entry.path]
            inner = Entry(path, "file", entry.executable, entry.size, entry.sha256)
            source = group.sources[key]
            if not isinstance(source, WheelContents):  # cannot happen, because only complete wheels are sent
                raise BuildError("the wheel is not complete", where=key)
            yield entry, source.deflated(inner)

    if job.known is not None:
        yield from stitch_layer(contents())
        return
    hasher = hashlib.sha256()
    yield from stitch_layer(contents(), hasher.update, library=inflate.ZLIB)
    _check_diff_id(hasher, job.diff_id)


def _tree(store: Store, output: Output, job: Tree, advance: Advance) -> Packed:
    blobs = SpecBlobs(Path(job.directory) / "blobs")
    diff_id = job.blob.sha256
    path = None if job.unpacked else blobs.path(diff_id)
    if path is None:
        if store.layers.path(diff_id) is None:
            raise ArtifactError(
                "the tree is neither next to the spec nor in the store",
                where=diff_id,
                hint=HINT,
            )
        stream = _ReplayableChunks(
            lambda: compress_chunks(_verified_chunks(tar.write(_layer_members(store, diff_id)), diff_id)), advance
        )
        packed = Packed(diff_id=diff_id, blob=output.take(stream, None))
    else:
        key, blob = file_key(path), bundled_blob(store.facts, path)
        stream = _ReplayableChunks(lambda: _read_file(path) if blob is not None else blobs.packed(job.blob), advance)
        packed = Packed(diff_id=diff_id, blob=output.take(stream, blob))
        if path.suffix == ".gz" and file_key(path) == key:
            store.facts.put(BLOB_DIGEST, key, packed.blob.digest.encode())
    remember(store.facts, BUNDLED, packed)
    return packed


def _layer_members(store: Store, diff_id: str) -> Members:
    try:
        yield from store.layers.members(diff_id)
    except OSError as error:
        raise ArtifactError(f"the layer cannot be read: {error.strerror}", where=diff_id, hint="rebuild again") from None


def _read_file(path: Path) -> Iterator[bytes]:
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _marker(store: Store, output: Output, job: Marker, advance: Advance) -> Packed:
    def stream() -> Iterator[bytes]:
        hasher = hashlib.sha256()
        yield from stitch_layer(config.marker(job.identity), hasher.update)
        _check_diff_id(hasher, job.diff_id)

    packed = Packed(diff_id=job.diff_id, blob=output.take(_ReplayableChunks(stream, advance), None))
    remember(store.facts, STITCHED, packed)
    return packed


def _source(store: Store, output: Output, job: Source, advance: Advance) -> Packed:
    """Send the source. Its layer's diff ID is not in the spec, but the tree that it is made of is proven."""
    blobs, digest = SpecBlobs(Path(job.directory) / "blobs"), job.blob.sha256
    from_blob = blobs.path(digest) is not None or store.layers.path(digest) is None
    diff_id = ""

    def plain() -> Iterator[bytes]:
        nonlocal diff_id
        hasher = hashlib.sha256()
        source_members = blobs.tree(job.blob) if from_blob else _verified_members(store, digest)
        yield from layer.hash_chunks(tar.write(move_below_path(source_members, job.path)), hasher)
        diff_id = f"sha256:{hasher.hexdigest()}"

    blob = output.take(_ReplayableChunks(lambda: compress_chunks(plain()), advance), None)
    packed = Packed(diff_id=diff_id, blob=blob)
    store.facts.put(SOURCE_LAYER, source_layer_key(job.blob, job.path), packed.diff_id.encode())
    remember(store.facts, ZLIB, packed)
    return packed


def source_layer_key(blob: TreeBlob, path: str) -> str:
    """Return the key of a source layer's facts."""
    return f"{blob.sha256} {path}"


def move_below_path(tree_members: Members, path: str) -> Members:
    """Yield the members of a tree below an absolute path, after that path and its parents."""
    root = path.strip("/")
    parts = root.split("/") if root else []
    for depth in range(1, len(parts) + 1):
        yield Entry("/".join(parts[:depth]), "dir"), ()
    for entry, chunks in tree_members:
        yield (wheellayers.move_below(entry, root) if root else entry), chunks


def _verified_members(store: Store, diff_id: str) -> Members:
    """Check an unpacked tree, then yield its members. Raises `ArtifactError`."""
    if not store.layers.verify(diff_id):
        raise ArtifactError("the layer was changed in the store", where=diff_id, hint="run `repro-env store verify`")
    yield from _layer_members(store, diff_id)


def _verified_chunks(chunks: Iterable[bytes], diff_id: str) -> Iterator[bytes]:
    """Yield the bytes of a tar. Raises `BuildError` at the end if it does not have this diff ID."""
    hasher = hashlib.sha256()
    yield from layer.hash_chunks(chunks, hasher)
    _check_diff_id(hasher, diff_id)


def _check_diff_id(hasher: hashlib._Hash, diff_id: str) -> None:
    actual = f"sha256:{hasher.hexdigest()}"
    if actual != diff_id:
        raise BuildError(
            f"the layer is {actual}, not the expected {diff_id}",
            hint="the layer was made from other content than the spec describes; capture again",
        )


class _ReplayableChunks:
    """The bytes of a blob, produced again for each iteration, so that an output can repeat an upload."""

    def __init__(self, make: Callable[[], Iterator[bytes]], advance: Advance) -> None:
        self._make = make
        self._advance = advance

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._make():
            yield chunk
            self._advance(len(chunk))
