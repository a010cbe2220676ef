"""The story of `repro-env pack`: a spec's folder, and with it all that it needs, as one file.

The file is a tar by layer rule 2 (`image.tar`), so the same folder gives the same bytes, and `flows.packed` reads it
as strictly as a layer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec

from repro_env.build.sources import Artifact, Finder, Search
from repro_env.build.trees import Trees
from repro_env.flows import code, egress
from repro_env.image import tar
from repro_env.image.entry import CHUNK, Entry, Members
from repro_env.io.files import atomic_stream, open_regular
from repro_env.model.errors import ArtifactError, UsageError
from repro_env.model.spec import Spec
from repro_env.model.talk import Advance, Tell
from repro_env.store import parts
from repro_env.store.carried import Carried
from repro_env.store.digests import hex_of
from repro_env.store.store import Store

FETCHES = 6
"""Downloads at a time."""


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """What was packed."""

    path: Path
    digest: str
    """sha256 of the file."""
    size: int
    spec_digest: str
    image_id: str
    blobs: int
    complete: bool
    """Nothing else is needed to rebuild from it, in ten years too."""
    fetched: int


def pack(spec: Spec, folder: Path, target: Path, *, everything: bool, frozen: bool = False, store: Store, tell: Tell) -> Pack:
    """Write `target` at once or not at all. `everything`: with each wheel and conda package, fetched where they are missing.

    `folder` holds the spec. Raises `ArtifactError` for what is nowhere to be had or damaged, `NetworkError`,
    `DiskError`, `UsageError` for a target that cannot be written, `CaptureError` for a secret in what would be packed,
    `SourceError` where the code beside the spec differs from the captured code, unless `frozen`.
    """
    if target.is_dir():
        raise UsageError("is a folder", where=str(target), hint="name the file to write, such as repro.tar")
    if not target.parent.is_dir():
        raise UsageError("is not there", where=str(target.parent), hint="make the folder first")
    code.check_left_out(spec, folder, frozen=frozen, store=store)
    egress.check(spec, folder, store=store)
    trees = Trees(spec, folder, store)
    finder = Finder(spec, folder, store, trees.givers)
    with closing(finder), closing(trees.givers):
        blobs = {
            **_trees(spec, trees, everything=everything, tell=tell),
            **_artifacts(spec, finder, everything=everything, tell=tell),
        }
        fetched = finder.fetched + trees.givers.fetched
    _check(trees, Carried(folder / "blobs"))
    files = {name: (folder / name).stat().st_size for name in parts.present(folder)}
    size = sum(files.values()) + sum(path.stat().st_size for path in blobs.values())
    hasher = hashlib.sha256()
    written = 0

    def counted(chunks: Iterable[bytes], advance: Advance) -> Iterator[bytes]:
        nonlocal written
        for chunk in chunks:
            hasher.update(chunk)
            written += len(chunk)
            advance(len(chunk))
            yield chunk

    try:
        with tell.progress(size, f"packing into {target.name}") as advance:
            atomic_stream(target, counted(tar.write(_members(folder, files, blobs)), advance), size)
    except PermissionError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}", where=str(target), hint="name a file in another folder"
        ) from None
    needed = {one.sha256 for one in _all(spec)} | {tree.sha256 for _, tree in trees.named()}
    return Pack(
        path=target,
        digest=f"sha256:{hasher.hexdigest()}",
        size=written,
        spec_digest=spec.digest,
        image_id=spec.expected.image_id,
        blobs=len(blobs),
        complete=needed <= {f"sha256:{name.removesuffix('.gz')}" for name in blobs},
        fetched=fetched,
    )


def _all(spec: Spec) -> tuple[Artifact, ...]:
    return (*spec.identity.packages, *spec.identity.distributions)


def _trees(spec: Spec, trees: Trees, *, everything: bool, tell: Tell) -> dict[str, Path]:
    """File name in the pack -> where it is, of each carried tree; those missing are fetched. A linked base only with `everything`."""
    found = {}
    for what, tree in trees.named():
        if not everything and tree.sha256 not in spec.carried:
            continue
        try:
            path = trees.bring(what, tree)
        except ArtifactError:
            if what != "source":
                raise
            tell.warn("note: the captured source is not beside the spec, so it is not in the pack")
            continue
        found[path.name] = path
    return found


def _artifacts(spec: Spec, finder: Finder, *, everything: bool, tell: Tell) -> dict[str, Path]:
    """As `_trees`, of wheels and conda packages: those that no index can give again, or all."""
    wanted = [one for one in _all(spec) if everything or one.sha256 in spec.carried]
    found = {}
    total = sum(one.size for one in wanted)
    with tell.progress(total, "collecting wheels and packages") as advance, ThreadPoolExecutor(FETCHES) as pool:
        try:
            for one, path in zip(wanted, pool.map(lambda one: _whole(one, finder), wanted), strict=True):
                found[path.name if path.suffix == ".gz" else hex_of(one.sha256)] = path
                advance(one.size)
        except BaseException:
            finder.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _whole(one: Artifact, finder: Finder) -> Path:
    """A wheel or package as a file on this machine, or its gzip, checked."""
    return finder.packed(one) or Path(Search(finder, one, None).take(finder.take).where)


def _check(trees: Trees, carried: Carried) -> None:
    """Every tree is what its name says: this will be the copy of it. (What is kept as it is gets hashed on the way.)"""
    for _, tree in trees.named():
        path = carried.path(tree.sha256)
        if path is not None and path.suffix == ".gz":
            for _ in carried.chunks(tree.sha256, tree.size):
                pass


def _members(folder: Path, files: dict[str, int], blobs: dict[str, Path]) -> Members:
    entries = [(Entry(name, "file", size=size), folder / name) for name, size in files.items()]
    if blobs:
        entries.append((Entry(parts.BLOBS, "dir"), folder))
    entries += [(Entry(f"{parts.BLOBS}/{name}", "file", size=path.stat().st_size), path) for name, path in blobs.items()]
    for entry, path in sorted(entries, key=lambda one: one[0].key):
        yield entry, (_content(path, entry) if entry.kind == "file" else ())


def _content(path: Path, entry: Entry) -> Iterator[bytes]:
    """A file's bytes; of a blob that is named by them, checked. Raises `ArtifactError`."""
    hasher = hashlib.sha256()
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
            yield chunk
    name = entry.path.rpartition("/")[2]
    if "/" in entry.path and "." not in name and hasher.hexdigest() != name:
        raise ArtifactError(
            "its bytes are not the ones that its name says: it is damaged or was changed",
            where=str(path),
            hint="delete it and pack again; it is fetched again where it can be had",
        )
