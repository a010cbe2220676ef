"""One image being checked: all that it says of itself is recomputed, and what is not so is collected."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from repro_env.build import expected
from repro_env.build.packed import moved
from repro_env.image import config, flat, foreign, layer, layout, record
from repro_env.image.entry import Entry, ordered
from repro_env.image.foreign import Scanned
from repro_env.image.stack import below
from repro_env.io import machine
from repro_env.model import codec
from repro_env.model.errors import ArtifactError, BuildError, SpecError
from repro_env.model.image import CONFIG, MANIFEST
from repro_env.model.spec import Spec
from repro_env.model.talk import Advance
from repro_env.registry import manifest as manifests
from repro_env.store import imagefile
from repro_env.store.carried import Carried
from repro_env.store.imagefile import ImageFile, Piece
from repro_env.store.store import Store
from repro_env.verify import image as verify
from repro_env.verify.difference import NotCompared
from repro_env.verify.image import Mismatch

_RECORD = re.compile(r"(?:.*/)?(?:site|dist)-packages/[^/]+\.dist-info/RECORD")
"""Of a distribution; what lies deeper is vendored by another one."""
_CONFIGS = (CONFIG, "application/vnd.docker.container.image.v1+json", "")


class _Parts(msgspec.Struct, frozen=True):
    Labels: dict[str, str] | None = None
    User: str | None = None
    WorkingDir: str | None = None


class _Rootfs(msgspec.Struct, frozen=True):
    diff_ids: Annotated[list[str], Meta(max_length=1000)]
    type: str = ""


class _Config(msgspec.Struct, frozen=True):
    rootfs: _Rootfs
    architecture: str = ""
    os: str = ""
    config: _Parts | None = None
    history: list[dict[str, msgspec.Raw]] | None = None


class Work:
    """One image being checked."""

    def __init__(self, one: ImageFile) -> None:
        self._one = one
        self.wrong: list[Mismatch] = []
        self.unseen: list[NotCompared] = []
        self.manifest_digest = ""
        if one.manifest is not None:
            self.manifest_digest = self._whole("manifest", one.manifest)[1]
        data, self.image_id = self._whole("config", one.config)
        self._read = self._config(data)
        self._settings = (self._read.config if self._read else None) or _Parts()
        self.label = (self._settings.Labels or {}).get(config.LABEL, "")
        self.diff_ids = self._read.rootfs.diff_ids if self._read else []

    def _whole(self, part: Literal["manifest", "config"], piece: Piece) -> tuple[bytes, str]:
        try:
            data = piece.read()
        except ArtifactError as error:
            self._bad(part, piece.name, error.what)
            return b"", ""
        digest = manifests.digest_of(data)
        self._said(part, piece, digest, len(data))
        if piece.media_type not in ((*manifests.MANIFESTS, MANIFEST) if part == "manifest" else _CONFIGS):
            self._bad(part, piece.name, f"is of the type {piece.media_type}, which is no {part} of an image")
        return data, digest

    def _said(self, part: verify.Part, piece: Piece, digest: str, size: int) -> None:
        if piece.digest and digest != piece.digest:
            self._bad(part, piece.name, f"its bytes are not the ones that its digest names, but {digest}")
        if piece.size not in (-1, size):
            self._bad(part, piece.name, f"has {size:,} bytes, and {piece.size:,} are said")

    def _bad(self, part: verify.Part, what: str, why: str) -> None:
        self.wrong.append(Mismatch(part=part, what=what, why=why))

    def _config(self, data: bytes) -> _Config | None:
        name, layers = self._one.config.name, len(self._one.layers)
        try:
            read = codec.decode(data, _Config, where=name)
        except SpecError as error:
            self._bad("config", name, f"cannot be read: {error.what}")
            return None
        if len(read.rootfs.diff_ids) != layers:
            self._bad("config", name, f"names {len(read.rootfs.diff_ids)} layers, and the image has {layers}")
        told = sum(bytes(row.get("empty_layer", msgspec.Raw(b"false"))) != b"true" for row in read.history or ())
        if read.history and told != layers:
            self._bad("config", name, f"has {told} layers in its history, and the image has {layers}")
        if (read.os, read.architecture) != ("linux", machine.platform().architecture):
            self._bad(
                "config", name, f"is for {read.os or 'no system'}/{read.architecture or 'no machine'}, not for this machine"
            )
        return read

    def layer(self, number: int, piece: Piece, advance: Advance) -> Scanned | None:
        """Recomputes all of one layer; None for one that cannot be read."""
        hasher, size, head = hashlib.sha256(), 0, b""

        def passed() -> Iterator[bytes]:
            nonlocal size, head
            for chunk in piece.open():
                hasher.update(chunk)
                head = head or chunk[:4]
                size += len(chunk)
                advance(len(chunk))
                yield chunk

        chunks = passed()
        name = f"layer {number + 1} ({piece.name.removeprefix('sha256:')[:40]})"
        found = None
        try:
            found = foreign.scan(chunks, where=name, keep=lambda path: bool(_RECORD.fullmatch(path)))
            for _ in chunks:
                pass
        except ArtifactError as error:
            self._bad("layer", name, error.what)
            try:
                for _ in chunks:  # the rest, for the digest
                    pass
            except ArtifactError:
                return None
        self._said("layer", msgspec.structs.replace(piece, name=name), f"sha256:{hasher.hexdigest()}", size)
        if found is None:
            return None
        for problem in found.problems:
            self._bad("layer", name, problem)
        said = piece.media_type
        packed = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}.get(head[:2], "tar")
        if said and not said.endswith((packed, f"diff.tar.{packed}")) and not (packed == "tar" and said.endswith("diff.tar")):
            self._bad("layer", name, f"is said to be {said}, and is {'not compressed' if packed == 'tar' else packed}")
        if number < len(self.diff_ids) and found.diff_id != self.diff_ids[number]:
            self._bad("layer", name, f"its diff ID is {found.diff_id}, and the config says {self.diff_ids[number]}")
        return found

    def other_listing(self, docker: ImageFile | None, *, alone: bool) -> None:
        """Where an archive is for several tools at once, all have to find one image in it."""
        what = imagefile.DOCKER_FILE
        if alone:
            self._bad("manifest", what, f"names an image that {imagefile.INDEX_FILE} does not: tools find different ones")
        if docker is None:
            return
        try:
            # Beside a layout they may be its blobs, or tars of their own.
            same = len(docker.layers) == len(self._one.layers) and all(
                mine.digest == theirs.digest or self._unpacked(theirs) == self._unpacked(mine)
                for mine, theirs in zip(self._one.layers, docker.layers, strict=True)
            )
        except ArtifactError as error:
            self._bad("manifest", what, f"names what cannot be read: {error}")
            return
        if not same:
            self._bad("manifest", what, f"names other layers than {imagefile.INDEX_FILE} does")

    def tree(self, scanned: list[Scanned | None]) -> Mapping[str, Entry]:
        """What the image shows; nothing where a layer cannot be read."""
        if not all(scanned) or not scanned:
            self.unseen.append(NotCompared(what=verify.FILES, why="not every layer can be read"))
            return {}
        found = flat.flatten([layer.nodes for layer in scanned if layer is not None])
        for problem in found.problems:
            self._bad("tree", self._one.name, problem)
        self._shown = found
        return {entry.path: entry for entry in found.entries()}

    def records(self, scanned: list[Scanned | None], tree: Mapping[str, Entry]) -> dict[str, list[record.Row]]:
        rows = {}
        for path, entry in tree.items():
            if entry.kind != "file" or not _RECORD.fullmatch(path) or path.startswith(f"{verify.SYSTEM}/"):
                continue
            layer = scanned[self._shown.placed[path].layer]
            data = layer.kept.get(path) if layer is not None else None
            if data is None or hashlib.sha256(data).hexdigest() != entry.sha256:
                self.unseen.append(NotCompared(what=f"/{path}", why="a hard link, or too large to be read"))
                continue
            try:
                rows[path] = record.parse(data, where=path)
            except ArtifactError as error:
                self.wrong.append(Mismatch(part="record", what=f"/{path}", why=error.what))
        return rows

    def without_spec(self, scanned: list[Scanned | None], tree: Mapping[str, Entry]) -> None:
        """Report mismatches in the layer of edited files as not compared: only the spec has the digest of that layer."""
        marker = self._shown.placed.get(layout.inside(layout.MARKER)) if tree else None
        changes = scanned[marker.layer - 1] if self.label and marker is not None and marker.layer else None
        if marker is None or changes is None:
            return
        gone = {node.path for node in changes.nodes if node.kind == "gone"}
        placed = {path for path, entry in self._shown.placed.items() if entry.layer == marker.layer - 1}
        edited = verify.edited(self.wrong, placed, gone, tree)
        self.wrong = [mismatch for mismatch in self.wrong if mismatch not in edited]
        self.unseen += [
            NotCompared(what=mismatch.what, why=f"{mismatch.why}; it may have been edited before the capture")
            for mismatch in edited
        ]
        if edited:
            why = "files that were edited or added before the capture can be confirmed only by the spec: name it with --spec"
            self.unseen.append(NotCompared(what=verify.SPEC, why=why))

    def against(self, given: tuple[Spec, Path], tree: Mapping[str, Entry], store: Store) -> int | None:
        """Compare with a spec: by diff IDs where all are the expected ones, else path by path."""
        spec, folder = given
        if self.label and self.label != spec.digest:
            self._bad("spec", "the label", f"names the spec {self.label}, and this one is {spec.digest}")
        wanted = [layer.diff_id for layer in spec.expected.layers]
        with_source = self.diff_ids[:-1] == wanted
        if tree and (self.diff_ids == wanted or with_source) and not any(one.part in ("layer", "config") for one in self.wrong):
            source = spec.observed.source if with_source else None
            # The user that the image starts as is the choice of whoever rebuilt it.
            wanted_config = config.config(spec.identity, self.diff_ids, source=source, user=self._settings.User or "")
            if manifests.digest_of(wanted_config) != self.image_id:
                expected_id = manifests.digest_of(wanted_config)
                self._bad("spec", "the config", f"makes the image {self.image_id}, and the spec expects {expected_id}")
            if with_source:
                self._source(spec, folder)
            # Every layer is the expected one, so every file is, those that RECORD does not know included.
            self.wrong = [msgspec.structs.replace(one, captured=one.captured or one.part == "record") for one in self.wrong]
            return len(tree)
        if not tree:
            self.unseen.append(NotCompared(what=verify.SPEC, why="no file of the image could be read"))
            return None
        try:
            known = {entry.path: entry for entry in expected.entries(spec, folder, store)}
            known = {**self._code(spec, folder, store), **known}
        except (ArtifactError, BuildError) as error:
            self.unseen.append(NotCompared(what=verify.SPEC, why=f"which files it means cannot be told: {error}"))
            return None
        self.wrong = [*verify.with_spec(self.wrong, known, tree), *verify.against(known, tree)]
        return len(known)

    def _code(self, spec: Spec, folder: Path, store: Store) -> Mapping[str, Entry]:
        """The paths of the source, if the image says that it holds it, as one that was built from the Dockerfile does."""
        source = spec.observed.source
        if source is None or self._settings.WorkingDir != source.path:
            return {}
        entries = Carried(folder / "blobs").entries(source.tree, store.facts)
        root = source.path.lstrip("/")
        return {entry.path: entry for entry in ordered(below(entry, root) for entry in entries)}

    def _source(self, spec: Spec, folder: Path) -> None:
        """The layer that `--with-source` puts above all others."""
        source = spec.observed.source
        if source is None:
            self._bad("spec", "the last layer", "is none of the spec's, which holds no source")
            return
        try:
            wanted = layer.diff_id(moved(Carried(folder / "blobs").tree(source.tree), source.path))
        except ArtifactError as error:
            self.unseen.append(NotCompared(what=verify.SPEC, why=f"the layer of the source: {error}"))
            return
        if self.diff_ids[-1] != wanted:
            self._bad("spec", "the last layer", f"is neither of the spec nor its source, which would be {wanted}")

    @staticmethod
    def _unpacked(piece: Piece) -> str:
        return foreign.scan(piece.open(), where=piece.name).diff_id
