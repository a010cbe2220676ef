"""The command `repro-env pack`: write a spec's directory, with the files that it needs, to an archive.

The archive is a tar by layer rule 2 (`oci.tar`), so the same directory gives the same bytes, and `specs.bundle` reads it
as strictly as a layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec

from repro_env.compare.environments import code
from repro_env.delivery.builder.locations import Artifact, Finder, Search
from repro_env.delivery.builder.trees import Trees
from repro_env.environment.secrets import bundles
from repro_env.io.files import atomic_stream, chunks_of
from repro_env.oci import tar
from repro_env.oci.entry import Entry, Members
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import ArtifactError, UsageError
from repro_env.schema.progress import Advance, Tell
from repro_env.schema.spec import Spec
from repro_env.store.filenames import hex_of
from repro_env.store.specs import files as specfiles
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

FETCHES = 6
"""Parallel downloads."""


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `pack`."""

    path: Path
    sha256: str
    """`sha256:<hex>` of the file."""
    size: int
    spec_digest: str
    image_id: str
    blobs: int
    complete: bool
    """Whether the image can be rebuilt from the archive alone, without a download."""
    fetched: int


def pack(spec: Spec, directory: Path, target: Path, *, everything: bool, frozen: bool = False, store: Store, tell: Tell) -> Pack:
    """Write the archive `target` atomically. `everything`: include every wheel and conda package, and download missing ones.

    `directory` is the spec's directory. Raises `ArtifactError` if a file is damaged or cannot be found, `NetworkError`,
    `DiskError`, `UsageError` if the target cannot be written, `CaptureError` if a file in the archive has a secret, and
    `SourceError` if the code next to the spec differs from the captured code, unless `frozen`.
    """
    if target.is_dir():
        raise UsageError("this is a directory", where=str(target), hint="name the file to write, such as repro.tar")
    if not target.parent.is_dir():
        raise UsageError("this directory does not exist", where=str(target.parent), hint="create it first")
    code.check_unchanged(spec, directory, frozen=frozen, store=store)
    bundles.check_files(directory)
    trees = Trees(spec, directory, store)
    finder = Finder(spec, directory, store, trees.blob_sources)
    with closing(finder), closing(trees.blob_sources):
        blobs = {
            **_trees(trees, tell),
            **_artifacts(spec, finder, everything=everything, tell=tell),
        }
        fetched = finder.fetched + trees.blob_sources.fetched
    _check(trees, SpecBlobs(directory / "blobs"))
    files = {name: (directory / name).stat().st_size for name in specfiles.present(directory)}
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
            atomic_stream(target, counted(tar.write(_members(directory, files, blobs)), advance), size)
    except PermissionError as error:
        raise UsageError(
            f"this file cannot be written: {error.strerror}", where=str(target), hint="name a file in another directory"
        ) from None
    needed = {artifact.sha256 for artifact in _all(spec)} | {tree.sha256 for _, tree in trees.named()}
    return Pack(
        path=target,
        sha256=f"sha256:{hasher.hexdigest()}",
        size=written,
        spec_digest=spec.digest,
        image_id=spec.expected.image_id,
        blobs=len(blobs),
        complete=needed <= {f"sha256:{name.removesuffix('.gz')}" for name in blobs},
        fetched=fetched,
    )


def _all(spec: Spec) -> tuple[Artifact, ...]:
    return (*spec.identity.packages, *spec.identity.distributions)


def _trees(trees: Trees, tell: Tell) -> dict[str, Path]:
    """Return the bundled trees: name in the archive -> file. Missing ones are downloaded."""
    return {path.name: path for what, tree in trees.named() if (path := bring_tree(trees, what, tree, tell)) is not None}


def bring_tree(trees: Trees, what: str, tree: TreeBlob, tell: Tell) -> Path | None:
    """Return the file of a tree; None, with a note, for a source that is missing everywhere. Raises `ArtifactError` for other trees."""
    try:
        return trees.bring(what, tree)
    except ArtifactError:
        if what != "source":
            raise
        tell.warn("note: the captured source is not next to the spec, so it is left out")
        return None


def _artifacts(spec: Spec, finder: Finder, *, everything: bool, tell: Tell) -> dict[str, Path]:
    """Return wheels and conda packages as `_trees` does: all, or those that cannot be downloaded again."""
    artifacts = [artifact for artifact in _all(spec) if everything or artifact.sha256 in spec.carried]
    files = {}
    total = sum(artifact.size for artifact in artifacts)
    with tell.progress(total, "collecting wheels and packages") as advance, ThreadPoolExecutor(FETCHES) as pool:
        try:
            paths = pool.map(lambda artifact: bring_artifact(artifact, finder), artifacts)
            for artifact, path in zip(artifacts, paths, strict=True):
                files[path.name if path.suffix == ".gz" else hex_of(artifact.sha256)] = path
                advance(artifact.size)
        except BaseException:
            finder.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return files


def bring_artifact(artifact: Artifact, finder: Finder) -> Path:
    """Return a wheel or package, or its gzip, as a checked file on this machine."""
    return finder.gzip_file(artifact) or Path(Search(finder, artifact, None).take(finder.fetch).where)


def _check(trees: Trees, carried: SpecBlobs) -> None:
    """Check that every compressed tree has its digest. `_content` hashes the other files while it reads them."""
    for _, tree in trees.named():
        path = carried.path(tree.sha256)
        if path is not None and path.suffix == ".gz":
            for _ in carried.chunks(tree.sha256, tree.size):
                pass


def _members(directory: Path, files: dict[str, int], blobs: dict[str, Path]) -> Members:
    entries = [(Entry(name, "file", size=size), directory / name) for name, size in files.items()]
    if blobs:
        entries.append((Entry(specfiles.BLOBS, "dir"), directory))
    entries += [(Entry(f"{specfiles.BLOBS}/{name}", "file", size=path.stat().st_size), path) for name, path in blobs.items()]
    for entry, path in sorted(entries, key=lambda member: member[0].key):
        yield entry, (_content(path, entry) if entry.kind == "file" else ())


def _content(path: Path, entry: Entry) -> Iterator[bytes]:
    """Yield a file's bytes. Raises `ArtifactError` if a blob's name is a digest, and its bytes have another one."""
    hasher = hashlib.sha256()
    for chunk in chunks_of(path):
        hasher.update(chunk)
        yield chunk
    name = entry.path.rpartition("/")[2]
    if "/" in entry.path and "." not in name and hasher.hexdigest() != name:
        raise ArtifactError(
            "this file does not have the digest in its name: it is damaged or was changed",
            where=str(path),
            hint="delete it and pack again; it is downloaded again if possible",
        )
