"""Unpack a bundle file of `repro-env pack` into a directory. The bundle file is untrusted: it is checked before it is used."""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.io.files import CHUNK, open_regular
from repro_env.oci import tar
from repro_env.oci.layer import Measured
from repro_env.schema import spec as specs
from repro_env.schema.errors import ArtifactError
from repro_env.store.blobs import write_hashed
from repro_env.store.specs import files
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

_MAGIC = slice(257, 262)


def is_pack(path: Path) -> bool:
    """Whether a file looks like a tar. Its contents are not checked."""
    try:
        with os.fdopen(open_regular(path.resolve()), "rb", buffering=0) as file:
            return file.read(512)[_MAGIC] == b"ustar"
    except OSError:
        return False


def unpack(path: Path, store: Store) -> Path:
    """Unpack a bundle file into a directory of the store that its sha256 names, unless it exists. Returns the directory.

    Raises `ArtifactError` if `pack` did not write the bundle file or if it is damaged, `SpecError`, `DiskError`.
    """
    path = path.resolve()
    return store.spec_directories.make(
        store.hashes.of_file(path), lambda directory: _fill(directory, path), size=path.stat().st_size
    )


def _fill(directory: Path, path: Path) -> None:
    where = str(path)
    blobs = SpecBlobs(directory / files.BLOBS)
    blobs.directory.mkdir()
    names: set[str] = set()
    with os.fdopen(open_regular(path), "rb") as file:
        for entry, chunks in tar.read(iter(lambda: file.read(CHUNK), b""), where=where):
            if entry.kind == "dir" and entry.path == files.BLOBS:
                continue
            below, _, name = entry.path.rpartition("/")
            is_blob = below == files.BLOBS and files.BLOB.fullmatch(name)
            if entry.kind != "file" or entry.executable or not (is_blob or entry.path in files.FILES):
                raise _error(f"this bundle file has {entry.path!r}, which is not part of a spec's directory", where)
            if not is_blob and entry.size > files.MAX_SIZE:
                raise _error(f"the {entry.path} in this bundle file has {entry.size:,} bytes, which is too large", where)
            write_hashed(directory / entry.path, chunks)
            names.update({name} if is_blob else ())
    if not (directory / files.SPEC).is_file():
        raise _error(f"this bundle file has no {files.SPEC}", where)
    spec = specs.read((directory / files.SPEC).read_bytes(), where=f"{where}: {files.SPEC}")
    sizes = spec.sizes
    for name in sorted(names):
        digest = f"sha256:{name.removesuffix('.gz')}"
        if digest not in sizes:
            raise _error(f"the spec in this bundle file does not name the blob {name[:16]}…", where)
        if name.endswith(".gz") and name.removesuffix(".gz") in names:
            raise _error(f"this bundle file has the blob {name[:16]}… twice", where)
        try:
            Measured(blobs.chunks(digest, sizes[digest])).read()
        except ArtifactError as error:
            raise _error(f"the blob {name[:16]}… in this bundle file is damaged: {error.what}", where) from None


def _error(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, hint="pack it again, or copy the original again")
