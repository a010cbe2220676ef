"""Layers -> the one tree that they make (OCI image spec, "Applying Changesets"). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from repro_env.image import foreign
from repro_env.image.entry import Entry, ordered
from repro_env.image.foreign import Node, shown


class Placed(msgspec.Struct, frozen=True, gc=False):
    """What an image shows at one path."""

    node: Node
    """A file, folder, symlink, device or pipe: a hard link is the file that it leads to."""
    layer: int
    """Which layer its content is in, 0 being the lowest."""


class Flat(msgspec.Struct, frozen=True):
    placed: Mapping[str, Placed]
    """By path; folders that no layer names are not among them."""
    problems: tuple[str, ...]
    """What tools may take differently; what leads to nothing."""

    def entries(self) -> list[Entry]:
        """In canonical form: sorted, every parent present; devices and pipes have none and are left out."""
        return ordered(filter(None, (foreign.entry(one.node) for one in self.placed.values())))

    def others(self) -> list[str]:
        """Devices and pipes, sorted."""
        return sorted(path for path, one in self.placed.items() if one.node.kind in ("device", "pipe"))


def flatten(layers: Sequence[Sequence[Node]]) -> Flat:
    """The tree, lowest layer first. A whiteout hides what is below its layer, wherever it stands in the tar."""
    tree: dict[str, Placed] = {}
    problems: list[str] = []
    for number, nodes in enumerate(layers):
        own = _resolved(nodes, tree, number, problems)
        tree = _remaining(tree, nodes, own, problems)
        tree.update(own)
    return Flat(tree, tuple(problems))


def _resolved(nodes: Sequence[Node], below: Mapping[str, Placed], number: int, problems: list[str]) -> dict[str, Placed]:
    """What a layer itself shows; the last of two on one path."""
    own: dict[str, Placed] = {}
    for node in nodes:
        if node.kind in ("gone", "opaque"):
            continue
        if node.kind != "hard":
            own[node.path] = Placed(node, number)
            continue
        other = own.get(node.target) or below.get(node.target)
        if other is None or other.node.kind == "dir":
            problems.append(f"{shown(node.path)} is a hard link to {shown(node.target)}, which is no file before it")
            continue
        own[node.path] = Placed(msgspec.structs.replace(other.node, path=node.path), other.layer)
    over = {folder for folder in _folders(own) if folder in own and own[folder].node.kind != "dir"}
    if not over:
        return own
    return {path: one for path, one in own.items() if over.isdisjoint(_above(path))}  # `foreign` has named the others


def _remaining(
    tree: dict[str, Placed], nodes: Sequence[Node], own: Mapping[str, Placed], problems: list[str]
) -> dict[str, Placed]:
    """What a layer leaves of those below."""
    gone = {node.path for node in nodes if node.kind == "gone"}
    opaque = {node.path for node in nodes if node.kind == "opaque"}
    solid = {path for path, one in own.items() if one.node.kind != "dir"}
    folders = _folders(own)
    if "" in opaque:
        return {}
    over = (gone | opaque | solid) & _folders(tree)
    kept = {}
    for path, one in tree.items():
        if path in gone or (over and not over.isdisjoint(_above(path))):
            continue
        if path in folders and path not in own and one.node.kind != "dir":
            problems.append(f"{shown(path)} is no folder in the layers below, and a layer has paths in it without saying so")
            continue
        kept[path] = one
    return kept


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _folders(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found
