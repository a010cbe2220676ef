"""Two images, compared by layer and then by path: what remains when no spec says what their parts are."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal

import msgspec

from repro_env.flows import paths, trees
from repro_env.flows.sides import Side
from repro_env.flows.trees import Held
from repro_env.image import config, layout
from repro_env.image.entry import Entry
from repro_env.model.errors import ArtifactError, SpecError
from repro_env.model.image import Layer
from repro_env.store.store import Store
from repro_env.verify import environment, numerics
from repro_env.verify.difference import Difference, Level
from repro_env.verify.tree import changes, described

_DIST_INFO = re.compile(r"(?P<site>.+/(?:site|dist)-packages)/(?P<name>[^/]+)-(?P<version>[^/-]+)\.dist-info/RECORD")
"""Of a distribution; what lies deeper is vendored by another one."""
_RECORD = 64 << 20
"""Bytes of a RECORD that is read."""
_STDLIB = re.compile(r"(?:.*/)?lib(?:64)?/python\d+\.\d+t?/(?!site-packages/|dist-packages/).*")


class Image(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Literal["image", "spec", "live"]
    image_id: str
    digest: str
    """The spec digest, as the image's label says it."""
    architecture: str
    env: Mapping[str, str]
    layers: tuple[str, ...]
    """Diff IDs, lowest first."""
    tree: Callable[[str], Held | None]
    """By diff ID; None for a layer whose paths cannot be told."""
    holds: Mapping[str, tuple[str, ...]] = {}
    """By diff ID, `name==version` of what is in it, where a spec says it."""
    owners: Callable[[], Mapping[str, str]] = dict
    """Path -> distribution, where a spec says it."""

    @property
    def prefix(self) -> str:
        """Where a moved environment was captured: the marker has a symlink there. Empty for one that is in place."""
        marker = self.tree(self.layers[-1]) if self.layers else None
        try:
            entries = marker.entries().values() if marker is not None else ()
        except ArtifactError:
            return ""
        return next((f"/{entry.path}" for entry in entries if entry.target == layout.ENVIRONMENT), "")


def of_store(image_id: str, name: str, store: Store) -> Image:
    """An image of the store. Raises `SpecError` for one that is not there."""
    data = store.images.get(image_id)
    if data is None:
        raise SpecError("is no image of the store, or a damaged one", where=name, hint="repro-env rebuild makes it")
    made = msgspec.json.decode(data, type=_Config)
    return Image(
        name=name,
        kind="image",
        image_id=image_id,
        digest=made.config.Labels.get(config.LABEL, ""),
        architecture=made.architecture,
        env=dict(_variable(text) for text in made.config.Env),
        layers=tuple(made.rootfs.diff_ids),
        tree=lambda diff_id: _stored(diff_id, store),
    )


def of_side(side: Side, store: Store) -> Image:
    """The image that a spec or a live environment would be; it need not be in the store."""
    kinds = {one.diff_id: one for one in side.layers}
    return Image(
        name=side.name,
        kind=side.kind,
        image_id=side.image_id,
        digest=side.digest,
        architecture=side.identity.platform.architecture,
        env=config.variables(side.identity),
        layers=tuple(kinds),
        tree=lambda diff_id: _stored(diff_id, store) or _told(kinds[diff_id], side, store),
        holds={one.diff_id: one.holds for one in side.layers},
        owners=lambda: side.owners().files,
    )


def different(left: Image, right: Image) -> Iterator[Difference]:
    """Variables, then distributions, then paths. Layers that both have are not looked into."""
    if left.architecture != right.architecture:
        yield Difference(level="numerics", what="platform", left=left.architecture, right=right.architecture)
    yield from environment.variables(left.env, right.env)
    yield from environment.places(left.env, right.env, left.prefix, right.prefix)
    one, two = _View(left, right), _View(right, left)
    yield from one.untold
    yield from two.untold
    yield from _files(one, two)
    for what, old, new in (("spec digest", left.digest, right.digest), ("image ID", left.image_id, right.image_id)):
        if old != new:
            yield Difference(level="digests", what=what, left=old, right=new)


