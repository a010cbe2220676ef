"""One layer as it is sent: what it is made of -> a gzip blob in an output, proven while it passes. Work of worker processes.

A layer of wheels is stitched from the wheels' own deflate streams, so its blob follows from the wheels and a frozen
rule alone. A carried tree is sent as the very bytes that are kept of it. Only what has no compressed form of its own
(conda packages, the source as a layer) is compressed by zlib, whose version then decides the blob's digest.
None of this is part of the image ID.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from repro_env.build import conda
from repro_env.build.giver import HINT
from repro_env.build.sources import Artifact
from repro_env.image import config, layer, stack, tar
from repro_env.image import wheel as rule
from repro_env.image.entry import CHUNK, Contents, Entry, Members, members, misplaced
from repro_env.image.output import Output
from repro_env.image.stitch import Stitches, stitched
from repro_env.io.files import open_regular
from repro_env.lock.layers import KIND, GroupContents
from repro_env.model import codec
from repro_env.model.artifact import CondaPackage, TreeBlob
from repro_env.model.codec import Frozen
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError, BuildError
from repro_env.model.image import Blob, Packed
from repro_env.model.spec import Identity
from repro_env.model.talk import Advance
from repro_env.store import inflate
from repro_env.store.carried import SENT, Carried, compressed, key_of
from repro_env.store.sent import CARRIED, STITCHED, ZLIB, carried, remember
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS, WheelContents, open_facts

MADE = "made"
"""Kind of the facts of layers by what they are made of (`parts_key`)."""
PLACED = "placed"
"""Kind of the facts of source layers: `<tree's sha256> <path>` -> diff ID."""


class Part(Frozen, frozen=True, kw_only=True):
    """One wheel or conda package of a layer."""

    artifact: Artifact
    layout: Layout
    """Where it is installed to."""


class Made(Frozen, frozen=True, kw_only=True):
    """A layer of packages that was made of some parts, and proven."""

    diff_id: str
    sizes: dict[str, int]
    """Bytes of what each becomes, by key: the grouping rule needs them."""


class Has(Frozen, frozen=True, kw_only=True):
    """Whether the output has a blob."""

    blob: Blob


class Group(Frozen, frozen=True, kw_only=True):
    """A layer of distributions, or of conda packages."""

    diff_id: str
    parts: tuple[Part, ...]
    paths: tuple[str, ...]
    """Of each part: the whole wheel or archive on this machine, whose sha256 was checked."""
    known: Blob | None
    """What it becomes, when that was proven before: then nothing is inflated."""


class Tree(Frozen, frozen=True, kw_only=True):
    """A carried tree."""

    blob: TreeBlob
    folder: str
    """Of the spec."""
    unpacked: bool = False
    """From the store's unpacked layer, and not from its blob beside the spec."""


class Marker(Frozen, frozen=True, kw_only=True):
    """The layer that says what the image is."""

    diff_id: str
    identity: Identity


class Source(Frozen, frozen=True, kw_only=True):
    """The code as a layer, at its captured path."""

    blob: TreeBlob
    folder: str
    path: str


Job = Has | Group | Tree | Marker | Source


class Answer(Frozen, frozen=True, kw_only=True):
    packed: Packed | None = None
    """None: the output does not have what was asked for."""
    sizes: dict[str, int] = {}  # noqa: RUF012 msgspec gives each its own
    """Of a group: bytes of what each part becomes."""


def serve(root: Path, output: Output, job: Job, advance: Advance) -> Answer:
    """Do one job with the store at `root`. Raises our errors; what it was doing then leaves nothing behind."""
    store = Store.open(root)
    if isinstance(job, Has):
        return Answer(packed=Packed(diff_id=job.blob.digest, blob=job.blob) if output.has(job.blob) else None)
    if isinstance(job, Group):
        return _group(store, output, job, advance)
    if isinstance(job, Tree):
        return Answer(packed=_tree(store, output, job, advance))
    if isinstance(job, Source):
        return Answer(packed=_source(store, output, job, advance))
    return Answer(packed=_marker(store, output, job, advance))


