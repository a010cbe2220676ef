"""The story of `repro-env push`: the image, then an artifact that hangs on it and is the spec's folder, file for file.

What the spec carries and the image has as a layer are the same bytes, so they are sent once and named twice. Whoever
has the image can find its spec, and whoever has the spec's folder finds in `remote.json` where the image is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from repro_env.build import packing, remote
from repro_env.build.packing import Sent
from repro_env.build.remote import SPEC_TYPE, TITLE, Copy
from repro_env.build.sources import Artifact, Finder, Search
from repro_env.build.trees import Trees
from repro_env.flows import code, egress
from repro_env.flows.rebuild import check_platform
from repro_env.flows.send import notes
from repro_env.image.entry import CHUNK
from repro_env.io.files import open_regular, read_regular, sha256_of
from repro_env.model.errors import ArtifactError
from repro_env.model.image import GZIP, Blob
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.output.registry import RegistryOutput
from repro_env.registry import referrers
from repro_env.registry.client import Registry
from repro_env.registry.manifest import Descriptor, described
from repro_env.registry.reference import Reference
from repro_env.render import provenance, sbom
from repro_env.store import parts
from repro_env.store.carried import Carried
from repro_env.store.digests import hex_of
from repro_env.store.store import Store

BYTES = "application/octet-stream"
PROVENANCE = "provenance.json"
"""Made from spec and image, so it is in the registry alone."""
TYPES = {
    "spec.json": SPEC_TYPE,
    "sbom.cdx.json": sbom.MEDIA_TYPE.partition(";")[0],
    PROVENANCE: provenance.MEDIA_TYPE,
    "pylock.toml": "application/toml",
}
"""Media types of the artifact's files; the others are `TEXT`."""
TEXT = "text/plain"
ALONE = ("sbom.cdx.json", PROVENANCE)
"""Files that hang on the image on their own too, under their own types: that is where other tools look for them."""


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the registry now."""

    reference: str
    image: str
    """`host/name@digest` of the image's manifest."""
    spec: str
    """As `image`, of the artifact."""
    image_id: str
    spec_digest: str
    sent: int
    """Bytes of blobs."""
    blobs: int
    """How many of them."""
    changed: bool
    """False when all of it was there, the tag too."""


def push(spec: Spec, folder: Path, to: Reference, *, frozen: bool = False, store: Store, tell: Tell) -> Pushed:
    """Send a spec's image and all that its folder holds, and note in `remote.json` where they are.

    Raises `UsageError` for a reference with a digest, `PlatformError`, `ArtifactError`, `NetworkError`, `BuildError`, and
    `CaptureError` for a secret in what would be sent, `SourceError` where the code beside the spec differs from the
    captured code, unless `frozen`.
    """
    check_platform(spec)
    code.check_left_out(spec, folder, frozen=frozen, store=store)
    egress.check(spec, folder, store=store)
    for note in notes(spec):
        tell(note)
    others = [one.repository.partition("/")[2] for one in remote.read(folder).copies if one.repository.startswith(f"{to.host}/")]
    with store.temp.folder() as held, Registry(to.host, folder=held) as registry:
        tag = registry.head(to.repository, to.tag)
        image = packing.pack(spec, folder, store, RegistryOutput(to, others=others, folder=held), tell=tell)
        subject = image.image.manifest_blob
        there = referrers.listed(registry, to.repository, subject.digest)
        sending = _Sending(registry, to.repository, others)
        files = {**_files(spec, folder, image, sending), **_blobs(spec, folder, image, sending, store=store, tell=tell)}
        named = [Descriptor(one.media_type, one.digest, one.size, None, {TITLE: name}) for name, one in sorted(files.items())]
        made = referrers.attach(registry, to.repository, subject, SPEC_TYPE, named)
        for one in named:
            if one.annotations and one.annotations[TITLE] in ALONE:
                referrers.attach(registry, to.repository, subject, one.media_type, [one])
        changed = tag != subject.digest or there != referrers.listed(registry, to.repository, subject.digest)
    copy = Copy(repository=to.name, image=subject.digest, spec=made.digest)
    try:
        remote.add(folder, copy)
    except PermissionError as error:
        tell.warn(
            f"note: {folder / parts.REMOTE} cannot be written ({error.strerror}): the spec does not know where it was pushed to"
        )
    return Pushed(
        reference=f"{to.name}:{to.tag}",
        image=f"{to.name}@{subject.digest}",
        spec=f"{to.name}@{made.digest}",
        image_id=image.image_id,
        spec_digest=spec.digest,
        sent=sum(one.blob.size for one in image.layers if one.diff_id in image.made) + sending.size,
        blobs=len(image.made) + sending.blobs,
        changed=changed or bool(image.made) or bool(sending.blobs),
    )


