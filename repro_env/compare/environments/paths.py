"""Compare the paths of two trees: which differ, which distribution owns them, and why they differ if that is clear."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from repro_env.compare.environments.difference import Difference, Level
from repro_env.compare.environments.identity import LEVEL, level_of
from repro_env.compare.environments.sides import Side
from repro_env.compare.environments.trees import Change, changes, describe
from repro_env.oci import conda, wheel, wheellayers
from repro_env.oci.entry import Entry
from repro_env.oci.paths import inside, root_of
from repro_env.schema.artifact import CondaPackage, Wheel
from repro_env.schema.errors import ArtifactError, SpecError
from repro_env.schema.spec import Identity, Spec, TreeName
from repro_env.store.packages import condafile
from repro_env.store.packages.wheelfile import FACTS
from repro_env.store.store import Store

_STARTUP_FILES = ("sitecustomize.py", "usercustomize.py")


class Owners:
    """Map each path of the image to the distribution that installs it."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files`: path -> key of the distribution that installs it."""
        self.files = files
        self._directories: dict[str, str] = {}
        for path, key in self.files.items():
            while path := path.rpartition("/")[0]:
                if self._directories.setdefault(path, key) != key:
                    self._directories[path] = ""

    @staticmethod
    def from_store(spec: Spec, store: Store) -> Owners:
        """Return the owners for those packages of a spec that the store knows."""
        identity = spec.identity
        urls = {hint.sha256: hint.urls for hint in spec.hints.packages}
        files: dict[str, str] = {}
        for package in identity.packages:
            for path in _package_entries(package, identity, urls.get(package.sha256, ()), store) or ():
                files[path] = package.name
        for distribution in identity.distributions:
            for path in _wheel_entries(distribution, identity, store) or ():
                files[path] = distribution.key
        return Owners(files)

    def of(self, path: str) -> str:
        """Return the key of the distribution that installs a path, or all files of a directory; empty if there is none."""
        return self.files.get(path) or self._directories.get(path, "")


def _wheel_entries(distribution: Wheel, identity: Identity, store: Store) -> dict[str, Entry] | None:
    """Return the files that a wheel installs, by path; None if the store does not know the wheel."""
    facts = store.facts.recall(FACTS, distribution.sha256, wheel.Facts)
    if facts is None:
        return None
    if facts.filename != distribution.filename:
        facts = facts._replace(filename=distribution.filename)
    try:
        installed = wheel.canonical(facts, identity.layout_of(distribution), name=distribution.name)
    except (ArtifactError, SpecError):
        return None
    return _by_path(installed)


def _package_entries(package: CondaPackage, identity: Identity, urls: Iterable[str], store: Store) -> dict[str, Entry] | None:
    """Return the files that a conda package installs, by path; None if the store does not know it at this prefix."""
    sha256_key = condafile.facts_key(package.sha256, identity.layout.prefix)
    # If only parts of the archive were read, the key has its URL too.
    for key in (sha256_key, *(f"{sha256_key} {url}" for url in urls)):
        facts = store.facts.recall(condafile.FACTS, key, conda.Facts)
        if facts is not None:
            try:
                return _by_path(conda.canonical(facts, identity.layout))
            except ArtifactError:
                return None
    return None


def _by_path(installed: wheel.Installed) -> dict[str, Entry]:
    entries = (wheellayers.move_below(entry, installed.root) for entry in installed.entries)
    return {entry.path: entry for entry in entries}


class _Tree:
    """A tree of one side of a comparison, with paths as they are printed."""

    def __init__(self, side: Side, part: TreeName, store: Store) -> None:
        self.tree = side.tree(part)
        self.prefix = side.spec.identity.layout.prefix
        self.root = inside(root_of(side.spec.identity.layout))
        """Path of the prefix in the image."""
        self.owners = Owners.from_store(side.spec, store) if part == "overlay" else Owners({})

    def shown(self, path: str) -> str:
        """Return a path of the image as it is printed: relative to the prefix if it is below the prefix."""
        root = self.root + "/"
        return path.removeprefix(root) if path.startswith(root) else f"/{path}"

    def listing(self) -> dict[str, Entry]:
        """Return the entries by printed path, which is the same for the same file of two environments.

        The directories above the prefix are left out.
        """
        above = f"{self.root}/"
        return {
            self.shown(path): entry
            for path, entry in self.tree.entries.items()
            if entry.kind != "dir" or not above.startswith(f"{path}/")
        }

    def owner(self, shown: str) -> str:
        return self.owners.of(self._in_image(shown))

    def _in_image(self, shown: str) -> str:
        return shown[1:] if shown.startswith("/") else f"{self.root}/{shown}"

    def contents(self, paths: Collection[str]) -> dict[str, bytes]:
        contents = self.tree.contents(set(map(self._in_image, paths)))
        return {self.shown(path): data for path, data in contents.items()}


