"""A spec from a registry as a folder: image -> the artifact that hangs on it -> its files."""

from __future__ import annotations

from pathlib import Path

from repro_env.build import remote
from repro_env.build.remote import SPEC_TYPE, TITLE, Copy
from repro_env.model import spec as specs
from repro_env.model.errors import ArtifactError, SpecError
from repro_env.model.talk import Tell
from repro_env.registry import referrers
from repro_env.registry.client import Registry
from repro_env.registry.manifest import Index, Manifest, parse
from repro_env.registry.reference import Reference
from repro_env.store import parts
from repro_env.store.blobs import write_hashed
from repro_env.store.store import Store

_HINT = "push it again with repro-env push, from where it was captured"


def pulled(ref: Reference, store: Store, tell: Tell) -> Path:
    """The folder of the spec that hangs on an image, or that a reference names itself; in the store, without its blobs.

    What `remote.json` in it names is fetched when it is needed. Raises `NetworkError`, `ArtifactError`, and `SpecError`
    where no spec hangs on the image.
    """
    with Registry(ref.host) as registry:
        copy, artifact = _found(registry, ref, tell)
        folder = store.folders.make(copy.spec, lambda folder: _fill(folder, registry, ref, copy, artifact))
    remote.add(folder, copy)
    return folder


def _found(registry: Registry, ref: Reference, tell: Tell) -> tuple[Copy, Manifest]:
    """The image and the artifact, each by the digest of its manifest."""
    given, digest = _manifest(registry, ref, ref.named)
    if given.artifact_type == SPEC_TYPE:
        if given.subject is None:
            raise ArtifactError("hangs on no image", where=str(ref), hint=_HINT)
        return Copy(repository=ref.name, image=given.subject.digest, spec=digest), given
    hanging = referrers.listed(registry, ref.repository, digest, SPEC_TYPE)
    if not hanging:
        what = f"has no spec: nothing of repro-env hangs on the image {digest[:19]}…"
        raise SpecError(what, where=str(ref), hint="push it with repro-env push, or name an image that was")
    if len(hanging) > 1:
        tell(f"{len(hanging)} specs of this very image hang on {ref}: taking {hanging[0].digest}")
    artifact, spec = _manifest(registry, ref, hanging[0].digest)
    if artifact.artifact_type != SPEC_TYPE or artifact.subject is None or artifact.subject.digest != digest:
        raise ArtifactError("does not hang on the image that lists it", where=f"{ref.name}@{spec}", hint=_HINT)
    return Copy(repository=ref.name, image=digest, spec=spec), artifact


def _manifest(registry: Registry, ref: Reference, named: str) -> tuple[Manifest, str]:
    where = registry.where(ref.repository, named)
    data, media_type, digest = registry.manifest(ref.repository, named)
    found = parse(data, media_type, where=where)
    if isinstance(found, Index):
        what = "is an index of several images, and repro-env pushes one at a time"
        raise ArtifactError(what, where=where, hint="name the image that was pushed, by its own tag or digest")
    return found, digest


def _fill(folder: Path, registry: Registry, ref: Reference, copy: Copy, artifact: Manifest) -> None:
    where = f"{ref.name}@{copy.spec}"
    for one in artifact.layers:
        name = (one.annotations or {}).get(TITLE, "")
        if name not in parts.FILES or name == parts.REMOTE:
            continue  # a blob, which is fetched when it is needed; or of a version that writes more files
        if one.size > parts.MAX_SIZE or (folder / name).exists():
            raise ArtifactError(f"has {name} twice, or of {one.size:,} bytes", where=where, hint=_HINT)
        write_hashed(folder / name, registry.blob(ref.repository, one.digest, one.size))
    try:
        data = (folder / parts.SPEC).read_bytes()
    except FileNotFoundError:
        raise SpecError(f"holds no {parts.SPEC}", where=where, hint=_HINT) from None
    spec = specs.read(data, where=f"{where}: {parts.SPEC}")
    image = _image_id(registry, ref, copy)
    if image is not None and image != spec.expected.image_id:
        what = f"describes the image {spec.expected.image_id[:19]}… and hangs on {image[:19]}…"
        raise ArtifactError(what, where=where, hint=_HINT)


def _image_id(registry: Registry, ref: Reference, copy: Copy) -> str | None:
    """Of the image that the artifact hangs on; None when it was deleted: its spec tells all that is needed."""
    if registry.head(ref.repository, copy.image) is None:
        return None
    return _manifest(registry, ref, copy.image)[0].config.digest
