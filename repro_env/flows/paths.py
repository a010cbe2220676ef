"""Which paths of a tree differ between two sides, whose they are, and why where that can be told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from repro_env.flows.trees import Held
from repro_env.image import conda, stack, wheel
from repro_env.image.entry import Entry
from repro_env.image.layout import inside, root_of
from repro_env.model.artifact import CondaPackage, Wheel
from repro_env.model.errors import ArtifactError, SpecError
from repro_env.model.spec import Identity, WheelHint
from repro_env.store import condafile
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS
from repro_env.verify import numerics
from repro_env.verify.difference import Difference, Level
from repro_env.verify.environment import LEVEL, Part
from repro_env.verify.tree import Change, Listed, changes, described, masked

_STARTS = ("sitecustomize.py", "usercustomize.py")
Contents = Callable[[Collection[str]], Mapping[str, bytes]]
MOVED = "differs only in the prefix that is written in it"


class Owners:
    """Whose a path of the image is."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files`: path -> key of the distribution that brings it."""
        self.files = files
        self._folders: dict[str, str] = {}
        for path, key in self.files.items():
            while path := path.rpartition("/")[0]:
                if self._folders.setdefault(path, key) != key:
                    self._folders[path] = ""

    @staticmethod
    def known(identity: Identity, hints: Iterable[WheelHint], store: Store) -> Owners:
        """As far as the store knows the wheels and conda packages of an identity; `hints` are those of the packages."""
        urls = {hint.sha256: hint.urls for hint in hints}
        files: dict[str, str] = {}
        for package in identity.packages:
            for path in linked(package, identity, urls.get(package.sha256, ()), store) or ():
                files[path] = package.name
        for one in identity.distributions:
            for path in canonical(one, identity, store) or ():
                files[path] = one.key
        return Owners(files)

    def of(self, path: str) -> str:
        """The key of the distribution that brings a path, or alone fills a folder; empty when there is none."""
        return self.files.get(path) or self._folders.get(path, "")


def canonical(one: Wheel, identity: Identity, store: Store) -> dict[str, Entry] | None:
    """What a wheel puts into the image, by path; None when the store does not know the wheel."""
    facts = store.facts.recall(FACTS, one.sha256, wheel.Facts)
    if facts is None:
        return None
    if facts.filename != one.filename:
        facts = msgspec.structs.replace(facts, filename=one.filename)
    try:
        installed = wheel.canonical(facts, identity.layout_of(one), name=one.name)
    except (ArtifactError, SpecError):
        return None
    return _placed(installed)


def linked(one: CondaPackage, identity: Identity, urls: Iterable[str], store: Store) -> dict[str, Entry] | None:
    """What a conda package puts into the image, by path; None when the store does not know it at this prefix."""
    key = condafile.facts_key(one.sha256, identity.layout.prefix)
    for known in (key, *(f"{key} {url}" for url in urls)):  # by URL where only parts of the archive were read
        facts = store.facts.recall(condafile.FACTS, known, conda.Facts)
        if facts is not None:
            try:
                return _placed(conda.canonical(facts, identity.layout))
            except ArtifactError:
                return None
    return None


def _placed(installed: wheel.Installed) -> dict[str, Entry]:
    entries = (stack.below(entry, installed.root) for entry in installed.entries)
    return {entry.path: entry for entry in entries}


class Side(msgspec.Struct, frozen=True):
    """One side of a tree."""

    held: Held
    identity: Identity
    owners: Owners

    @property
    def root(self) -> str:
        """Where the image holds the prefix."""
        return inside(root_of(self.identity.layout))

    def shown(self, path: str) -> str:
        """A path of the image as people know it: relative to the prefix where it lies below it."""
        root = self.root + "/"
        return path.removeprefix(root) if path.startswith(root) else f"/{path}"

    def listing(self) -> dict[str, Entry]:
        """By the path as shown: the same file of two environments has the same one. The folders above them have none."""
        above = f"{self.root}/"
        return {
            self.shown(path): entry
            for path, entry in self.held.entries().items()
            if entry.kind != "dir" or not above.startswith(f"{path}/")
        }

    def owner(self, shown: str) -> str:
        return self.owners.of(shown[1:] if shown.startswith("/") else f"{self.root}/{shown}")

    def contents(self, paths: Collection[str]) -> dict[str, bytes]:
        found = self.held.contents({one[1:] if one.startswith("/") else f"{self.root}/{one}" for one in paths})
        return {self.shown(path): data for path, data in found.items()}


