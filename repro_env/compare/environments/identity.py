"""Compare two environments by their identities, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from repro_env.compare.environments import numerics
from repro_env.compare.environments.difference import Difference, Level, compare_values
from repro_env.schema import codec
from repro_env.schema.artifact import CondaPackage, TreeBlob, Wheel
from repro_env.schema.environment import Layout
from repro_env.schema.spec import Identity, TreeName


class Pair(msgspec.Struct, frozen=True):
    """Two trees that differ. The caller compares their paths."""

    part: TreeName
    left: TreeBlob | None
    right: TreeBlob | None


_BY_PREFIX = "only the prefix differs"
LEVEL: Mapping[TreeName, Level] = {"base": "system", "unpackaged": "system", "interpreter": "interpreter", "overlay": "files"}


def pairs(left: Identity, right: Identity) -> tuple[Pair, ...]:
    """Return the trees that differ."""
    found = (Pair(part, old, right.trees[part]) for part, old in left.trees.items())
    return tuple(pair for pair in found if _digest(pair.left) != _digest(pair.right))


def artifacts(left: Identity, right: Identity) -> Iterator[Difference]:
    """Compare platform, rules, interpreter, versions of distributions, conda packages and layout."""
    if left.platform != right.platform:
        yield Difference(
            "numerics", "platform", left.platform.architecture, right.platform.architecture, "different machine code"
        )
    if left.rules != right.rules:
        yield Difference("layout", "rules", _rules(left), _rules(right), "captured by another version")
    if left.interpreter.version != right.interpreter.version:
        yield Difference("numerics", "python", left.interpreter.version, right.interpreter.version)
    old, new = left.interpreter.executable, right.interpreter.executable
    if old != new and _is_moved(old, new, left, right):  # the interpreter of conda is in the environment itself
        yield Difference("layout", "interpreter", old, new, _BY_PREFIX, moved=True)
    elif old != new:
        yield Difference("interpreter", "executable", old, new)
    yield from _wheels(left, right)
    yield from _packages(left.packages, right.packages)
    yield from _layouts(left, right)
    if left.command != right.command:
        moved = _is_moved(left.command, right.command, left, right)
        yield Difference("layout", "command", left.command, right.command, _BY_PREFIX if moved else "", moved=moved)


def _wheels(left: Identity, right: Identity) -> Iterator[Difference]:
    """Compare distributions by their versions."""
    old, new = {wheel.key: wheel for wheel in left.distributions}, {wheel.key: wheel for wheel in right.distributions}
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was is None or now is None or was.version != now.version:
            wheel, identity = (was, left) if now is None else (now, right)
            if wheel is not None:
                yield Difference(
                    level=level_of(wheel.name),
                    what=_display_name(wheel, identity),
                    left=was.version if was else "",
                    right=now.version if now else "",
                )


def different_builds(left: Identity, right: Identity) -> Iterator[tuple[Wheel, Wheel]]:
    """Yield the distributions with the same version, but different wheels."""
    old = {wheel.key: wheel for wheel in left.distributions}
    for now in right.distributions:
        was = old.get(now.key)
        if was is not None and was.version == now.version and was.sha256 != now.sha256:
            yield was, now


def build_difference(old: Wheel, new: Wheel, identity: Identity) -> Difference:
    """Return the difference for an item of `different_builds`. `identity`: the identity with `new`."""
    why = "another build of the same version"
    return Difference(level=level_of(new.name), what=_display_name(new, identity), left=_wheel(old), right=_wheel(new), why=why)


def _display_name(wheel: Wheel, identity: Identity) -> str:
    """Return the name of a distribution, and its site directory if this is not the environment's own."""
    return f"{wheel.name} in {identity.layout_of(wheel).prefix}" if wheel.site else wheel.name


def level_of(name: str) -> Level:
    """Return the level of a difference in a distribution."""
    return "numerics" if numerics.distribution(name) else "distributions"


def versions(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[Difference]:
    """Compare versions of distributions by name."""
    return compare_values(left, right, level_of)


def _packages(left: Iterable[CondaPackage], right: Iterable[CondaPackage]) -> Iterator[Difference]:
    old, new = {package.name: package for package in left}, {package.name: package for package in right}
    for difference in compare_values(
        old, new, _level_of_package, "conda package", describe=_conda, key=lambda package: package.sha256
    ):
        same = difference.left == difference.right
        yield msgspec.structs.replace(difference, why="conda package, same build with different bytes") if same else difference


def _level_of_package(name: str) -> Level:
    return "numerics" if name == "python" else level_of(name)


def _layouts(left: Identity, right: Identity) -> Iterator[Difference]:
    if left.layout.prefix != right.layout.prefix:
        why = "the path that sys.prefix and __file__ show"
        yield Difference("layout", "prefix", left.layout.prefix, right.layout.prefix, why, moved=True)
    if _scheme(left.layout) != _scheme(right.layout):
        yield Difference(
            "layout", "install scheme", _scheme(left.layout), _scheme(right.layout), "packages are in other directories"
        )
    if left.other_layouts != right.other_layouts:
        yield Difference(
            "layout",
            "site directories",
            ", ".join(layout.prefix for layout in left.other_layouts),
            ", ".join(layout.prefix for layout in right.other_layouts),
            "further directories from which packages are imported",
        )


def settings(left: Identity, right: Identity) -> tuple[Difference, ...]:
    """Compare the variables that the images set."""
    old = {variable.name: variable.value for variable in left.config.env}
    new = {variable.name: variable.value for variable in right.config.env}
    return (*variables(old, new), *_path_variables(old, new, left.layout.prefix, right.layout.prefix))


def variables(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[Difference]:
    """Compare the variables that can change numbers."""
    for difference in compare_values(left, right, "numerics", "variable that can change numbers"):
        if difference.what not in numerics.PATH_VARIABLES:
            yield difference


def _path_variables(left: Mapping[str, str], right: Mapping[str, str], old: str, new: str) -> Iterator[Difference]:
    """Compare the variables with paths. `old` and `new`: the prefixes."""
    for name in sorted(numerics.PATH_VARIABLES & (left.keys() | right.keys())):
        was, now = left.get(name, ""), right.get(name, "")
        if was != now:
            moved = bool(was and old) and was.replace(old, new) == now
            yield Difference("layout", name, was, now, _BY_PREFIX if moved else "variable of the image", moved=moved)


def _is_moved(old: str, new: str, left: Identity, right: Identity) -> bool:
    """Whether two paths are equal relative to the prefixes."""
    return old.replace(left.layout.prefix + "/", right.layout.prefix + "/", 1) == new


def _wheel(wheel: Wheel) -> str:
    return f"{wheel.version} ({wheel.filename}, sha256 {wheel.sha256.removeprefix('sha256:')[:12]})"


def _conda(package: CondaPackage) -> str:
    return f"{package.version} {package.build} ({package.subdir})"


def _scheme(layout: Layout) -> str:
    """Format a layout without its prefix."""
    text = ", ".join(f"{name} {value}" for name, value in msgspec.structs.asdict(layout).items() if name != "prefix")
    return text.replace(layout.prefix + "/", "")


def _rules(identity: Identity) -> str:
    return codec.canonical(identity.rules).decode()


def _digest(tree: TreeBlob | None) -> str:
    return "" if tree is None else tree.sha256
