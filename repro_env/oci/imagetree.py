"""Merge the layers of an image into one tree (OCI image spec, "Applying Changesets")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from repro_env.oci import layerreader
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.oci.layerreader import Node, printable


class TreePath(msgspec.Struct, frozen=True, gc=False):
    """One path of the merged tree."""

    node: Node
    """A file, directory, symlink, device or pipe. A hard link is replaced by the file that it points to."""
    layer: int
    """Number of the layer that holds its content; 0 is the lowest."""


class Linked(Protocol):
    """A path that may be a symlink."""

    @property
    def kind(self) -> str: ...
    @property
    def target(self) -> str: ...


class ImageTree(msgspec.Struct, frozen=True):
    """The file tree that results from all layers of an image."""

    placed: Mapping[str, TreePath]
    """By path, without directories that no layer lists."""
    problems: tuple[str, ...]
    """What tools may read differently, and hard links without a target."""

    def entries(self) -> list[Entry]:
        """Return the tree in canonical form: sorted, with all parents, without devices and pipes."""
        return sort_with_parents(filter(None, (layerreader.to_entry(item.node) for item in self.placed.values())))

    def others(self) -> list[str]:
        """Return the paths of devices and pipes, sorted."""
        return sorted(path for path, item in self.placed.items() if item.node.kind in ("device", "pipe"))


def flatten(layers: Sequence[Sequence[Node]]) -> ImageTree:
    """Merge layers, lowest first. A whiteout hides paths of lower layers only, wherever it is in the tar."""
    tree: dict[str, TreePath] = {}
    problems: list[str] = []
    for number, nodes in enumerate(layers):
        own = _resolved(nodes, tree, number, problems)
        tree = _remaining(tree, nodes, own, problems)
        tree.update(own)
    return ImageTree(tree, tuple(problems))


def _resolved(nodes: Sequence[Node], below: Mapping[str, TreePath], number: int, problems: list[str]) -> dict[str, TreePath]:
    """Return the paths of one layer, with hard links resolved. Of two members at one path, the last wins."""
    layer: dict[str, TreePath] = {}
    for node in nodes:
        if node.kind in ("gone", "opaque"):
            continue
        if node.kind != "hard":
            layer[node.path] = TreePath(node, number)
            continue
        target = layer.get(node.target) or below.get(node.target)
        if target is None or target.node.kind == "dir":
            problems.append(f"{printable(node.path)} is a hard link to {printable(node.target)}, which is not a file before it")
            continue
        layer[node.path] = TreePath(msgspec.structs.replace(target.node, path=node.path), target.layer)
    blocked = {directory for directory in _directories(layer) if directory in layer and layer[directory].node.kind != "dir"}
    if not blocked:
        return layer
    return {
        path: item for path, item in layer.items() if blocked.isdisjoint(_above(path))
    }  # `layerreader` has reported the blocked paths


def _remaining(
    tree: dict[str, TreePath], nodes: Sequence[Node], layer: Mapping[str, TreePath], problems: list[str]
) -> dict[str, TreePath]:
    """Return the paths of lower layers that a layer does not hide or replace."""
    gone = {node.path for node in nodes if node.kind == "gone"}
    opaque = {node.path for node in nodes if node.kind == "opaque"}
    leaves = {path for path, item in layer.items() if item.node.kind != "dir"}
    directories = _directories(layer)
    if "" in opaque:
        return {}
    hidden = (gone | opaque | leaves) & _directories(tree)
    remaining = {}
    for path, item in tree.items():
        if path in gone or (hidden and not hidden.isdisjoint(_above(path))):
            continue
        if path in directories and path not in layer and item.node.kind != "dir":
            problems.append(
                f"{printable(path)} is not a directory in the layers below, and a layer has paths in it without replacing it"
            )
            continue
        remaining[path] = item
    return remaining


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _directories(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found


def resolve(tree: Mapping[str, Linked], path: str) -> str | None:
    """Follow the symlinks of a path inside the tree. Return the path that they lead to; None if it does not exist."""
    parts, done, hops = path.split("/"), "", 0
    while parts:
        part = parts.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        here = f"{done}/{part}" if done else part
        found = tree.get(here)
        if found is None:
            return None
        if found.kind != "link":
            done = here
            continue
        hops += 1
        if hops > 40:
            return None
        if found.target.startswith("/"):
            done = ""
        parts = [*found.target.split("/"), *parts]
    return done
