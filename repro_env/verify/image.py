"""What of an image is not as it says itself: values, and the check of installed files against RECORD."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, Protocol

from repro_env.model.codec import Frozen
from repro_env.verify.difference import NotCompared
from repro_env.verify.tree import Listed, changes, described

Part = Literal["manifest", "config", "layer", "tree", "record", "spec"]

SYSTEM = "usr/lib/python3/dist-packages"
"""Where Debian's own Python packages are, and nothing else (Debian Python Policy). Their RECORD is that of the wheel which they
were built from: libraries are stripped later, scripts and licenses moved."""
FILES, SPEC = "the files", "the spec"
"""Of `NotCompared.what`: without these nothing is good."""


class Mismatch(Frozen, frozen=True, kw_only=True):
    part: Part
    what: str
    """A blob, a path, a distribution."""
    why: str
    of: str = ""
    """Of a path: the distribution whose RECORD speaks of it."""
    captured: bool = False
    """The spec has it so: the image is as it should be, and this is for people to know."""


class Report(Frozen, frozen=True, kw_only=True):
    """Of one image."""

    name: str
    image_id: str
    """Recomputed from the config's bytes."""
    manifest: str
    """Recomputed; empty where there is none."""
    spec: str
    """What the image's label says it is made of; empty for one that other tools made."""
    layers: int
    """Blobs whose bytes were read and compared with what is said of them."""
    bytes: int
    """Of the layers' tars."""
    files: int
    distributions: int
    """Whose files were compared with their RECORD."""
    expected: int | None
    """Paths that were compared with the spec; None without one."""
    mismatches: tuple[Mismatch, ...]
    not_compared: tuple[NotCompared, ...]

    @property
    def good(self) -> bool:
        """Something was compared, and nothing of it differs."""
        unseen = any(one.what in (FILES, SPEC) for one in self.not_compared)
        return bool(self.layers) and not unseen and not any(not one.captured for one in self.mismatches)


