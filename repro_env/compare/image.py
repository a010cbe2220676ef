"""Check one image: recompute every digest that it states from its bytes, and compare its config and layers with the spec."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from repro_env.delivery.builder.content import SourceTree
from repro_env.oci import config, layer
from repro_env.oci.inflate import gunzip
from repro_env.schema import codec
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import ArtifactError, SpecError
from repro_env.schema.image import LABEL
from repro_env.schema.progress import Advance, Tell
from repro_env.schema.spec import Spec
from repro_env.store.imagefile import ImageBlob, ImageFile
from repro_env.store.specs.blobs import SpecBlobs

MAX_UNPACKED = 256 << 30
"""Largest tar of one layer, in bytes."""
_ZSTD = b"\x28\xb5\x2f\xfd"
_ENGINE = (
    "an image that an engine built from the Dockerfile has layers of its own: the build compared its files with the capture, "
    "and they cannot be compared here"
)


class Mismatch(Frozen, frozen=True, kw_only=True):
    what: str
    """A blob, or a part of the image."""
    why: str


class Report(Frozen, frozen=True, kw_only=True):
    """The result of checking an image."""

    name: str
    image_id: str
    """Computed from the bytes of the config."""
    manifest: str
    """The digest of the manifest, computed; empty without a manifest."""
    spec: str
    """The spec digest in the image's label."""
    layers: int
    bytes: int
    """The size of the uncompressed layers."""
    compared: bool
    """Whether the image was compared with a spec."""
    mismatches: tuple[Mismatch, ...]

    @property
    def good(self) -> bool:
        """Whether the image is intact and is the image of the spec."""
        return self.compared and not self.mismatches


SpecOf = Callable[[str], tuple[Spec, Path] | None]
"""Returns the spec to compare with, and its directory, for the spec digest in an image's label."""


def check(image: ImageFile, spec_of: SpecOf, tell: Tell) -> Report:
    """Read a complete image. Raises `ArtifactError` if its manifest or config cannot be read, or if repro-env did not build it."""
    mismatches: list[Mismatch] = []
    manifest, data = "", image.config.read()
    if image.manifest is not None:
        manifest = _check_stated(image.manifest, codec.digest_of(image.manifest.read()), mismatches)
    image_id = _check_stated(image.config, codec.digest_of(data), mismatches)
    try:
        read = codec.decode(data, config.ImageConfig, where=image.config.name)
    except SpecError as error:
        raise ArtifactError(
            f"the config of the image is invalid: {error.what}", where=image.config.name, hint=error.hint
        ) from None
    if not read.label:
        what = f"the image was not built by repro-env: it has no label {LABEL}"
        raise ArtifactError(what, where=image.name, hint="name an image that was built from a spec of repro-env")
    if len(read.diff_ids) != len(image.layers):
        why = f"names {len(read.diff_ids)} layers, but the image has {len(image.layers)}"
        mismatches.append(Mismatch(what="the config", why=why))
    size = 0
    with tell.progress(0, f"reading {image.name}") as advance:
        for number, (blob, diff_id) in enumerate(zip(image.layers, read.diff_ids, strict=False), 1):
            try:
                size += _check_layer(blob, diff_id, mismatches, advance)
            except ArtifactError as error:  # noqa: PERF203 one layer at a time
                mismatches.append(Mismatch(what=f"layer {number}", why=f"{error.what} ({error.where})"))
    given = spec_of(read.label)
    if given is not None:
        mismatches += _compare(read, data, *given)
    return Report(
        name=image.name,
        image_id=image_id,
        manifest=manifest,
        spec=read.label,
        layers=len(image.layers),
        bytes=size,
        compared=given is not None,
        mismatches=tuple(mismatches),
    )


def _check_stated(blob: ImageBlob, digest: str, mismatches: list[Mismatch]) -> str:
    """Compare the digest that an image states for a blob with the computed one, which is returned."""
    if blob.digest not in ("", digest):
        mismatches.append(Mismatch(what=blob.name, why=f"its stated digest is {blob.digest}, but its bytes have {digest}"))
    return digest


def _check_layer(blob: ImageBlob, expected: str, mismatches: list[Mismatch], advance: Advance) -> int:
    """Compare the digests of a layer, compressed and not. Returns its uncompressed size. Raises `ArtifactError`."""
    packed = layer.Measured(blob.chunks())
    plain = layer.Measured(_decompressed(iter(packed), blob.name))
    for chunk in plain:
        advance(len(chunk))
        if plain.size > MAX_UNPACKED:
            raise ArtifactError(f"the layer is larger than {MAX_UNPACKED:,} bytes", where=blob.name)
    _check_stated(blob, packed.digest, mismatches)
    if plain.digest != expected:
        mismatches.append(Mismatch(what=blob.name, why=f"its diff ID is {plain.digest}, but the config states {expected}"))
    return plain.size


def _decompressed(chunks: Iterator[bytes], where: str) -> Iterable[bytes]:
    """Return the bytes of a tar. The first bytes decide whether it is compressed, not the media type."""
    head = b""
    while len(head) < 4 and (more := next(chunks, b"")):
        head += more
    if head[:4] == _ZSTD:
        hint = "copy the image with gzip layers (`skopeo copy --dest-compress-format gzip --dest-force-compress-format`)"
        raise ArtifactError("the layer is compressed with zstd, which `image verify` does not read", where=where, hint=hint)
    complete = itertools.chain([head], chunks)
    if head[:2] != b"\x1f\x8b":
        return complete
    return gunzip(complete, lambda what: ArtifactError(f"the layer {what}", where=where))


def _compare(read: config.ImageConfig, data: bytes, spec: Spec, directory: Path) -> Iterator[Mismatch]:
    """Yield how the config and the layers that it names differ from the spec. The layers were compared with the config before."""
    if read.label != spec.digest:
        yield Mismatch(what="the label", why=f"names the spec {read.label}, but the given spec is {spec.digest}")
        return
    expected = spec.expected.layers
    if len(read.diff_ids) not in (len(expected), len(expected) + 1):
        why = f"are {len(read.diff_ids)}, and the spec has {len(expected)}: {_ENGINE}"
        yield Mismatch(what="the layers", why=why)
        return
    for number, (diff_id, own) in enumerate(zip(read.diff_ids, expected, strict=False), 1):
        if diff_id != own.diff_id:
            content = ", ".join(own.holds) or own.kind
            yield Mismatch(what=f"layer {number}", why=f"is {diff_id}, but the spec expects {own.diff_id} ({content})")
    source = spec.observed.source if len(read.diff_ids) > len(expected) else None
    if source is not None and read.diff_ids[-1] != layer.diff_id(SourceTree(SpecBlobs(directory / "blobs"), source).members()):
        yield Mismatch(what="the last layer", why="is neither one of the spec's layers nor its source")
    # `repro-env rebuild` chooses the user that the image starts as, so it is not compared.
    wanted = config.config(spec.identity, read.diff_ids, source=source, user=read.settings.user or "")
    if wanted != data:
        yield Mismatch(what="the config", why=f"differs from the one that the spec expects, {codec.digest_of(wanted)}")
