"""Check one image: recompute every digest, size and path that it states, and compare its files with the spec."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.compare.environments.difference import NotCompared
from repro_env.compare.environments.trees import changes, describe
from repro_env.delivery.builder import imageentries
from repro_env.delivery.builder.outputjob import move_below_path
from repro_env.io import machine
from repro_env.oci import config, imagetree, layer, layerreader
from repro_env.oci import manifestreader as manifests
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.oci.layerreader import ScannedLayer
from repro_env.oci.wheellayers import move_below
from repro_env.schema import codec
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import ArtifactError, BuildError, SpecError
from repro_env.schema.image import CONFIG, MANIFEST
from repro_env.schema.progress import Advance, Tell
from repro_env.schema.spec import Spec
from repro_env.store import imagefile
from repro_env.store.imagefile import ImageBlob, ImageFile
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

Part = Literal["manifest", "config", "layer", "tree", "spec"]
_CONFIGS = (CONFIG, "application/vnd.docker.container.image.v1+json", "")


class Mismatch(Frozen, frozen=True, kw_only=True):
    part: Part
    what: str
    """A blob or a path."""
    why: str


class Report(Frozen, frozen=True, kw_only=True):
    """The result of checking an image."""

    name: str
    image_id: str
    """Computed from the bytes of the config."""
    manifest: str
    """The digest of the manifest, computed; empty without a manifest."""
    spec: str
    """The spec digest in the image's label; empty if the config cannot be read."""
    layers: int
    """The number of layers whose bytes were compared with their digests."""
    bytes: int
    """The size of the uncompressed layers."""
    files: int
    expected: int | None
    """The number of paths that were compared with the spec; None if they could not be compared."""
    mismatches: tuple[Mismatch, ...]
    not_compared: tuple[NotCompared, ...]

    @property
    def good(self) -> bool:
        """Whether everything was compared, and nothing differs."""
        return bool(self.layers) and not self.mismatches and not self.not_compared