def different(part: Part, left: Side, right: Side) -> tuple[Difference, ...]:
    """The paths of one tree that differ."""
    found = changes(left.listing(), right.listing())
    if part != "overlay":
        return tuple(_other(part, one) for one in found)
    prefixes = left.identity.layout.prefix, right.identity.layout.prefix
    moved = same_but_prefix(found, left.contents, right.contents, *prefixes)
    said = (_overlaid(one, left.owner(one.path), right.owner(one.path), moved=one.path in moved) for one in found)
    return tuple(one for one in said if (one.left or "removed") != (one.right or "removed"))


def builds(left: Wheel, right: Wheel, old: Identity, new: Identity, store: Store) -> tuple[Difference, ...] | None:
    """The files that differ between two wheels of one version; None when the store does not know both."""
    was, now = canonical(left, old, store), canonical(right, new, store)
    if was is None or now is None:
        return None
    level: Level = "numerics" if numerics.distribution(left.name) else "distributions"
    roots = tuple(inside(root_of(one.layout_of(two))) + "/" for one, two in ((old, left), (new, right)))
    found = changes(
        {path.removeprefix(roots[0]): one for path, one in was.items()},
        {path.removeprefix(roots[1]): one for path, one in now.items()},
    )
    return tuple(
        Difference(level=level, what=one.path, of=left.name, left=described(one.left), right=described(one.right), why=_how(one))
        for one in found
        if not one.path.endswith(".dist-info/RECORD")  # made by rule: lists what differs
    )


def _other(part: Part, one: Change) -> Difference:
    return Difference(
        level=LEVEL[part], what=one.path, of=part, left=described(one.left), right=described(one.right), why=_how(one)
    )


def _overlaid(one: Change, before: str, after: str, *, moved: bool) -> Difference:
    """The overlay is a difference to the wheels: what it says of a path is told in terms of the environment."""
    before, after = before.partition("@")[0], after.partition("@")[0]
    owner = before or after
    level: Level = "files" if not owner else "numerics" if numerics.distribution(owner) else "distributions"
    left, right = _told(one.left, before, one.right, owner), _told(one.right, after, one.left, owner)
    return Difference(
        level=level, what=one.path, of=owner, left=left, right=right, why=MOVED if moved else _how(one), moved=moved
    )


def _told(entry: Listed | None, owner: str, other: Listed | None, either: str) -> str:
    """What one side has at a path. Only what a layer below brings can be removed: where nobody is known to, it is there."""
    if entry is not None:
        return described(entry)
    if owner:
        return f"as {owner} has it"
    return "there" if _kind(other) == "gone" and not either else ""


def _how(one: Change) -> str:
    name = one.path.rpartition("/")[2]
    if name in _STARTS or name.endswith(".pth"):
        return "read at every start of Python"
    if one.how == "mode":
        return "mode"
    return "is of another kind" if one.how == "kind" and "gone" not in (_kind(one.left), _kind(one.right)) else ""


def _kind(one: object) -> str:
    return getattr(one, "kind", "")


def same_but_prefix(found: Iterable[Change], old: Contents, new: Contents, left: str, right: str) -> frozenset[str]:
    """Files that are the same but for the prefix that is written in them."""
    if left == right or not left or not right:
        return frozenset()
    wanted = [one.path for one in found if one.how == "content"]
    return frozenset(_same(old(wanted), new(wanted), left, right)) if wanted else frozenset()


def _same(was: Mapping[str, bytes], now: Mapping[str, bytes], old: str, new: str) -> Iterator[str]:
    for path in was.keys() & now.keys():
        if masked(was[path], old) == masked(now[path], new):
            yield path
