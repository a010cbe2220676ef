"""The bytes of one layer: its members as files, and its gzip.

A layer of wheels is stitched from the wheels' own deflate streams, so its gzip depends only on the wheels and a frozen
rule. A bundled tree is sent as the bytes of its blob. Only conda packages and the source, which have no compressed form,
are compressed by zlib, whose version then decides the digest of the blob. The image ID depends on none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from repro_env.delivery.builder.sources import Location
from repro_env.environment.wheels.layers import DistributionContents, GroupContents
from repro_env.io.files import FileContents
from repro_env.oci import conda as linking
from repro_env.oci import config, layer, tar, wheellayers
from repro_env.oci import wheel as rule
from repro_env.oci.entry import Contents, Entry, Members, find_misplaced, members
from repro_env.oci.gzipencoder import stitch_layer
from repro_env.schema.artifact import Artifact, CondaPackage, TreeBlob
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.spec import Identity, Source
from repro_env.store.packages import condafile
from repro_env.store.packages.wheelfile import WheelContents
from repro_env.store.specs.blobs import SpecBlobs, compress_chunks
from repro_env.store.store import Store


class Content:
    """The bytes of one layer. Each call starts from the beginning. What they yield is checked at the end."""

    def __init__(self, diff_id: str) -> None:
        self.diff_id = diff_id
        """For the source, known after its gzip was read."""

    def members(self) -> Members:
        raise NotImplementedError

    def gzip(self) -> Iterator[bytes]:
        """Raises `BuildError` if the uncompressed bytes do not have the diff ID, and `ArtifactError`."""
        with layer.HashThread() as hasher:
            yield from stitch_layer(self.members(), hasher.update)
            layer.check_diff_id(hasher.digest(), self.diff_id)


class Part(msgspec.Struct, frozen=True):
    """One wheel or conda package of a layer."""

    artifact: Artifact
    layout: Layout
    """Where it is installed."""
    facts: rule.Facts | None
    """None for a conda package, whose facts are read from its archive."""
    location: Location


class Group(Content):
    """A layer of distributions or conda packages."""

    def __init__(self, diff_id: str, parts: Iterable[Part], store: Store, stack: ExitStack) -> None:
        """`stack` closes wheels and removes unpacked packages at its end. Raises `ArtifactError` if a part cannot be installed."""
        super().__init__(diff_id)
        opened = {part.artifact.key: _open(part, store, stack) for part in parts}
        installed = {key: files for key, (files, _) in opened.items()}
        self.sizes = {key: files.size for key, files in installed.items()}
        """Installed size of each part in bytes, by key, for the grouping rule."""
        self._sources = {key: source for key, (_, source) in opened.items()}
        self._layer = wheellayers.layer(tuple(sorted(installed)), installed)

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    def members(self) -> Members:
        return members(self._layer.entries, GroupContents(self._layer.owner, self._sources))

    def gzip(self) -> Iterator[bytes]:
        if misplaced := find_misplaced(self._layer.entries):
            what = "the path is below a file or symlink of its own layer"
            raise BuildError(what, where=misplaced, hint="the spec contradicts itself")
        if all(isinstance(source, WheelContents) for source in self._sources.values()):
            yield from super().gzip()
        else:
            plain = layer.Measured(tar.write(self.members()))
            yield from compress_chunks(plain)
            layer.check_diff_id(plain.digest, self.diff_id)


class Tree(Content):
    """A bundled tree, or a layer that was fetched complete."""

    def __init__(self, blobs: SpecBlobs, blob: TreeBlob) -> None:
        super().__init__(blob.sha256)
        self.blobs = blobs
        self.blob = blob

    def members(self) -> Members:
        return self.blobs.tree(self.blob)

    def gzip(self) -> Iterator[bytes]:
        return self.blobs.packed(self.blob)


class Marker(Content):
    """The last layer of the image."""

    def __init__(self, diff_id: str, identity: Identity) -> None:
        super().__init__(diff_id)
        self._identity = identity

    def members(self) -> Members:
        return config.marker(self._identity)


class SourceTree(Content):
    """The source as a layer, at its captured path. Its diff ID is not in the spec, but the tree that it is made of is proven."""

    def __init__(self, blobs: SpecBlobs, source: Source) -> None:
        super().__init__("")
        self._blobs = blobs
        self._source = source

    def members(self) -> Members:
        """Yield the members of the tree below its path, after that path and its parents."""
        root = self._source.path.strip("/")
        parts = root.split("/") if root else []
        for depth in range(1, len(parts) + 1):
            yield Entry("/".join(parts[:depth]), "dir"), ()
        for entry, chunks in self._blobs.tree(self._source.tree):
            yield (wheellayers.move_below(entry, root) if root else entry), chunks

    def gzip(self) -> Iterator[bytes]:
        plain = layer.Measured(tar.write(self.members()))
        yield from compress_chunks(plain)
        self.diff_id = plain.digest


def _open(part: Part, store: Store, stack: ExitStack) -> tuple[rule.Installed, Contents]:
    """Return what a part installs, and the content of its files. Raises `ArtifactError`."""
    if isinstance(part.artifact, CondaPackage):
        return _open_package(part.artifact, Path(part.location.where), part.layout, store, stack)
    if part.facts is None:
        raise BuildError("the facts about the wheel are missing", where=part.artifact.key, hint="rebuild again")
    installed = rule.canonical(part.facts, part.layout, name=part.artifact.name)
    if part.location.origin != "live":
        # Its files are not checked again: its sha256 was, and the diff ID covers every byte of the layer.
        contents = WheelContents(Path(part.location.where), installed)
        stack.callback(contents.close)
        return installed, contents
    live = FileContents(Path(part.location.where))
    return installed, _CheckedContents(DistributionContents(installed, live, frozenset(), None))


class _CheckedContents:
    """Installed files, checked one by one, so that an error names the file."""

    def __init__(self, inner: Contents) -> None:
        self._inner = inner

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        return layer.check_content(entry, self._inner.chunks(entry))


def _open_package(
    package: CondaPackage, archive: Path, layout: Layout, store: Store, stack: ExitStack
) -> tuple[rule.Installed, Contents]:
    unpacked = stack.enter_context(condafile.UnpackedPackage(archive, package.filename, layout.prefix, store.temp))
    info = unpacked.facts.info
    if (info.name, info.version, info.build) != (package.name, package.version, package.build):
        what = f"the archive holds the package {info.name} {info.version} {info.build}"
        raise ArtifactError(what, where=package.filename)
    installed = linking.canonical(unpacked.facts, layout)
    return installed, condafile.CondaContents(unpacked, installed)
