"""Compute the diff ID of a layer, and check the content of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from repro_env.oci import tar
from repro_env.oci.entry import Entry, Members
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError


def diff_id(members: Members) -> str:
    """Return `sha256:<hex>` of the layer's tar (OCI: DiffID)."""
    hasher = hashlib.sha256()
    for chunk in tar.write(members):
        hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()


def check_contents(members: Members) -> Members:
    """Yield the same members and check the content of each file against the sha256 of its entry while it is read."""
    for entry, chunks in members:
        yield entry, (_check(entry, chunks) if entry.kind == "file" else chunks)


def hash_chunks(chunks: Iterable[bytes], hasher: hashlib._Hash) -> Iterator[bytes]:
    """Yield the same bytes, and add them to a hash while they are read."""
    for chunk in chunks:
        hasher.update(chunk)
        yield chunk


def _check(entry: Entry, chunks: Iterable[bytes]) -> Iterator[bytes]:
    hasher = hashlib.sha256()
    yield from hash_chunks(chunks, hasher)
    if hasher.hexdigest() != entry.sha256:
        raise ArtifactError(
            f"the content of the file does not have the expected sha256 {entry.sha256[:12]}…",
            where=entry.path,
            hint="the copy that it was read from is damaged or was changed",
        )


def recipe(entries: Iterable[Entry]) -> str:
    """Return `sha256:<hex>` of the entries: layers with equal recipes have equal diff IDs. No file is read."""
    return codec.digest(
        [tar.RULE, *[[entry.path, entry.kind, entry.executable, entry.size, entry.sha256, entry.target] for entry in entries]]
    )
