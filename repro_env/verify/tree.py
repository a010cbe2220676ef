"""Two listings of a tree, compared path by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec


class Listed(Protocol):
    """A path in canonical form (`image.entry.Entry`)."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def executable(self) -> bool: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def target(self) -> str: ...


How = Literal["new", "gone", "kind", "content", "mode", "target"]


class Change(msgspec.Struct, frozen=True):
    path: str
    how: How
    left: Listed | None
    right: Listed | None


def changes(left: Mapping[str, Listed], right: Mapping[str, Listed]) -> tuple[Change, ...]:
    """What is new, gone or other, sorted by path. A folder counts by itself only where the other side has none."""
    parents = {path.rpartition("/")[0] for path in (*left, *right)}
    found = []
    for path in sorted(left.keys() | right.keys()):
        old, new = left.get(path), right.get(path)
        if path in parents and (old is None or old.kind == "dir") and (new is None or new.kind == "dir"):
            continue  # what lies in it is told
        how = _how(old, new)
        if how is not None:
            found.append(Change(path, how, old, new))
    return tuple(found)


def described(one: Listed | None) -> str:
    """A path's facts in a few words; empty for one that is not there."""
    if one is None:
        return ""
    if one.kind == "link":
        return f"link to {one.target}"
    if one.kind == "dir":
        return "empty folder"
    if one.kind == "gone":
        return "removed"
    return f"{'program' if one.executable else 'file'}, {one.size:,} bytes, sha256 {one.sha256[:12]}"


def masked(data: bytes, prefix: str) -> bytes:
    """The bytes of a file with an environment's prefix, and its folder's name where a prompt shows it, taken out."""
    name = prefix.rpartition("/")[2]
    return data.replace(prefix.encode(), b"<prefix>").replace(f"({name})".encode(), b"(<name>)")


def _how(old: Listed | None, new: Listed | None) -> How | None:
    if old is None:
        return None if new is None else "new"
    if new is None:
        return "gone"
    if old.kind != new.kind:
        return "kind"
    if old.target != new.target:
        return "target"
    if old.sha256 != new.sha256:
        return "content"
    return "mode" if old.executable != new.executable else None
