"""Where a spec was pushed to: `remote.json` beside it, and taking from there what is missing here.

It names manifests by digest, so a tag that moves changes nothing; it holds no credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

import msgspec

from repro_env.build.giver import Offer
from repro_env.build.interface import Origin
from repro_env.io.files import atomic_write, read_regular
from repro_env.model import codec
from repro_env.model.codec import Frozen
from repro_env.model.errors import ArtifactError, NetworkError, SpecError, UsageError
from repro_env.model.image import Blob
from repro_env.model.text import Digest, Line
from repro_env.registry import reference
from repro_env.registry.client import Registry
from repro_env.registry.manifest import Index, Manifest, parse
from repro_env.registry.reference import Reference
from repro_env.store import parts
from repro_env.store.carried import Carried

FAMILY = "repro-env/remote"
TITLE = "org.opencontainers.image.title"
"""Annotation of a file in an artifact: its path in the spec's folder (OCI image spec, annotations)."""
SPEC_TYPE = "application/vnd.repro-env.spec.v1+json"
"""What the artifact is that hangs on an image: its spec's folder, file for file."""
_ORIGIN: Origin = "registry"
_GZIP = (".tar+gzip", ".tar.gzip")
_HINT = "push again from where the spec's blobs are, or copy its blobs/ folder beside the spec"


class Copy(Frozen, frozen=True, kw_only=True):
    """An image with its spec in one repository."""

    repository: Line
    """`host[:port]/name`."""
    image: Digest
    """Of the image's manifest."""
    spec: Digest
    """Of the manifest of the artifact that hangs on it."""


class Remote(Frozen, frozen=True, kw_only=True):
    """What `remote.json` holds."""

    schema: Literal["repro-env/remote/1"] = "repro-env/remote/1"
    copies: tuple[Copy, ...] = ()
    """One a repository, the last that was pushed; sorted by its name."""


def read(folder: Path) -> Remote:
    """`remote.json` of a folder, or that there is none. Raises `SpecError` for one that cannot be read."""
    path = folder / parts.REMOTE
    try:
        data = read_regular(path, parts.MAX_SIZE)
    except FileNotFoundError:
        return Remote()
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", where=str(path), hint="delete it, and push again") from None
    codec.schema_of(data, family=FAMILY, newest=1, where=str(path))
    return codec.decode(data, Remote, where=str(path))


def add(folder: Path, copy: Copy) -> bool:
    """Note a copy beside the spec, in place of an earlier one in its repository. False when it stands there already."""
    known = read(folder).copies
    copies = tuple(sorted((copy, *(one for one in known if one.repository != copy.repository)), key=lambda one: one.repository))
    if copies == known:
        return False
    atomic_write(folder / parts.REMOTE, codec.pretty(Remote(copies=copies)))
    return True


_Held = tuple[Blob, bool]
"""A blob, and whether it is a gzip."""


class Copies:
    """One copy as a `build.giver.Giver`. Its manifests are asked for when something is missing, and not before."""

    def __init__(self, copy: Copy) -> None:
        """Raises `SpecError` for a repository that has no such name."""
        self._copy = copy
        try:
            self._ref: Reference = reference.parse(f"{copy.repository}@{copy.image}")
        except UsageError as error:
            raise SpecError(error.what, where=f"{parts.REMOTE}: {copy.repository}", hint="delete it, and push again") from None
        self._registry = Registry(self._ref.host)
        self._lock = Lock()
        self._known: dict[str, _Held] | None = None
        self._failure: ArtifactError | NetworkError | None = None
        self._stopped = False
        self.fetched = 0
        self.layers = True

    def offer(self, digest: str) -> Offer | None:
        found = self._blobs().get(digest)
        if found is not None:
            return Offer(_ORIGIN, f"{self._ref.name}@{found[0].digest}", found[0].size)
        if self._failure is not None:
            raise self._failure
        return None

    def give(self, digest: str, carried: Carried, *, size: int | None) -> int:
        blob, compressed = self._blobs()[digest]
        where = f"{self._ref.name}@{blob.digest}"
        return carried.restore(digest, self._bytes(blob, where), compressed=compressed, size=size, where=where)

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._registry.close()

    def _bytes(self, blob: Blob, where: str) -> Iterator[bytes]:
        for chunk in self._registry.blob(self._ref.repository, blob.digest, blob.size):
            if self._stopped:
                raise NetworkError("stopped", where=where, hint="try again: what is there already is not fetched again")
            with self._lock:
                self.fetched += len(chunk)
            yield chunk

    def _blobs(self) -> dict[str, _Held]:
        """What each blob of the image and its artifact unpacks to -> it.

        The image may be gone and the artifact not, or the other way round: what can be had is used.
        """
        with self._lock:
            if self._known is None:
                image, spec = self._listed(self._copy.image, self._layers), self._listed(self._copy.spec, self._files)
                self._known = {**image, **spec}
            return self._known

    def _listed(self, digest: str, blobs: Callable[[Manifest], Iterator[tuple[str, _Held]]]) -> dict[str, _Held]:
        """What a manifest lists; nothing, and why, when it cannot be had."""
        try:
            return dict(blobs(self._manifest(digest)))
        except (ArtifactError, NetworkError) as error:
            self._failure = error
            return {}

    def _manifest(self, digest: str) -> Manifest:
        data, media_type, _ = self._registry.manifest(self._ref.repository, digest)
        found = parse(data, media_type, where=self._registry.where(self._ref.repository, digest))
        if isinstance(found, Index):
            raise ArtifactError("is an index, and no image", where=f"{self._ref.name}@{digest}", hint=_HINT)
        return found

    def _layers(self, image: Manifest) -> Iterator[tuple[str, _Held]]:
        where = f"{self._ref.name}@{self._copy.image}"
        try:
            config = codec.decode(self._registry.small(self._ref.repository, image.config), _Config, where=where)
        except SpecError as error:
            raise ArtifactError(error.what, where=where, hint=_HINT) from None
        if len(config.rootfs.diff_ids) != len(image.layers):
            raise ArtifactError("has a config of other layers", where=where, hint=_HINT)
        for diff_id, layer in zip(config.rootfs.diff_ids, image.layers, strict=True):
            if layer.media_type.endswith((*_GZIP, ".tar")):
                yield diff_id, (layer.blob, layer.media_type.endswith(_GZIP))

    def _files(self, artifact: Manifest) -> Iterator[tuple[str, _Held]]:
        for one in artifact.layers:
            folder, _, name = (one.annotations or {}).get(TITLE, "").rpartition("/")
            if folder == parts.BLOBS and parts.BLOB.fullmatch(name):
                yield f"sha256:{name.removesuffix('.gz')}", (one.blob, name.endswith(".gz"))


class _Rootfs(msgspec.Struct):
    diff_ids: list[Digest]


class _Config(msgspec.Struct):
    rootfs: _Rootfs
