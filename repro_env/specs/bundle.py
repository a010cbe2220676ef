"""Unpack an archive of `repro-env pack` into a directory. The archive is untrusted: it is checked before it is used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from repro_env.io.files import Found, open_regular
from repro_env.oci import tar
from repro_env.oci.entry import Entry
from repro_env.schema import spec as specs
from repro_env.schema.artifact import CondaPackage, Wheel
from repro_env.schema.errors import ArtifactError, SpecError
from repro_env.schema.spec import Spec
from repro_env.store.blobs import write_hashed
from repro_env.store.specs import files
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

_MAGIC = slice(257, 262)
_HINT = "pack it again, or copy the original again"


def is_pack(path: Path) -> bool:
    """Whether a file looks like a tar. Its contents are not checked."""
    try:
        with os.fdopen(open_regular(path.resolve()), "rb", buffering=0) as file:
            return file.read(512)[_MAGIC] == b"ustar"
    except OSError:
        return False


def unpack(path: Path, store: Store) -> Path:
    """Unpack an archive into a directory of the store that its sha256 names, unless it exists. Returns the directory.

    Raises `ArtifactError` if `pack` did not write the archive or if it is damaged, `SpecError`, `DiskError`.
    """
    path = path.resolve()
    facts = path.stat()
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    found = Found(path.name, "file", False, facts.st_size, "", key)
    digest = store.hashes.of(path.parent, [found])[path.name]
    return store.spec_directories.make(digest, lambda directory: _fill(directory, path), size=facts.st_size)


def _fill(directory: Path, path: Path) -> None:
    where = str(path)
    (directory / files.BLOBS).mkdir()
    names: set[str] = set()
    with os.fdopen(open_regular(path), "rb") as file:
        for entry, chunks in tar.read(file.read, where=where):
            if entry.kind == "dir" and entry.path == files.BLOBS:
                continue
            below = entry.path.rpartition("/")[0]
            if entry.kind != "file" or entry.executable or below not in ("", files.BLOBS):
                raise _error(f"this archive has {entry.path!r}, which is not part of a spec's directory", where)
            if below:
                names.add(_blob(directory, entry, chunks, where))
            else:
                _file(directory, entry, chunks, where)
    if not (directory / files.SPEC).is_file():
        raise _error(f"this archive has no {files.SPEC}", where)
    spec = specs.read((directory / files.SPEC).read_bytes(), where=f"{where}: {files.SPEC}")
    _check(spec, SpecBlobs(directory / files.BLOBS), names, where)


def _file(directory: Path, entry: Entry, chunks: Iterable[bytes], where: str) -> None:
    if entry.path not in files.FILES:
        raise _error(f"this archive has {entry.path!r}, which is not part of a spec's directory", where)
    if entry.size > files.MAX_SIZE:
        raise SpecError(f"the {entry.path} in this archive has {entry.size:,} bytes, which is too large", where=where, hint=_HINT)
    write_hashed(directory / entry.path, chunks)


def _blob(directory: Path, entry: Entry, chunks: Iterable[bytes], where: str) -> str:
    """Write a blob and return its name, which must be its digest unless the blob is a gzip."""
    name = entry.path.rpartition("/")[2]
    if not files.BLOB.fullmatch(name):
        raise _error(f"this archive has {entry.path!r}, which is not part of a spec's directory", where)
    digest = write_hashed(directory / entry.path, chunks)
    if not name.endswith(".gz") and digest != name:
        raise _error(f"the blob {name[:16]}… in this archive has the digest {digest[:16]}…: it is damaged or was changed", where)
    return name


def _check(spec: Spec, carried: SpecBlobs, names: set[str], where: str) -> None:
    """Check that the spec names every blob, that each has its stated size, and that every tree unpacks to its digest."""
    artifacts: tuple[Wheel | CondaPackage, ...] = (*spec.identity.packages, *spec.identity.distributions)
    sizes = {artifact.sha256: artifact.size for artifact in artifacts}
    identity, source = spec.identity, spec.observed.source
    trees = (identity.base, identity.unowned, identity.interpreter.tree, identity.overlay, source.tree if source else None)
    sizes.update({tree.sha256: tree.size for tree in trees if tree is not None})
    checked: set[str] = set()
    for name in sorted(names):
        digest = f"sha256:{name.removesuffix('.gz')}"
        if digest not in sizes:
            raise _error(f"the spec in this archive does not name the blob {name[:16]}…", where)
        if digest in checked:
            raise _error(f"this archive has the blob {name[:16]}… twice", where)
        checked.add(digest)
        try:
            for _ in carried.chunks(digest, sizes[digest]):
                pass
        except ArtifactError as error:
            raise _error(f"the blob {name[:16]}… in this archive is damaged: {error.what}", where) from None


def _error(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, hint=_HINT)
