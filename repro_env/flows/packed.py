"""A packed spec as a folder. The file may come from a stranger: what it holds is checked before any of it is used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from repro_env.image import tar
from repro_env.image.entry import Entry
from repro_env.io.files import Found, open_regular
from repro_env.model import spec as specs
from repro_env.model.artifact import CondaPackage, Wheel
from repro_env.model.errors import ArtifactError, SpecError
from repro_env.model.spec import Spec
from repro_env.store import parts
from repro_env.store.blobs import write_hashed
from repro_env.store.carried import Carried
from repro_env.store.store import Store

_MAGIC = slice(257, 262)
_HINT = "pack it again, or copy it again from where it was made"


def is_pack(path: Path) -> bool:
    """Whether a file looks like a tar; what is in it will be seen."""
    try:
        with os.fdopen(open_regular(path.resolve()), "rb", buffering=0) as file:
            return file.read(512)[_MAGIC] == b"ustar"
    except OSError:
        return False


def unpacked(path: Path, store: Store) -> Path:
    """The folder of a packed spec, in the store; the file is read once and known by its sha256 from then on.

    Raises `ArtifactError` for a file that `pack` did not write or that was damaged, `SpecError`, `DiskError`.
    """
    path = path.resolve()
    facts = path.stat()
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    found = Found(path.name, "file", False, facts.st_size, "", key)
    digest = store.hashes.of(path.parent, [found])[path.name]
    return store.folders.make(digest, lambda folder: _fill(folder, path), size=facts.st_size)


def _fill(folder: Path, path: Path) -> None:
    where = str(path)
    (folder / parts.BLOBS).mkdir()
    names: set[str] = set()
    with os.fdopen(open_regular(path), "rb") as file:
        for entry, chunks in tar.read(file.read, where=where):
            if entry.kind == "dir" and entry.path == parts.BLOBS:
                continue
            below = entry.path.rpartition("/")[0]
            if entry.kind != "file" or entry.executable or below not in ("", parts.BLOBS):
                raise _bad(f"has {entry.path!r}, which is no part of a spec's folder", where)
            if below:
                names.add(_blob(folder, entry, chunks, where))
            else:
                _file(folder, entry, chunks, where)
    if not (folder / parts.SPEC).is_file():
        raise _bad(f"holds no {parts.SPEC}", where)
    spec = specs.read((folder / parts.SPEC).read_bytes(), where=f"{where}: {parts.SPEC}")
    _check(spec, Carried(folder / parts.BLOBS), names, where)


def _file(folder: Path, entry: Entry, chunks: Iterable[bytes], where: str) -> None:
    if entry.path not in parts.FILES:
        raise _bad(f"has {entry.path!r}, which is no part of a spec's folder", where)
    if entry.size > parts.MAX_SIZE:
        raise SpecError(f"has a {entry.path} of {entry.size:,} bytes", where=where, hint=_HINT)
    write_hashed(folder / entry.path, chunks)


def _blob(folder: Path, entry: Entry, chunks: Iterable[bytes], where: str) -> str:
    """Write a blob; what is not kept as gzip has its digest as its name."""
    name = entry.path.rpartition("/")[2]
    if not parts.BLOB.fullmatch(name):
        raise _bad(f"has {entry.path!r}, which is no part of a spec's folder", where)
    got = write_hashed(folder / entry.path, chunks)
    if not name.endswith(".gz") and got != name:
        raise _bad(f"holds other bytes than {name[:16]}… says: it was damaged or changed", where)
    return name


def _check(spec: Spec, carried: Carried, names: set[str], where: str) -> None:
    """Every blob is one that the spec names, and of the size that it says; every tree unpacks to its digest."""
    artifacts: tuple[Wheel | CondaPackage, ...] = (*spec.identity.packages, *spec.identity.distributions)
    sizes = {one.sha256: one.size for one in artifacts}
    identity, source = spec.identity, spec.observed.source
    trees = (identity.base, identity.unowned, identity.interpreter.tree, identity.overlay, source.tree if source else None)
    sizes.update({tree.sha256: tree.size for tree in trees if tree is not None})
    seen: set[str] = set()
    for name in sorted(names):
        digest = f"sha256:{name.removesuffix('.gz')}"
        if digest not in sizes or digest in seen:
            raise _bad(f"holds a blob {name[:16]}… that its spec does not name, or twice", where)
        seen.add(digest)
        try:
            for _ in carried.chunks(digest, sizes[digest]):
                pass
        except ArtifactError as error:
            raise _bad(f"has a damaged blob {name[:16]}…: {error.what}", where) from None


def _bad(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, hint=_HINT)
