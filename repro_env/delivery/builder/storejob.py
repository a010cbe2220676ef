"""Unpack one layer into the store and prove its diff ID meanwhile. Runs in worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.delivery.builder.job import (
    LAYER_FACTS,
    Group,
    Job,
    JobResult,
    LayerFacts,
    Marker,
    OpenGroup,
    Tree,
    open_group,
    parts_key,
    remember_group,
)
from repro_env.environment.wheels.layers import KIND, GroupContents
from repro_env.io.files import FileContents
from repro_env.oci import config, layer
from repro_env.oci.entry import Entry, Members, members
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.progress import Advance
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store


def serve(root: Path, job: Job, advance: Advance) -> JobResult:
    """Do one job in the store at `root`. Raises one of our errors."""
    store = Store.open(root)
    if isinstance(job, Group):
        with open_group(store, job) as group:
            _unpack_group(store, job, group, advance)
            remember_group(store, job, group)
            return JobResult(sizes=group.sizes)
    if isinstance(job, Tree):
        tree = SpecBlobs(Path(job.directory) / "blobs").tree(job.blob)
        store.layers.unpack(job.blob.sha256, _count_members(tree, advance), size=job.blob.size)
    elif isinstance(job, Marker):
        store.layers.unpack(job.diff_id, config.marker(job.identity))
    return JobResult()


def _unpack_group(store: Store, job: Group, group: OpenGroup, advance: Advance) -> None:
    """Unpack a layer of packages. If it is unpacked already, prove that it consists of these packages."""
    entries = group.layer.entries
    known = store.facts.recall(LAYER_FACTS, parts_key(job.parts), LayerFacts)
    known_diff_id = known.diff_id if known is not None else (store.facts.get(KIND, layer.recipe(entries)) or b"").decode()
    if known_diff_id not in ("", job.diff_id):
        raise BuildError(
            f"the layer is {known_diff_id}, not the expected {job.diff_id}", hint="the spec contradicts itself; capture again"
        )
    tree = store.layers.path(job.diff_id)
    if tree is not None:
        # The tree had this diff ID when it was written. If the entries with its content have it too, the tree is right.
        if not known_diff_id and not _is_made_of(tree, entries, job.diff_id):
            raise BuildError(
                f"the layer {job.diff_id} in the store does not consist of these artifacts",
                hint="the spec contradicts itself; capture again",
            )
        return
    sources = {key: source for key, source in group.sources.items() if source is not None}
    if len(sources) < len(group.sources):
        raise ArtifactError("the layer was removed from the store by another process", where=job.diff_id, hint="rebuild again")
    layer_members = _count_members(members(entries, GroupContents(group.layer.owner, sources)), advance)
    store.layers.unpack(job.diff_id, layer_members, size=sum(entry.size for entry in entries))


def _is_made_of(tree: Path, entries: Iterable[Entry], diff_id: str) -> bool:
    try:
        return layer.diff_id(members(entries, FileContents(tree))) == diff_id
    except ArtifactError:  # a file is missing or has a different size
        return False


def _count_members(layer_members: Members, advance: Advance) -> Members:
    for entry, chunks in layer_members:
        yield entry, (_count_chunks(chunks, advance) if entry.kind == "file" else chunks)


def _count_chunks(chunks: Iterable[bytes], advance: Advance) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        advance(len(chunk))
