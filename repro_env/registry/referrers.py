"""What hangs on an image: asked by the referrers API, and kept under a tag where a registry has none (distribution spec 1.1)."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from repro_env.io.target import origin
from repro_env.model import codec
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.model.image import INDEX, MANIFEST, Blob
from repro_env.registry.client import Registry, pull
from repro_env.registry.manifest import EMPTY, EMPTY_DATA, LARGEST, Descriptor, Index, described, parse

_PAGES = 100
_WRITES = 5
_NEXT = re.compile(r'\s*<([^<>]*)>\s*;\s*rel="?next"?')


def fallback_tag(digest: str) -> str:
    """Under which an index lists what hangs on this manifest."""
    return digest.replace(":", "-")


def listed(registry: Registry, repository: str, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
    """What hangs on a manifest, by the API and by the tag, each once, sorted by digest. `artifact_type`: of this type alone."""
    found = {
        one.digest: one for one in (*_tagged(registry, repository, digest)[1], *(_by_api(registry, repository, digest) or ()))
    }
    chosen = (one for _, one in sorted(found.items()))
    return tuple(one for one in chosen if not artifact_type or one.artifact_type == artifact_type)


def attach(
    registry: Registry,
    repository: str,
    subject: Blob,
    artifact_type: str,
    blobs: Sequence[Blob | Descriptor],
    annotations: Mapping[str, str] | None = None,
) -> Blob:
    """Hang a manifest with these blobs, which are there already (`ensure`, `upload`), on the manifest `subject`. Same input, same digest.

    Where the registry does not say that it took note of the subject, the index of the fallback tag is rewritten, and looked at
    afterwards, since two may do so at the same moment.
    """
    config = registry.ensure(repository, EMPTY_DATA, EMPTY)
    document: dict[str, object] = {
        "artifactType": artifact_type,
        "config": _descriptor(config),
        "layers": [_descriptor(one) for one in blobs] or [_descriptor(config)],
        "mediaType": MANIFEST,
        "schemaVersion": 2,
        "subject": _descriptor(subject),
    }
    if annotations:
        document["annotations"] = dict(annotations)
    data = codec.canonical(document)
    made = described(data, MANIFEST)
    hanging = any(one.digest == made.digest for one in listed(registry, repository, subject.digest))
    if hanging and registry.head(repository, made.digest) is not None:
        return made
    _, noted = registry.put(repository, made.digest, data, MANIFEST)
    if noted != subject.digest:
        entry = Descriptor(MANIFEST, made.digest, made.size, artifact_type, dict(annotations) if annotations else None)
        _add(registry, repository, subject.digest, entry)
    return made


def _add(registry: Registry, repository: str, digest: str, entry: Descriptor) -> None:
    """Written, and looked at: somebody else may have written between our reading and writing."""
    tag = fallback_tag(digest)
    where = registry.where(repository, tag)
    for _ in range(_WRITES):
        kept, there = _tagged(registry, repository, digest)
        if any(one.digest == entry.digest for one in there):
            return
        # What others put there stays as it is, with what is not read here.
        held: dict[str, Any] = msgspec.json.decode(kept) if kept else {"manifests": [], "mediaType": INDEX, "schemaVersion": 2}
        held["manifests"] = sorted([*held["manifests"], msgspec.to_builtins(entry)], key=lambda one: str(one["digest"]))
        data = codec.canonical(held)
        if len(data) > LARGEST:
            what = f"lists more than the {LARGEST:,} bytes that an index may have"
            raise ArtifactError(what, where=where, hint="delete what is old there")
        registry.put_manifest(repository, tag, data, INDEX)
    if all(one.digest != entry.digest for one in _tagged(registry, repository, digest)[1]):
        raise NetworkError("is rewritten by others all the time", where=where, hint="push again when they are done")


def _tagged(registry: Registry, repository: str, digest: str) -> tuple[bytes, tuple[Descriptor, ...]]:
    """The index under the tag, as it is kept and as it is read; empty when there is none."""
    tag = fallback_tag(digest)
    if registry.head(repository, tag) is None:
        return b"", ()
    data, media_type, _ = registry.manifest(repository, tag)
    return data, _index(data, media_type, registry.where(repository, tag))


def _by_api(registry: Registry, repository: str, digest: str) -> tuple[Descriptor, ...] | None:
    """None where the registry has no such API."""
    server = registry.server
    url = server.url(f"{repository}/referrers/{digest}")
    first = url
    found: list[Descriptor] = []
    for _ in range(_PAGES):
        with server.send("GET", url, scope=(pull(repository),), headers={"Accept": INDEX}) as answer:
            media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
            if answer.status in (400, 404, 405) or (answer.status == 200 and media_type != INDEX):
                return None
            if answer.status != 200:
                raise server.refused(answer, registry.where(repository, digest), doing="pull")
            data = answer.whole(LARGEST)
            following = _NEXT.match(answer.headers.get("Link", ""))
        if data is None:
            raise NetworkError("breaks off before the end", where=registry.where(repository, digest), hint="try again")
        found += _index(data, media_type, registry.where(repository, digest))
        if following is None:
            return tuple(found)
        url = urllib.parse.urljoin(url, following[1])
        if origin(url) != origin(first):
            raise NetworkError(
                "goes on with its list at another server",
                where=registry.where(repository, digest),
                hint="ask who runs that registry",
            )
    raise NetworkError(
        f"lists more than {_PAGES} pages", where=registry.where(repository, digest), hint="delete what is old there"
    )


def _index(data: bytes, media_type: str, where: str) -> tuple[Descriptor, ...]:
    found = parse(data, media_type, where=where)
    if not isinstance(found, Index):
        raise ArtifactError("is no index of what hangs on an image", where=where, hint="delete that tag, and push again")
    return found.manifests


def _descriptor(one: Blob | Descriptor) -> dict[str, object]:
    found: dict[str, object] = {"digest": one.digest, "mediaType": one.media_type, "size": one.size}
    return {**found, "annotations": one.annotations} if isinstance(one, Descriptor) and one.annotations else found
