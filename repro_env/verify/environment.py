"""Are two environments the same, and if not, in what? Two identities, compared part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, get_args

import msgspec

from repro_env.model import codec
from repro_env.model.artifact import CondaPackage, TreeBlob, Wheel
from repro_env.model.environment import Layout
from repro_env.model.spec import Identity
from repro_env.verify import numerics
from repro_env.verify.difference import Difference, Level

Part = Literal["base", "unowned", "interpreter", "overlay"]
"""The trees of an identity, lowest first."""


class Pair(msgspec.Struct, frozen=True):
    """A tree that is another one on the other side: its paths have to be compared."""

    part: Part
    left: TreeBlob | None
    right: TreeBlob | None


_FOLLOWS = "follows from the prefix"
LEVEL: Mapping[Part, Level] = {"base": "system", "unowned": "system", "interpreter": "interpreter", "overlay": "files"}


def pairs(left: Identity, right: Identity) -> tuple[Pair, ...]:
    """The trees that differ."""
    return tuple(
        Pair(part, tree(left, part), tree(right, part))
        for part in get_args(Part)
        if _digest(tree(left, part)) != _digest(tree(right, part))
    )


def tree(identity: Identity, part: Part) -> TreeBlob | None:
    if part == "interpreter":
        return identity.interpreter.tree
    if part == "base":
        return identity.base
    return identity.unowned if part == "unowned" else identity.overlay


def artifacts(left: Identity, right: Identity) -> tuple[Difference, ...]:
    """Platform, rules, interpreter, distributions by version, conda packages and layout."""
    return tuple(_artifacts(left, right))


def _artifacts(left: Identity, right: Identity) -> Iterator[Difference]:
    if left.platform != right.platform:
        yield _plain("numerics", "platform", left.platform.architecture, right.platform.architecture, "other machine code")
    if left.rules != right.rules:
        yield _plain("layout", "rules", _rules(left), _rules(right), "captured by rules of another version")
    if left.interpreter.version != right.interpreter.version:
        yield _plain("numerics", "python", left.interpreter.version, right.interpreter.version)
    old, new = left.interpreter.executable, right.interpreter.executable
    if old != new and _moves(old, new, left, right):  # conda's lies in the environment itself
        yield _placed("interpreter", old, new, _FOLLOWS, moved=True)
    elif old != new:
        yield _plain("interpreter", "executable", old, new)
    yield from _wheels(left, right)
    yield from _packages(left.packages, right.packages)
    yield from _layouts(left, right)
    if left.command != right.command:
        moved = _moves(left.command, right.command, left, right)
        yield _placed("command", left.command, right.command, "" if not moved else _FOLLOWS, moved=moved)


def _wheels(left: Identity, right: Identity) -> Iterator[Difference]:
    """Distributions that are new, gone or of another version."""
    old, new = {one.key: one for one in left.distributions}, {one.key: one for one in right.distributions}
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was is None or now is None or was.version != now.version:
            one, identity = (was, left) if now is None else (now, right)
            if one is not None:
                yield Difference(
                    level=_level(one.name),
                    what=named(one, identity),
                    left=was.version if was else "",
                    right=now.version if now else "",
                )


def rebuilt(left: Identity, right: Identity) -> Iterator[tuple[Wheel, Wheel]]:
    """Distributions of the same version by another wheel."""
    old = {one.key: one for one in left.distributions}
    for now in right.distributions:
        was = old.get(now.key)
        if was is not None and was.version == now.version and was.sha256 != now.sha256:
            yield was, now


def build(old: Wheel, new: Wheel, identity: Identity) -> Difference:
    """What is said of one that is `rebuilt`. `identity`: the one that holds `new`."""
    why = "another build of the same version"
    return Difference(level=_level(new.name), what=named(new, identity), left=_wheel(old), right=_wheel(new), why=why)


def named(one: Wheel, identity: Identity) -> str:
    """A distribution as people know it: by its name, and by its place where it is not the environment's own."""
    return f"{one.name} in {identity.layout_of(one).prefix}" if one.place else one.name


def _level(name: str) -> Level:
    return "numerics" if numerics.distribution(name) else "distributions"


