"""What a catalog must be able to do, and reading what is in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from repro_env.oci.manifest import Descriptor
from repro_env.runs.catalog import part
from repro_env.runs.catalog.part import SharedRun, StoredPart, Tag
from repro_env.runs.records import ids
from repro_env.schema.errors import NetworkError, RecordError, ReproEnvError
from repro_env.schema.image import Blob

_READERS = 8
"""Parts that are read at once."""


class Catalog(Protocol):
    """A place for runs. Everything in it is untrusted. May be used from several threads."""

    @property
    def name(self) -> str:
        """As a user writes it."""
        ...

    def tags(self) -> list[str]:
        """The tags of all parts, and possibly other tags. Raises `NetworkError`, `RecordError`."""
        ...

    def manifest(self, tag: str, digest: str) -> bytes:
        """The manifest of a part. Raises `ArtifactError` if it is missing, or does not have this digest, and `NetworkError`."""
        ...

    def has(self, blob: Blob | Descriptor) -> bool:
        """Whether there is a blob with this digest and size. Its bytes are not read."""
        ...

    def read(self, blob: Blob | Descriptor) -> Iterator[bytes]:
        """The bytes of a blob, checked. The last chunk may be followed by `ArtifactError`. Raises `NetworkError`."""
        ...

    def prepare(self) -> None:
        """Make sure that this user may write. Raises `UsageError`, `NetworkError`, `DiskError`."""
        ...

    def write(self, blob: Blob, chunks: Callable[[], Iterator[bytes]]) -> None:
        """Store a blob. Raises `ArtifactError` if the bytes are not this blob, `NetworkError`, `DiskError`; then it is not stored."""
        ...

    def add(self, tag: str, manifest: bytes) -> None:
        """Store the manifest of a part, after its blobs, so that a part is never seen without them."""
        ...

    def close(self) -> None: ...


class Contents(msgspec.Struct, frozen=True):
    """The parts in a catalog."""

    parts: dict[str, list[StoredPart]]
    """By the ID of the run."""
    damaged: dict[str, list[ReproEnvError]]
    """Parts that cannot be used, by the ID of the run."""

    def run(self, run_id: str, where: str) -> SharedRun:
        """Return a run. Raises what is wrong with one of its parts, and `RecordError` as `part.merge`."""
        if run_id in self.damaged:
            raise self.damaged[run_id][0]
        return part.merge(self.parts[run_id], where=f"{where}: run {ids.short(run_id)}")


def find(catalog: Catalog, words: Collection[str]) -> list[Tag]:
    """Return the parts of the runs that words name: an ID, a short ID, or the beginning of one. Without words, of all runs.

    Raises `RecordError` if a word names no run, or several.
    """
    tags = [tag for name in sorted(catalog.tags()) if (tag := part.parse_tag(name)) is not None]
    runs = {tag.run for tag in tags}
    chosen = set() if words else runs
    for word in words:
        found = ids.matching(word, runs, lambda run: (run, ids.short(run)))
        if len(found) != 1:
            what = f"{word!r} matches {len(found)} runs" if found else f"the catalog does not have a run {word!r}"
            raise RecordError(what, where=catalog.name, hint=f"list them with `repro-env runs list --from {catalog.name}`")
        chosen.update(found)
    return [tag for tag in tags if tag.run in chosen]


def read(catalog: Catalog, tags: Collection[Tag]) -> Contents:
    """Read the manifests and configs of parts. Raises `NetworkError`."""
    contents = Contents(defaultdict(list), defaultdict(list))
    with ThreadPoolExecutor(_READERS) as pool:
        for tag, found in zip(tags, pool.map(lambda tag: _read(catalog, tag), tags), strict=True):
            if isinstance(found, StoredPart):
                contents.parts[tag.run].append(found)
            else:
                contents.damaged[tag.run].append(found)
    return contents


def _read(catalog: Catalog, tag: Tag) -> StoredPart | ReproEnvError:
    where = f"{catalog.name}: {tag.name}"
    try:
        manifest = part.read_manifest(catalog.manifest(tag.name, tag.digest), where=where)
        config = b"".join(catalog.read(manifest.config))
        return StoredPart(tag.name, manifest, part.read_config(config, run_id=tag.run, where=where))
    except NetworkError:
        raise
    except ReproEnvError as error:
        return error