def parts_key(parts: Iterable[Part]) -> str:
    """Equal for layers that are made of equal things in equal places."""
    return codec.digest(tuple(parts))


def _group(store: Store, output: Output, job: Group, advance: Advance) -> Answer:
    with ExitStack() as opened:
        installed: dict[str, rule.Installed] = {}
        sources: dict[str, Contents] = {}
        for part, path in zip(job.parts, job.paths, strict=True):
            key = part.artifact.key
            installed[key], sources[key] = _opened(part, Path(path), store, opened)
        made = stack.layer(tuple(sorted(installed)), installed)
        if wrong := misplaced(made.entries):
            raise BuildError("lies below a file or symlink of its own layer", where=wrong, hint="the spec contradicts itself")
        how = ZLIB if any(isinstance(part.artifact, CondaPackage) for part in job.parts) else STITCHED
        if how == STITCHED:
            stream = _Again(lambda: _stitched(made, sources, job), advance)
        else:
            contents = GroupContents(made.owner, sources)
            stream = _Again(lambda: compressed(_proven(tar.write(members(made.entries, contents)), job.diff_id)), advance)
        packed = Packed(diff_id=job.diff_id, blob=output.take(stream, job.known))
        sizes = {key: one.size for key, one in installed.items()}
        if job.known is None:
            if how == ZLIB:  # a wheel's entries say what its RECORD says, which nobody compared with its bytes
                store.facts.put(KIND, layer.recipe(made.entries), job.diff_id.encode())
            store.facts.put(MADE, parts_key(job.parts), codec.canonical(Made(diff_id=job.diff_id, sizes=sizes)))
            remember(store.facts, how, packed)
    return Answer(packed=packed, sizes=sizes)


def _opened(part: Part, path: Path, store: Store, opened: ExitStack) -> tuple[rule.Installed, Contents]:
    one = part.artifact
    if isinstance(one, CondaPackage):
        installed, contents = conda.opened(one, path, part.layout, store, opened)
        if contents is None:  # there is a path, so there are contents
            raise BuildError("has no contents", where=one.filename)
        return installed, contents
    facts = store.facts.recall(FACTS, one.sha256, rule.Facts)
    if facts is None or facts.filename != one.filename:  # the name is not in the wheel's bytes
        facts = open_facts(path, one.filename)
        store.facts.put(FACTS, one.sha256, codec.canonical(facts))
    installed = rule.canonical(facts, part.layout, name=one.name)
    return installed, WheelContents(path, installed)


def _stitched(made: stack.GroupLayer, sources: dict[str, Contents], job: Group) -> Iterator[bytes]:
    def given() -> Stitches:
        for entry in made.entries:
            if entry.kind != "file":
                yield entry, ()
                continue
            key, path = made.owner[entry.path]
            inner = Entry(path, "file", entry.executable, entry.size, entry.sha256)
            source = sources[key]
            yield entry, source.deflated(inner) if isinstance(source, WheelContents) else source.chunks(inner)

    if job.known is not None:
        yield from stitched(given())
        return
    hasher = hashlib.sha256()
    yield from stitched(given(), hasher.update, library=inflate.ZLIB)
    _check(hasher, job.diff_id)


def _tree(store: Store, output: Output, job: Tree, advance: Advance) -> Packed:
    folder = Carried(Path(job.folder) / "blobs")
    diff_id = job.blob.sha256
    path = None if job.unpacked else folder.path(diff_id)
    if path is None:
        if store.layers.path(diff_id) is None:
            raise ArtifactError(
                "is neither beside the spec nor in the store",
                where=diff_id,
                hint=HINT,
            )
        stream = _Again(lambda: compressed(_proven(tar.write(_lying(store, diff_id)), diff_id)), advance)
        found = Packed(diff_id=diff_id, blob=output.take(stream, None))
    else:
        key, blob = key_of(path), carried(store.facts, path)
        stream = _Again(lambda: _file(path) if blob is not None else folder.packed(job.blob), advance)
        found = Packed(diff_id=diff_id, blob=output.take(stream, blob))
        if path.suffix == ".gz" and key_of(path) == key:
            store.facts.put(SENT, key, found.blob.digest.encode())
    remember(store.facts, CARRIED, found)
    return found


