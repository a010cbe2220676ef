"""Members -> diff ID, and the check that content is what its entry says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from repro_env.image import tar
from repro_env.image.entry import Entry, Members
from repro_env.model import codec
from repro_env.model.errors import ArtifactError


def diff_id(members: Members) -> str:
    """`sha256:<hex>` of the layer's tar (OCI: DiffID)."""
    hasher = hashlib.sha256()
    for chunk in tar.write(members):
        hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()


def checked(members: Members) -> Members:
    """The same members, each file's bytes checked against its entry's sha256 as they pass."""
    for entry, chunks in members:
        yield entry, (_check(entry, chunks) if entry.kind == "file" else chunks)


def _check(entry: Entry, chunks: Iterable[bytes]) -> Iterator[bytes]:
    hasher = hashlib.sha256()
    for chunk in chunks:
        hasher.update(chunk)
        yield chunk
    if hasher.hexdigest() != entry.sha256:
        raise ArtifactError(
            f"its bytes are not the ones named by sha256 {entry.sha256[:12]}…",
            where=entry.path,
            hint="the copy it was read from is damaged or was changed",
        )


def recipe(entries: Iterable[Entry]) -> str:
    """`sha256:<hex>` over the entries themselves: equal recipes have equal diff IDs, without reading a file."""
    return codec.digest([tar.RULE, *[[e.path, e.kind, e.executable, e.size, e.sha256, e.target] for e in entries]])