class _View:
    """What an image shows of the paths in those of its layers that the other one lacks."""

    def __init__(self, image: Image, other: Image) -> None:
        own = [diff_id for diff_id in image.layers if diff_id not in other.layers]
        self._below = [diff_id for diff_id in image.layers if diff_id in other.layers]
        self._image = image
        self.untold: list[Difference] = []
        self.shown: dict[str, Entry] = {}
        self.owner = dict(image.owners()) if own else {}
        """Path -> the distribution whose RECORD lists it."""
        self.versions: dict[str, str] = {}
        self._held: list[Held] = []
        self.last: frozenset[str] = frozenset()
        """Paths of the topmost layer, which is the marker."""
        for diff_id in own:
            held = image.tree(diff_id)
            for text in image.holds.get(diff_id, ()):
                name, _, version = text.rpartition("==")
                self.versions[name.partition("@")[0].removeprefix("conda/")] = version
            try:
                listing = None if held is None else held.entries()
            except ArtifactError as error:
                self._cannot(diff_id, str(error))
                continue
            if held is None or listing is None:
                self._cannot(diff_id, "not in the store; repro-env rebuild brings it there")
                continue
            self._held.append(held)
            self._lay(listing)
            self._learn(held, listing)
            if diff_id == image.layers[-1]:
                self.last = frozenset(listing)

    def entry(self, path: str) -> Entry | None:
        """What the whole image shows there."""
        if path in self.shown:
            found = self.shown[path]
            return None if found.kind == "gone" else found
        for diff_id in reversed(self._below):
            held = self._image.tree(diff_id)
            below = held.entry(path) if held is not None else None
            if below is not None:
                return None if below.kind == "gone" else below
        return None

    def contents(self, found: Collection[str]) -> dict[str, bytes]:
        """The bytes of small files in the layers that the other one lacks."""
        known: dict[str, bytes] = {}
        for held in self._held:
            known |= held.contents(found)
        return known

    @property
    def prefix(self) -> str:
        return self._image.prefix

    def _cannot(self, diff_id: str, why: str) -> None:
        self.untold.append(
            Difference(
                level="files",
                what=f"layer {diff_id.removeprefix('sha256:')[:12]}",
                left="",
                right="",
                of=self._image.name,
                why=f"which files cannot be told: {why}",
            )
        )

    def _lay(self, listing: Mapping[str, Entry]) -> None:
        for path, entry in listing.items():
            if entry.kind != "dir":
                for below in [one for one in self.shown if one.startswith(path + "/")] if entry.kind == "gone" else ():
                    del self.shown[below]
            if entry.kind != "dir" or path not in self.shown:
                self.shown[path] = entry

    def _learn(self, held: Held, listing: Mapping[str, Entry]) -> None:
        records = {path: match for path in listing if (match := _DIST_INFO.fullmatch(path))}
        for path, data in held.contents(records.keys(), _RECORD).items():
            match = records[path]
            name = re.sub(r"[-_.]+", "-", match["name"]).lower()
            self.versions[name] = match["version"]
            for row in csv.reader(io.StringIO(data.decode("utf-8", "replace"))):
                if row:
                    self.owner[posixpath.normpath(posixpath.join(match["site"], row[0]))] = name


def _files(left: _View, right: _View) -> Iterator[Difference]:
    rows = list(environment.versions(left.versions, right.versions))
    other = {one.what for one in rows}
    old, new = {}, {}
    for path in left.shown.keys() | right.shown.keys():
        was, now = left.entry(path), right.entry(path)
        if was is not None:
            old[path] = was
        if now is not None:
            new[path] = now
    found = changes(old, new)
    owners = {one.path: left.owner.get(one.path) or right.owner.get(one.path, "") for one in found}
    counts = Counter(owners.values())
    moved = paths.same_but_prefix(found, left.contents, right.contents, left.prefix, right.prefix)
    for row in rows:
        yield msgspec.structs.replace(row, why=f"{counts[row.what]:,} files" if counts[row.what] else "")
    for one in found:
        owner = owners[one.path]
        if owner and owner in other:
            continue  # a distribution of another version has other files
        why = paths.MOVED if one.path in moved else "mode" if one.how == "mode" else ""
        made = one.path in left.last or one.path in right.last
        linked = made and "link" in (getattr(one.left, "kind", ""), getattr(one.right, "kind", ""))
        yield Difference(
            level="layout" if linked else "digests" if made else _level(one.path, owner),
            what=f"/{one.path}",
            left=described(one.left),
            right=described(one.right),
            of=owner,
            why="the link at the prefix" if linked else "names the spec" if made else why,
            moved=one.path in moved or linked,
        )


def _level(path: str, owner: str) -> Level:
    if owner:
        return "numerics" if numerics.distribution(owner) else "distributions"
    if path.startswith(layout.inside(layout.ENVIRONMENT) + "/"):
        return "files"
    return "interpreter" if _STDLIB.fullmatch(path) else "system"


def _stored(diff_id: str, store: Store) -> Held | None:
    there = store.layers.path(diff_id)
    return None if there is None else trees.Stored(there, store.hashes)


def _told(one: Layer, side: Side, store: Store) -> Held | None:
    """A layer that is not in the store: its blob, what rule makes it, or what its wheels become."""
    if one.kind == "marker":
        return trees.Listed(entry for entry, _ in config.marker(side.identity))
    if one.kind in ("base", "unowned", "interpreter", "overlay"):
        return side.tree(one.kind)
    if one.kind == "distributions":
        entries: dict[str, Entry] = {}
        for wheel in side.identity.distributions:
            if f"{wheel.key}=={wheel.version}" in one.holds:
                known = paths.canonical(wheel, side.identity, store)
                if known is None:
                    return None
                entries |= known
        return trees.Listed(entries.values())
    return None


def _variable(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


class _Parts(msgspec.Struct):
    Env: list[str] = []
    Labels: dict[str, str] = {}


class _Rootfs(msgspec.Struct):
    diff_ids: list[str]


class _Config(msgspec.Struct):
    architecture: str
    config: _Parts
    rootfs: _Rootfs