class Row(Protocol):
    """Of a RECORD (`image.record.Row`)."""

    @property
    def path(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...


def resolved(tree: Mapping[str, Listed], path: str) -> str | None:
    """The path that a path leads to inside the tree, symlinks followed; None when there is nothing."""
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


def records(tree: Mapping[str, Listed], found: Mapping[str, Sequence[Row]]) -> Iterator[Mismatch]:
    """Files that RECORD lists and the tree lacks or has otherwise, and files that no RECORD lists.

    `found`: path of each RECORD -> its rows. Bytecode that is missing is none: it is made again.
    """
    listed: set[str] = set()
    for path, rows in sorted(found.items()):
        info = posixpath.dirname(path)
        site, name = posixpath.dirname(info), posixpath.basename(info).removesuffix(".dist-info")
        for row in rows:
            said = posixpath.normpath(posixpath.join("/", site, row.path)).lstrip("/")
            place = resolved(tree, said)
            one = tree.get(place) if place else None
            if place is None or one is None or one.kind != "file":
                if not row.path.endswith(".pyc"):
                    yield Mismatch(part="record", what=f"/{said}", why="is listed and not there", of=name)
                continue
            listed.add(place)
            if row.sha256 and one.sha256 != row.sha256:
                yield Mismatch(part="record", what=f"/{said}", why="has other bytes than RECORD lists", of=name)
            elif row.size not in (-1, one.size):
                yield Mismatch(part="record", what=f"/{said}", why=f"has {one.size:,} bytes, RECORD lists {row.size:,}", of=name)
    yield from _strays(tree, found, listed)


def _strays(tree: Mapping[str, Listed], found: Mapping[str, Sequence[Row]], listed: set[str]) -> Iterator[Mismatch]:
    sites = {posixpath.dirname(posixpath.dirname(path)) for path in found}
    owned = {_top(path, site) for path in listed for site in sites if path.startswith(site + "/")}
    others = {_top(path, site) for site in sites for path in tree if _unrecorded(path, site, tree)}
    folders = {folder for path in listed for folder in _above(path)}
    for path, one in sorted(tree.items()):
        site = next((site for site in sites if path.startswith(site + "/")), None)
        if site is None or one.kind == "dir" or path in listed or path.endswith(".pyc"):
            continue
        if one.kind == "link" and resolved(tree, path) in folders:
            continue  # the way to files that are listed
        top = _top(path, site)
        if top in others or (top not in owned and any(other.startswith(site + "/") for other in others)):
            continue  # of a distribution that has no RECORD, or may be
        yield Mismatch(part="record", what=f"/{path}", why="is in no RECORD")


def unrecorded(tree: Mapping[str, Listed], found: Mapping[str, Sequence[Row]]) -> Iterator[NotCompared]:
    """Distributions that are not compared: without a RECORD, or in `SYSTEM`, which is counted as a whole."""
    system = 0
    for path in sorted(tree):
        site = posixpath.dirname(path)
        if site == SYSTEM and path.endswith((".egg-info", ".dist-info")):
            system += 1
        elif _unrecorded(path, site, tree) and f"{path}/RECORD" not in found:
            yield NotCompared(what=f"/{path}", why="a distribution without RECORD")
    if system:
        why = f"{system} distribution{'s' * (system > 1)} of Debian's packages, which differ from the wheels that their RECORD describes"
        yield NotCompared(what=f"/{SYSTEM}", why=why)


def _unrecorded(path: str, site: str, tree: Mapping[str, Listed]) -> bool:
    folder, _, last = path.rpartition("/")
    if folder != site or posixpath.basename(site) not in ("site-packages", "dist-packages"):
        return False
    return last.endswith(".egg-info") or (last.endswith(".dist-info") and f"{path}/RECORD" not in tree)


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _top(path: str, site: str) -> str:
    """The folder or file of `site` that a path lies in."""
    return f"{site}/{path[len(site) + 1 :].partition('/')[0]}"


def edited(
    found: Iterable[Mismatch], placed: Collection[str], gone: AbstractSet[str], tree: Mapping[str, Listed]
) -> list[Mismatch]:
    """Return the mismatches with RECORD that are caused by one layer, which contains `placed` and removes `gone`.

    Files whose RECORD is in the same layer are left out, because that layer contains the distribution itself.
    """
    recorded = {posixpath.basename(posixpath.dirname(path)) for path in placed if path.endswith(".dist-info/RECORD")}
    edits = []
    for mismatch in found:
        path = mismatch.what[1:]
        there = path if path in tree else resolved(tree, path)
        ours = there in placed if there else not gone.isdisjoint((path, *_above(path)))
        if mismatch.part == "record" and ours and f"{mismatch.of}.dist-info" not in recorded:
            edits.append(mismatch)
    return edits


def against(expected: Mapping[str, Listed], tree: Mapping[str, Listed]) -> Iterator[Mismatch]:
    """Every path of the image against what the spec says is there."""
    for one in changes(expected, tree):
        if one.left is None:
            why = f"is there, and the spec has nothing there ({described(one.right)})"
        elif one.right is None:
            why = f"is not there ({described(one.left)})"
        else:
            why = f"is {described(one.right)}, not {described(one.left)}"
        yield Mismatch(part="spec", what=f"/{one.path}", why=why)


def with_spec(found: Iterable[Mismatch], expected: Mapping[str, Listed], tree: Mapping[str, Listed]) -> Iterator[Mismatch]:
    """The same, those marked that are as the spec has them: files that were edited or added before the capture."""
    for one in found:
        path = one.what[1:]
        same = (expected.get(path) is None) == (tree.get(path) is None) and described(expected.get(path)) == described(
            tree.get(path)
        )
        yield Mismatch(part=one.part, what=one.what, why=one.why, of=one.of, captured=one.part == "record" and same)