def versions(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[Difference]:
    """Distributions by name and version alone."""
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            yield Difference(level=_level(name), what=name, left=left.get(name, ""), right=right.get(name, ""))


def _packages(left: Iterable[CondaPackage], right: Iterable[CondaPackage]) -> Iterator[Difference]:
    old, new = {one.name: one for one in left}, {one.name: one for one in right}
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was is not None and now is not None and was.sha256 == now.sha256:
            continue
        level: Level = "numerics" if numerics.distribution(name) or name == "python" else "distributions"
        same = was is not None and now is not None and _conda(was) == _conda(now)
        why = "the same build, other bytes" if same else ""
        yield Difference(
            level=level, what=name, left=_conda(was), right=_conda(now), why=f"conda package{', ' if why else ''}{why}"
        )


def _layouts(left: Identity, right: Identity) -> Iterator[Difference]:
    if left.layout.prefix != right.layout.prefix:
        why = "Python starts from there: sys.prefix and __file__ show it"
        yield _placed("prefix", left.layout.prefix, right.layout.prefix, why, moved=True)
    if _scheme(left.layout) != _scheme(right.layout):
        yield _plain("layout", "install scheme", _scheme(left.layout), _scheme(right.layout), "packages lie in other folders")
    if left.others != right.others:
        yield _plain(
            "layout",
            "other places",
            ", ".join(one.prefix for one in left.others),
            ", ".join(one.prefix for one in right.others),
            "other folders that packages are imported from",
        )


def settings(left: Identity, right: Identity) -> tuple[Difference, ...]:
    """The variables that every run is given, and the master seed."""
    old = {one.name: one.value for one in left.config.env}
    new = {one.name: one.value for one in right.config.env}
    found = list(variables(old, new))
    found += places(old, new, left.layout.prefix, right.layout.prefix)
    if left.determinism != right.determinism:
        found.append(_plain("numerics", "seed", str(left.determinism.seed), str(right.determinism.seed), "master seed of runs"))
    return tuple(found)


def variables(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[Difference]:
    """Variables that change numbers."""
    for name in sorted((left.keys() | right.keys()) - numerics.VARIABLES_OF_PLACE):
        if left.get(name) != right.get(name):
            yield _plain("numerics", name, left.get(name, ""), right.get(name, ""), "variable that changes numbers")


def places(left: Mapping[str, str], right: Mapping[str, str], old: str, new: str) -> Iterator[Difference]:
    """Variables that say where things lie. `old` and `new`: the prefixes."""
    for name in sorted(numerics.VARIABLES_OF_PLACE & (left.keys() | right.keys())):
        was, now = left.get(name, ""), right.get(name, "")
        if was != now:
            moved = bool(was and old) and was.replace(old, new) == now
            yield _placed(name, was, now, _FOLLOWS if moved else "variable of the image", moved=moved)


def _moves(old: str, new: str, left: Identity, right: Identity) -> bool:
    """Whether two paths are the same one below either prefix."""
    return old.replace(left.layout.prefix + "/", right.layout.prefix + "/", 1) == new


def _plain(level: Level, what: str, left: str, right: str, why: str = "") -> Difference:
    return Difference(level=level, what=what, left=left, right=right, why=why)


def _placed(what: str, left: str, right: str, why: str, *, moved: bool) -> Difference:
    return Difference(level="layout", what=what, left=left, right=right, why=why, moved=moved)


def _wheel(one: Wheel) -> str:
    return f"{one.version} ({one.filename}, sha256 {one.sha256.removeprefix('sha256:')[:12]})"


def _conda(one: CondaPackage | None) -> str:
    return "" if one is None else f"{one.version} {one.build} ({one.subdir})"


def _scheme(one: Layout) -> str:
    """All of a layout but its prefix."""
    text = ", ".join(f"{name} {value}" for name, value in msgspec.structs.asdict(one).items() if name != "prefix")
    return text.replace(one.prefix + "/", "")


def _rules(identity: Identity) -> str:
    return codec.canonical(identity.rules).decode()


def _digest(one: TreeBlob | None) -> str:
    return "" if one is None else one.sha256