def _lying(store: Store, diff_id: str) -> Members:
    try:
        yield from store.layers.members(diff_id)
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror}", where=diff_id, hint="rebuild again") from None


def _file(path: Path) -> Iterator[bytes]:
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _marker(store: Store, output: Output, job: Marker, advance: Advance) -> Packed:
    def stream() -> Iterator[bytes]:
        hasher = hashlib.sha256()
        yield from stitched(config.marker(job.identity), hasher.update)
        _check(hasher, job.diff_id)

    found = Packed(diff_id=job.diff_id, blob=output.take(_Again(stream, advance), None))
    remember(store.facts, STITCHED, found)
    return found


def _source(store: Store, output: Output, job: Source, advance: Advance) -> Packed:
    """No spec knows the diff ID of this layer; the tree that it is made of is proven."""
    folder, digest = Carried(Path(job.folder) / "blobs"), job.blob.sha256
    there = folder.path(digest) is not None or store.layers.path(digest) is None
    diff_id = ""

    def plain() -> Iterator[bytes]:
        nonlocal diff_id
        hasher = hashlib.sha256()
        given = folder.tree(job.blob) if there else _checked_tree(store, digest)
        yield from _hashed(tar.write(moved(given, job.path)), hasher.update)
        diff_id = f"sha256:{hasher.hexdigest()}"

    blob = output.take(_Again(lambda: compressed(plain()), advance), None)
    found = Packed(diff_id=diff_id, blob=blob)
    store.facts.put(PLACED, placed_key(job.blob, job.path), found.diff_id.encode())
    remember(store.facts, ZLIB, found)
    return found


def placed_key(blob: TreeBlob, path: str) -> str:
    return f"{blob.sha256} {path}"


def moved(given: Members, path: str) -> Members:
    """A tree's members below an absolute path, which comes first with the folders that it lies in."""
    root = path.strip("/")
    parts = root.split("/") if root else []
    for depth in range(1, len(parts) + 1):
        yield Entry("/".join(parts[:depth]), "dir"), ()
    for entry, chunks in given:
        yield (stack.below(entry, root) if root else entry), chunks


def _checked_tree(store: Store, diff_id: str) -> Members:
    """An unpacked tree that is proven by the time it ends."""
    if not store.layers.verify(diff_id):
        raise ArtifactError("was changed in the store", where=diff_id, hint="repro-env store verify")
    yield from _lying(store, diff_id)


def _proven(chunks: Iterable[bytes], diff_id: str) -> Iterator[bytes]:
    """The bytes of a tar. At their end raises `BuildError` when they are another layer's."""
    hasher = hashlib.sha256()
    yield from _hashed(chunks, hasher.update)
    _check(hasher, diff_id)


def _hashed(chunks: Iterable[bytes], take: Callable[[bytes], None]) -> Iterator[bytes]:
    for chunk in chunks:
        take(chunk)
        yield chunk


def _check(hasher: hashlib._Hash, diff_id: str) -> None:
    got = f"sha256:{hasher.hexdigest()}"
    if got != diff_id:
        raise BuildError(
            f"the layer is {got}, not the expected {diff_id}",
            hint="what it was made of is not what the spec was made of; capture again",
        )


class _Again:
    """The bytes of a blob, made anew each time they are asked for: an output that lost them need not have kept them."""

    def __init__(self, make: Callable[[], Iterator[bytes]], advance: Advance) -> None:
        self._make = make
        self._advance = advance

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._make():
            yield chunk
            self._advance(len(chunk))