class Work:
    """The check of one image."""

    def __init__(self, image: ImageFile) -> None:
        """Read the manifest and the config. Raises `ArtifactError` for an image that repro-env did not build."""
        self._image = image
        self._mismatches: list[Mismatch] = []
        self._not_compared: list[NotCompared] = []
        self._manifest_digest = ""
        if image.manifest is not None:
            self._manifest_digest = self._read_part("manifest", image.manifest)[1]
        data, self._image_id = self._read_part("config", image.config)
        self._parsed = self._config(data)
        self._settings = self._parsed.settings if self._parsed else config.ContainerSettings()
        self.label = self._parsed.label if self._parsed else ""
        if self._parsed and not self.label:
            what = f"the image was not built by repro-env: it has no label {config.LABEL}"
            raise ArtifactError(what, where=image.name, hint="name an image that was built from a spec of repro-env")
        self._diff_ids = self._parsed.diff_ids if self._parsed else []

    def check(self, spec: tuple[Spec, Path] | None, store: Store, tell: Tell, *, docker: ImageFile | None, alone: bool) -> Report:
        """Read every layer, and compare the image with the spec.

        `spec`: with its directory. `docker`: the same image in the archive's listing for `docker load`. `alone`: only that
        listing has the image.
        """
        layers = self._image.layers
        with tell.progress(sum(max(piece.size, 0) for piece in layers), f"reading {self._image.name}") as advance:
            scanned = [self._layer(number, piece, advance) for number, piece in enumerate(layers)]
        self._check_docker(docker, alone=alone)
        tree = self._tree(scanned)
        expected = None
        if spec is None:
            self._skip("the spec", "it is neither here nor named; name the spec of the image with --spec")
        else:
            expected = self._compare_with(spec, tree, store)
        return Report(
            name=self._image.name,
            image_id=self._image_id,
            manifest=self._manifest_digest,
            spec=self.label,
            layers=sum(layer is not None for layer in scanned),
            bytes=sum(layer.size for layer in scanned if layer is not None),
            files=sum(entry.kind == "file" for entry in tree.values()),
            expected=expected,
            mismatches=tuple(self._mismatches),
            not_compared=tuple(self._not_compared),
        )

    def _read_part(self, part: Literal["manifest", "config"], piece: ImageBlob) -> tuple[bytes, str]:
        try:
            data = piece.read()
        except ArtifactError as error:
            self._add(part, piece.name, error.what)
            return b"", ""
        digest = manifests.digest_of(data)
        self._check_stated(part, piece, digest, len(data))
        if piece.media_type not in ((*manifests.MANIFESTS, MANIFEST) if part == "manifest" else _CONFIGS):
            self._add(part, piece.name, f"has the media type {piece.media_type}, which is not that of an image's {part}")
        return data, digest

    def _check_stated(self, part: Part, piece: ImageBlob, digest: str, size: int) -> None:
        if piece.digest and digest != piece.digest:
            self._add(part, piece.name, f"its stated digest is {piece.digest}, but its bytes have {digest}")
        if piece.size not in (-1, size):
            self._add(part, piece.name, f"has {size:,} bytes, but its stated size is {piece.size:,}")

    def _add(self, part: Part, what: str, why: str) -> None:
        self._mismatches.append(Mismatch(part=part, what=what, why=why))

    def _skip(self, what: str, why: str) -> None:
        self._not_compared.append(NotCompared(what=what, why=why))

    def _config(self, data: bytes) -> config.ImageConfig | None:
        name, layers = self._image.config.name, len(self._image.layers)
        try:
            read = codec.decode(data, config.ImageConfig, where=name)
        except SpecError as error:
            self._add("config", name, f"cannot be read: {error.what}")
            return None
        if len(read.diff_ids) != layers:
            self._add("config", name, f"names {len(read.diff_ids)} layers, but the image has {layers}")
        recorded = sum(bytes(row.get("empty_layer", msgspec.Raw(b"false"))) != b"true" for row in read.history or ())
        if read.history and recorded != layers:
            self._add("config", name, f"has {recorded} layers in its history, but the image has {layers}")
        if (read.os, read.architecture) != ("linux", machine.platform().architecture):
            platform = f"{read.os or 'no operating system'}/{read.architecture or 'no architecture'}"
            self._add("config", name, f"is for {platform}, which is not this machine's platform")
        return read

    def _layer(self, number: int, piece: ImageBlob, advance: Advance) -> ScannedLayer | None:
        """Check one layer and return its contents; None if it cannot be read."""
        hasher, size, head = hashlib.sha256(), 0, b""

        def hashed() -> Iterator[bytes]:
            nonlocal size, head
            for chunk in piece.open():
                hasher.update(chunk)
                head = head or chunk[:4]
                size += len(chunk)
                advance(len(chunk))
                yield chunk

        chunks = hashed()
        name = f"layer {number + 1} ({piece.name.removeprefix('sha256:')[:40]})"
        found = None
        try:
            found = layerreader.scan(chunks, where=name)
            for _ in chunks:
                pass
        except ArtifactError as error:
            self._add("layer", name, error.what)
            try:
                for _ in chunks:  # the digest needs the bytes up to the end
                    pass
            except ArtifactError:
                return None
        self._check_stated("layer", msgspec.structs.replace(piece, name=name), f"sha256:{hasher.hexdigest()}", size)
        if found is None:
            return None
        for problem in found.problems:
            self._add("layer", name, problem)
        stated = piece.media_type
        compression = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}.get(head[:2], "tar")
        endings = (compression, f"diff.tar.{compression}", *(("diff.tar",) if compression == "tar" else ()))
        if stated and not stated.endswith(endings):
            actual = "not compressed" if compression == "tar" else f"compressed with {compression}"
            self._add("layer", name, f"has the media type {stated}, but is {actual}")
        if number < len(self._diff_ids) and found.diff_id != self._diff_ids[number]:
            self._add("layer", name, f"its diff ID is {found.diff_id}, but the config states {self._diff_ids[number]}")
        return found

    def _check_docker(self, docker: ImageFile | None, *, alone: bool) -> None:
        """Check that `docker load` finds the same image in an archive as tools that read the OCI index."""
        what = imagefile.DOCKER_FILE
        if alone:
            self._add("manifest", what, f"names an image that is not in {imagefile.INDEX_FILE}: tools find different images")
        if docker is None:
            return
        try:
            # The listing for Docker may name the layout's blobs, or separate tars.
            same = len(docker.layers) == len(self._image.layers) and all(
                own.digest == layer.digest or self._diff_id(layer) == self._diff_id(own)
                for own, layer in zip(self._image.layers, docker.layers, strict=True)
            )
        except ArtifactError as error:
            self._add("manifest", what, f"names a layer that cannot be read: {error}")
            return
        if not same:
            self._add("manifest", what, f"names other layers than {imagefile.INDEX_FILE}")

    def _tree(self, scanned: list[ScannedLayer | None]) -> Mapping[str, Entry]:
        """Return the image's files by path; nothing if a layer cannot be read."""
        if not all(scanned) or not scanned:
            self._skip("the files", "not every layer can be read")
            return {}
        found = imagetree.flatten([layer.nodes for layer in scanned if layer is not None])
        for problem in found.problems:
            self._add("tree", self._image.name, problem)
        return {entry.path: entry for entry in found.entries()}

    def _compare_with(self, given: tuple[Spec, Path], tree: Mapping[str, Entry], store: Store) -> int | None:
        """Compare with a spec: by diff IDs if all are as expected, else path by path. Returns how many paths were compared."""
        spec, directory = given
        if self.label != spec.digest:
            self._add("spec", "the label", f"names the spec {self.label}, but the given spec is {spec.digest}")
        expected = [layer.diff_id for layer in spec.expected.layers]
        with_source = self._diff_ids[:-1] == expected
        sound = not any(mismatch.part in ("layer", "config") for mismatch in self._mismatches)
        if tree and sound and (self._diff_ids == expected or with_source):
            source = spec.observed.source if with_source else None
            # `repro-env rebuild` chooses the user that the image starts as, so it is not compared.
            expected_config = config.config(spec.identity, self._diff_ids, source=source, user=self._settings.user or "")
            expected_id = manifests.digest_of(expected_config)
            if expected_id != self._image_id:
                self._add("spec", "the config", f"has the image ID {self._image_id}, but the spec expects {expected_id}")
            if with_source:
                self._source(spec, directory)
            return len(tree)  # each layer is as expected, so each file is
        if not tree:
            self._skip("the spec", "the files of the image could not be read")
            return None
        try:
            entries = {entry.path: entry for entry in imageentries.entries(spec, directory, store)}
            entries = {**self._code(spec, directory, store), **entries}
        except (ArtifactError, BuildError) as error:
            self._skip("the spec", f"the files that it expects cannot be listed: {error}")
            return None
        for change in changes(entries, tree):
            if change.left is None:
                why = f"exists, but is not in the spec ({describe(change.right)})"
            elif change.right is None:
                why = f"is missing ({describe(change.left)})"
            else:
                why = f"is {describe(change.right)}, not {describe(change.left)}"
            self._add("spec", f"/{change.path}", why)
        return len(entries)

    def _code(self, spec: Spec, directory: Path, store: Store) -> Mapping[str, Entry]:
        """Return the source's files if the image holds them, as an image that was built from the Dockerfile does."""
        source = spec.observed.source
        if source is None or self._settings.working_dir != source.path:
            return {}
        entries = SpecBlobs(directory / "blobs").entries(source.tree, store.facts)
        root = source.path.lstrip("/")
        return {entry.path: entry for entry in sort_with_parents(move_below(entry, root) for entry in entries)}

    def _source(self, spec: Spec, directory: Path) -> None:
        """Check the topmost layer, which `--with-source` adds."""
        source = spec.observed.source
        if source is None:
            self._add("spec", "the last layer", "is not one of the spec's layers, and the spec has no source")
            return
        try:
            expected = layer.diff_id(move_below_path(SpecBlobs(directory / "blobs").tree(source.tree), source.path))
        except ArtifactError as error:
            self._skip("the spec", f"the layer of the source: {error}")
            return
        if self._diff_ids[-1] != expected:
            what = f"is neither one of the spec's layers nor its source, which has the diff ID {expected}"
            self._add("spec", "the last layer", what)

    @staticmethod
    def _diff_id(piece: ImageBlob) -> str:
        return layerreader.scan(piece.open(), where=piece.name).diff_id
