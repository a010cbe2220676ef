"""List and attach the referrers of an image, by the referrers API or, without it, under a tag (distribution spec 1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from repro_env.oci.manifest import EMPTY, EMPTY_DATA, MAX_SIZE, Descriptor, Index, as_descriptor, blob_of, parse
from repro_env.registry.client import Registry
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.image import INDEX, MANIFEST, Blob

_MAX_WRITES = 5


def fallback_tag(digest: str) -> str:
    """The tag of the index that lists the referrers of this manifest."""
    return digest.replace(":", "-")


def list_referrers(registry: Registry, repository: str, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
    """The referrers of a manifest, from the API and the tag, without duplicates, sorted by digest."""
    found = (*_read_tag(registry, repository, digest)[1], *_by_api(registry, repository, digest))
    by_digest = {descriptor.digest: descriptor for descriptor in found if artifact_type in ("", descriptor.artifact_type)}
    return tuple(descriptor for _, descriptor in sorted(by_digest.items()))


def attach(registry: Registry, repository: str, subject: Blob, artifact_type: str, blobs: Sequence[Descriptor]) -> Blob:
    """Attach a manifest with these blobs to the manifest `subject`. The blobs must exist (`ensure`, `upload`). Deterministic.

    If the registry does not confirm the subject, the index of the fallback tag is updated and read again, because two programs
    may update it at the same time.
    """
    config = registry.ensure(repository, EMPTY_DATA, EMPTY)
    data = codec.canonical(
        {
            "artifactType": artifact_type,
            "config": as_descriptor(config),
            "layers": [{**as_descriptor(blob), "annotations": blob.annotations} for blob in blobs],
            "mediaType": MANIFEST,
            "schemaVersion": 2,
            "subject": as_descriptor(subject),
        }
    )
    manifest = blob_of(data, MANIFEST)
    is_listed = any(descriptor.digest == manifest.digest for descriptor in list_referrers(registry, repository, subject.digest))
    if is_listed and registry.head(repository, manifest.digest) is not None:
        return manifest
    _, confirmed_subject = registry.put_manifest(repository, manifest.digest, data, MANIFEST)
    if confirmed_subject != subject.digest:
        _add(registry, repository, subject.digest, Descriptor(MANIFEST, manifest.digest, manifest.size, artifact_type))
    return manifest


def _add(registry: Registry, repository: str, digest: str, entry: Descriptor) -> None:
    """Add an entry to the fallback tag, and read it again, because another program may have written it in between."""
    tag = fallback_tag(digest)
    where = registry.where(repository, tag)
    for _ in range(_MAX_WRITES):
        before, descriptors = _read_tag(registry, repository, digest)
        if any(descriptor.digest == entry.digest for descriptor in descriptors):
            return
        # Entries of other programs are kept unchanged, with fields that repro-env does not use.
        empty = {"manifests": [], "mediaType": INDEX, "schemaVersion": 2}
        index: dict[str, Any] = msgspec.json.decode(before) if before else empty
        index["manifests"] = sorted([*index["manifests"], msgspec.to_builtins(entry)], key=lambda entry: str(entry["digest"]))
        data = codec.canonical(index)
        if len(data) > MAX_SIZE:
            what = f"this index of referrers would have more than the allowed {MAX_SIZE:,} bytes"
            raise ArtifactError(what, where=where, hint="delete old referrers")
        registry.put_manifest(repository, tag, data, INDEX)
    what = "another program keeps overwriting this index of referrers"
    raise NetworkError(what, where=where, hint="push again when it has finished")


def _read_tag(registry: Registry, repository: str, digest: str) -> tuple[bytes, tuple[Descriptor, ...]]:
    """The index of the fallback tag, as bytes and as descriptors; both empty if there is none."""
    tag = fallback_tag(digest)
    if registry.head(repository, tag) is None:
        return b"", ()
    data, media_type, _ = registry.manifest(repository, tag)
    return data, _index(data, media_type, registry.where(repository, tag))


def _by_api(registry: Registry, repository: str, digest: str) -> tuple[Descriptor, ...]:
    """The referrers from the API; empty if the registry does not have it."""
    where = registry.where(repository, digest)
    pages = registry.pages(repository, f"referrers/{digest}", where=where, absent=(400, 404, 405), media_type=INDEX)
    return tuple(descriptor for data in pages for descriptor in _index(data, INDEX, where))


def _index(data: bytes, media_type: str, where: str) -> tuple[Descriptor, ...]:
    index = parse(data, media_type, where=where)
    if not isinstance(index, Index):
        raise ArtifactError("this is not an index of referrers", where=where, hint="delete that tag, and push again")
    return index.manifests