class _Sending:
    """Sends what is not there, and counts it."""

    def __init__(self, registry: Registry, repository: str, others: Sequence[str]) -> None:
        """`others`: repositories of this registry that may have it."""
        self._registry = registry
        self._repository = repository
        self._others = [one for one in others if one != repository]
        self.size = 0
        self.blobs = 0

    def data(self, data: bytes, media_type: str) -> Blob:
        return self._send(described(data, media_type), lambda: iter((data,)))

    def file(self, path: Path, digest: str, media_type: str) -> Blob:
        return self._send(Blob(media_type=media_type, digest=digest, size=path.stat().st_size), lambda: _chunks(path))

    def _send(self, blob: Blob, chunks: Callable[[], Iterator[bytes]]) -> Blob:
        there = self._registry.has(self._repository, blob.digest, blob.size)
        if not there and not any(self._registry.mount(self._repository, blob.digest, other) for other in self._others):
            self._registry.upload(self._repository, chunks(), blob)
            self.size += blob.size
            self.blobs += 1
        return blob


def _files(spec: Spec, folder: Path, image: Sent, sending: _Sending) -> dict[str, Blob]:
    """The spec's files, and where the image comes from. Not `remote.json`: it says where this is."""
    files = {name: read_regular(folder / name, parts.MAX_SIZE) for name in parts.present(folder) if name != parts.REMOTE}
    files[PROVENANCE] = provenance.render(spec, image.image)
    return {name: sending.data(data, TYPES.get(name, TEXT)) for name, data in files.items()}


def _blobs(spec: Spec, folder: Path, image: Sent, sending: _Sending, *, store: Store, tell: Tell) -> dict[str, Blob]:
    """What the spec carries, by its path in the folder. Trees that are layers of the image are there by now."""
    trees = Trees(spec, folder, store)
    finder = Finder(spec, folder, store, trees.givers)
    carried = Carried(folder / parts.BLOBS)
    layers = {one.diff_id: one.blob for one in image.layers}
    found: dict[str, Blob] = {}
    with closing(finder), closing(trees.givers):
        for what, tree in trees.named():
            if tree.sha256 in layers:
                found[f"{parts.BLOBS}/{hex_of(tree.sha256)}.gz"] = layers[tree.sha256]
                continue
            try:
                path = trees.bring(what, tree)
            except ArtifactError:
                if what != "source":
                    raise
                tell.warn("note: the captured source is not beside the spec, so it is not pushed")
                continue
            if not carried.has(tree.sha256, store.facts):
                if trees.givers.offer(tree.sha256) is None:
                    list(carried.chunks(tree.sha256, tree.size))  # says what is wrong with it
                trees.bring(what, tree, again=True)
            found[f"{parts.BLOBS}/{path.name}"] = sending.file(path, f"sha256:{sha256_of(path)}", GZIP)
        artifacts: tuple[Artifact, ...] = (*spec.identity.packages, *spec.identity.distributions)
        for one in artifacts:
            if one.sha256 in spec.carried and (packed := finder.packed(one)) is not None:
                found[f"{parts.BLOBS}/{packed.name}"] = sending.file(packed, f"sha256:{sha256_of(packed)}", GZIP)
            elif one.sha256 in spec.carried:
                place = Search(finder, one, None).take(finder.take)
                found[f"{parts.BLOBS}/{hex_of(one.sha256)}"] = sending.file(Path(place.where), one.sha256, BYTES)
    return found


def _chunks(path: Path) -> Iterator[bytes]:
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk
