"""Copy a spec from a registry into a directory: image -> the artifact that refers to it -> the artifact's files."""

from __future__ import annotations

from pathlib import Path

from repro_env.delivery.builder import remote
from repro_env.delivery.builder.remote import SPEC_TYPE, TITLE, Copy
from repro_env.oci.manifest import Index, Manifest
from repro_env.registry import referrers
from repro_env.registry.client import Registry
from repro_env.registry.reference import Reference
from repro_env.schema import spec as specs
from repro_env.schema.errors import ArtifactError, SpecError
from repro_env.schema.progress import Tell
from repro_env.store.blobs import write_hashed
from repro_env.store.specs import files
from repro_env.store.store import Store

_HINT = "push it again with repro-env push, from the machine that captured it"


def pull_spec(ref: Reference, store: Store, tell: Tell) -> Path:
    """Copy the spec of an image, or the spec that a reference names, into the store, and return its directory.

    The blobs that its `remote.json` names are downloaded when they are needed. Raises `NetworkError`, `ArtifactError`, and
    `SpecError` if the image has no spec.
    """
    with Registry(ref.host) as registry:
        copy, artifact = _find(registry, ref, tell)
        directory = store.spec_directories.make(copy.spec, lambda directory: _fill(directory, registry, ref, copy, artifact))
    remote.add(directory, copy)
    return directory


def _find(registry: Registry, ref: Reference, tell: Tell) -> tuple[Copy, Manifest]:
    """Return where the image and the artifact are, each by the digest of its manifest, and the artifact's manifest."""
    given, digest = _manifest(registry, ref, ref.tag_or_digest)
    if given.artifact_type == SPEC_TYPE:
        if given.subject is None:
            raise ArtifactError("this spec does not refer to an image", where=str(ref), hint=_HINT)
        return Copy(repository=ref.name, image=given.subject.digest, spec=digest), given
    artifacts = referrers.list_referrers(registry, ref.repository, digest, SPEC_TYPE)
    if not artifacts:
        what = f"the image {digest[:19]}… has no spec in the registry"
        raise SpecError(what, where=str(ref), hint="push it with repro-env push, or name an image that was pushed with it")
    if len(artifacts) > 1:
        tell(f"{ref} has {len(artifacts)} specs of the same image; using {artifacts[0].digest}")
    artifact, spec = _manifest(registry, ref, artifacts[0].digest)
    if artifact.artifact_type != SPEC_TYPE or artifact.subject is None or artifact.subject.digest != digest:
        what = "this spec does not refer to the image that lists it"
        raise ArtifactError(what, where=f"{ref.name}@{spec}", hint=_HINT)
    return Copy(repository=ref.name, image=digest, spec=spec), artifact


def _manifest(registry: Registry, ref: Reference, tag_or_digest: str) -> tuple[Manifest, str]:
    manifest, _, digest = registry.parsed(ref.repository, tag_or_digest)
    if isinstance(manifest, Index):
        what, where = "this is an index of several images, which repro-env does not push", f"{ref.name}@{digest}"
        raise ArtifactError(what, where=where, hint="name the image that was pushed, by its tag or digest")
    return manifest, digest


def _fill(directory: Path, registry: Registry, ref: Reference, copy: Copy, artifact: Manifest) -> None:
    where = f"{ref.name}@{copy.spec}"
    for layer in artifact.layers:
        name = (layer.annotations or {}).get(TITLE, "")
        if name not in files.FILES or name == files.REMOTE:
            continue  # a blob, which is downloaded when it is needed; or a file that a newer version writes
        if (directory / name).exists():
            raise ArtifactError(f"this artifact has {name} twice", where=where, hint=_HINT)
        if layer.size > files.MAX_SIZE:
            what = f"the {name} of this artifact has {layer.size:,} bytes, which is too large"
            raise ArtifactError(what, where=where, hint=_HINT)
        write_hashed(directory / name, registry.blob(ref.repository, layer.digest, layer.size))
    try:
        data = (directory / files.SPEC).read_bytes()
    except FileNotFoundError:
        raise SpecError(f"this artifact has no {files.SPEC}", where=where, hint=_HINT) from None
    spec = specs.read(data, where=f"{where}: {files.SPEC}")
    image = _image_id(registry, ref, copy)
    if image is not None and image != spec.expected.image_id:
        what = f"this spec describes the image {spec.expected.image_id[:19]}…, but refers to {image[:19]}…"
        raise ArtifactError(what, where=where, hint=_HINT)


def _image_id(registry: Registry, ref: Reference, copy: Copy) -> str | None:
    """Return the ID of the image that the artifact refers to; None if it was deleted, since the spec is sufficient then."""
    if registry.head(ref.repository, copy.image) is None:
        return None
    return _manifest(registry, ref, copy.image)[0].config.digest