def differences(part: TreeName, left: Side, right: Side, store: Store) -> tuple[Difference, ...]:
    """Return the paths of a tree that differ. Raises `ArtifactError` if a tree is damaged, or its paths are not known."""
    old, new = (_Tree(side, part, store) for side in (left, right))
    found = changes(old.listing(), new.listing())
    if part != "overlay":
        return tuple(_difference(part, change) for change in found)
    moved = _same_but_prefix(found, old, new)
    rows = (
        _overlay_difference(change, old.owner(change.path), new.owner(change.path), moved=change.path in moved)
        for change in found
    )
    return tuple(row for row in rows if (row.left or "removed") != (row.right or "removed"))


def build_differences(left: Wheel, right: Wheel, old: Identity, new: Identity, store: Store) -> tuple[Difference, ...] | None:
    """Return the files that differ between two wheels of the same version; None if the store does not know both."""
    was, now = _wheel_entries(left, old, store), _wheel_entries(right, new, store)
    if was is None or now is None:
        return None
    level = level_of(left.name)
    old_root, new_root = (inside(root_of(identity.layout_of(wheel))) + "/" for identity, wheel in ((old, left), (new, right)))
    found = changes(
        {path.removeprefix(old_root): entry for path, entry in was.items()},
        {path.removeprefix(new_root): entry for path, entry in now.items()},
    )
    return tuple(
        Difference(level, change.path, describe(change.left), describe(change.right), _why(change), left.name)
        for change in found
        if not change.path.endswith(".dist-info/RECORD")  # it lists the files that differ
    )


def _difference(part: TreeName, change: Change) -> Difference:
    return Difference(LEVEL[part], change.path, describe(change.left), describe(change.right), _why(change), part)


def _overlay_difference(change: Change, old_owner: str, new_owner: str, *, moved: bool) -> Difference:
    """Describe a difference of two overlays as a difference of the environments, which have the files of the wheels too."""
    old_owner, new_owner = old_owner.partition("@")[0], new_owner.partition("@")[0]
    owner = old_owner or new_owner
    level: Level = level_of(owner) if owner else "files"
    left = _describe(change.left, old_owner, change.right, owner)
    right = _describe(change.right, new_owner, change.left, owner)
    why = "differs only in the prefix in the file" if moved else _why(change)
    return Difference(level, change.path, left, right, why, owner, moved=moved)


def _describe(entry: Entry | None, owner: str, other: Entry | None, either: str) -> str:
    """Describe what one side has at a path, where `other` is the entry of the other side.

    An overlay removes only paths that a lower layer has. So if the other side removes the path, and no wheel that is known
    installs it (`either`), then this side has it.
    """
    if entry is not None:
        return describe(entry)
    if owner:
        return f"as in {owner}"
    return "present" if _kind(other) == "gone" and not either else ""


def _why(change: Change) -> str:
    name = change.path.rpartition("/")[2]
    if name in _STARTUP_FILES or name.endswith(".pth"):
        return "read at every start of Python"
    if change.how == "mode":
        return "mode"
    return "of another type" if change.how == "kind" and "gone" not in (_kind(change.left), _kind(change.right)) else ""


def _kind(entry: Entry | None) -> str:
    return "" if entry is None else entry.kind


def _same_but_prefix(found: Iterable[Change], left: _Tree, right: _Tree) -> set[str]:
    """Return the paths of changed files that differ only in the prefix in them."""
    old, new = left.prefix, right.prefix
    paths = [change.path for change in found if change.how == "content"]
    if old == new or not old or not new or not paths:
        return set()
    was, now = left.contents(paths), right.contents(paths)
    return {path for path in was.keys() & now.keys() if mask_prefix(was[path], old) == mask_prefix(now[path], new)}


def mask_prefix(data: bytes, prefix: str) -> bytes:
    """Replace the prefix of an environment in the bytes of a file, and the name of its directory in a shell prompt."""
    name = prefix.rpartition("/")[2]
    return data.replace(prefix.encode(), b"<prefix>").replace(f"({name})".encode(), b"(<name>)")
