"""The command `repro-env pack`: write a spec's directory, with the files that it needs, to a bundle file.

The bundle file is a tar by layer rule 2 (`oci.tar`), so the same directory gives the same bytes, and `specs.bundle` reads it
as strictly as a layer.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from repro_env.compare.environments import code
from repro_env.delivery.builder.layers import named_trees
from repro_env.delivery.builder.sources import DOWNLOADS, Sources
from repro_env.environment.secrets import bundles
from repro_env.io.files import atomic_stream, chunks_of
from repro_env.oci import tar
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.oci.layer import Measured
from repro_env.schema.errors import UsageError
from repro_env.schema.progress import SILENT, Tell, counted
from repro_env.schema.spec import Spec
from repro_env.specs.argument import SpecName, open_spec
from repro_env.store.filenames import hex_of
from repro_env.store.specs import files as specfiles
from repro_env.store.store import Store


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
    """Whether the image can be rebuilt from the bundle file alone, without a download."""
    fetched: int


def pack(
    spec: SpecName,
    file: Path | str,
    *,
    everything: bool = False,
    frozen: bool = False,
    store: Store | None = None,
    tell: Tell = SILENT,
) -> Pack:
    """Write a spec and its bundled files as one file, atomically.

    `everything`: include every wheel and conda package, and download missing ones. Raises `ArtifactError` if a file is damaged or
    cannot be found, `NetworkError`, `DiskError`, `UsageError` if the target cannot be written, `CaptureError` if a file in the
    archive has a secret, and `SourceError` if the code next to the spec differs from the captured code, unless `frozen`.
    """
    store, target = store or Store.open(), Path(file).absolute()
    opened = open_spec(spec, store=store, tell=tell)
    if target.is_dir() or not target.parent.is_dir():
        what = "this is a directory" if target.is_dir() else "the directory of this file does not exist"
        raise UsageError(what, where=str(target), hint="name a file in an existing directory, such as repro.tar")
    code.check_unchanged(opened.spec, opened.directory, frozen=frozen, store=store)
    bundles.check_files(opened.directory)
    with Sources(opened.spec, opened.directory, store) as sources:
        blobs = collect(sources, opened.spec, everything=everything, tell=tell)
    paths = {f"{specfiles.BLOBS}/{name}": path for name, path in blobs.items()}
    paths |= {name: opened.directory / name for name in specfiles.present(opened.directory)}
    entries = sort_with_parents(Entry(name, "file", size=path.stat().st_size) for name, path in paths.items())
    size = sum(entry.size for entry in entries)
    members = ((entry, chunks_of(paths[entry.path]) if entry.kind == "file" else ()) for entry in entries)
    content = Measured(tar.write(members))
    try:
        with tell.progress(size, f"packing into {target.name}") as advance:
            atomic_stream(target, counted(content, advance), size)
    except PermissionError as error:
        what, hint = f"this file cannot be written: {error.strerror}", "name a file in another directory"
        raise UsageError(what, where=str(target), hint=hint) from None
    return Pack(
        path=target,
        sha256=content.digest,
        size=content.size,
        spec_digest=opened.spec.digest,
        image_id=opened.spec.expected.image_id,
        blobs=len(blobs),
        complete=opened.spec.sizes.keys() <= {f"sha256:{name.removesuffix('.gz')}" for name in blobs},
        fetched=sources.received.total,
    )


def collect(sources: Sources, spec: Spec, *, everything: bool, without: Collection[str] = (), tell: Tell) -> dict[str, Path]:
    """Return the checked files that a spec needs: name in `blobs/` -> file. Missing ones are downloaded.

    `everything`: all wheels and conda packages, not only those that cannot be downloaded again. `without`: digests to leave out.
    A source that is missing everywhere is left out with a note. Raises `ArtifactError`, `NetworkError`, `DiskError`.
    """
    files: dict[str, Path] = {}
    for what, tree in named_trees(spec).items():
        if tree.sha256 in without:
            continue
        if sources.peek_tree(what, tree).origin == "nowhere":
            tell.warn("note: the captured source is not next to the spec, so it is left out")
            continue
        path = sources.checked_tree(what, tree)
        files[path.name] = path
    artifacts = [artifact for artifact in spec.identity.artifacts if everything or artifact.sha256 in spec.bundled]
    total = sum(artifact.size for artifact in artifacts)
    with tell.progress(total, "collecting wheels and packages") as advance, ThreadPoolExecutor(DOWNLOADS) as pool:
        try:
            for artifact, path in zip(artifacts, pool.map(sources.gzip_or_file, artifacts), strict=True):
                files[path.name if path.suffix == ".gz" else hex_of(artifact.sha256)] = path
                advance(artifact.size)
        except BaseException:
            sources.received.is_stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return files
