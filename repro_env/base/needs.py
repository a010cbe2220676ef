"""Which libraries are loaded from outside the environment and the interpreter, and how each is found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.base import closure, interpreter
from repro_env.base.ldcache import Library
from repro_env.base.libpath import LibPath
from repro_env.base.tree import real, within
from repro_env.capture.frameworks import is_driver
from repro_env.model.environment import Interpretation


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded from outside the environment and the interpreter."""

    loader: closure.Loader
    path: LibPath
    held: tuple[str, ...]
    """Folders whose files travel in other layers."""
    starts: tuple[str, ...]
    loaded: Mapping[str, str]
    """Names of libraries that the process has from elsewhere, as `closure.close` takes them."""
    spelled: tuple[str, ...]
    """As the loader spells them."""
    libraries: frozenset[str]
    """Real paths, found by the loader's rules."""
    mapped: frozenset[str]
    """Real paths that were mapped at start-up, but which the rules do not lead to (dlopen by path, or by a name found nowhere)."""
    drivers: frozenset[str]
    """Real paths of the GPU driver's, which are not captured."""
    found: Mapping[tuple[str, str], str]
    """As `Closure.found`."""
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


def needs(
    facts: Interpretation, mapped: Sequence[str], own: Sequence[str], programs: Sequence[str], path: LibPath, held: Sequence[str]
) -> Needs:
    """`mapped`: libraries that Python was seen to load; `own`: the environment's libraries; `programs`: files of `--with`; `held`: folders whose files travel in other layers."""
    python = facts.interpreter
    loader = closure.host(path.folders)
    parts = interpreter.binaries(python)
    themselves = {real(part) for part in parts}
    unknown, notes = [*path.ignored], []
    preload = []
    for name in path.preload:
        places = [name] if name.startswith("/") and Path(name).is_file() else loader.find(name, python.executable, ())
        preload += places[:1]
        if not places:
            unknown.append(f"{name} is to be preloaded and is not on this machine")
        else:
            unknown.append(f"{places[0]} is preloaded here (LD_PRELOAD); a run has it, and does not preload it by itself")
    loaded: dict[str, str] = {}
    for one in (*mapped, *own):
        told = loader.facts(one)
        for name in (one.rpartition("/")[2], told.soname if told else ""):
            if name:
                loaded[name] = "" if within(one, held) or within(real(one), held) else one
    starts = (*parts, *mapped, *own, *programs, *preload)
    closed = closure.close(starts, loader, program=python.executable, loaded=loaded)

    unknown += closed.damaged
    spelled: list[str] = []
    libraries: set[str] = set()
    unruled: set[str] = set()
    drivers: set[str] = set()
    for one in (*closed.libraries, *closed.interpreters, *mapped, *preload):
        at = real(one)
        if at in themselves or within(one, held) or within(at, held):
            continue
        if is_driver(one) or is_driver(at):
            notes.append(f"{one} belongs to the GPU driver and is not captured: a run takes its own machine's")
            drivers.add(at)
        elif not Path(at).is_file():
            unknown.append(f"{one} is loaded and is not on this machine")
        else:
            spelled.append(one)
            libraries.add(at)
            if one in mapped or one in preload:
                unruled.add(at)
    ruled = {real(one) for one in (*closed.libraries, *closed.interpreters)}
    asking: dict[tuple[str, bool], list[str]] = {}
    for missing in closed.missing:
        asking.setdefault((missing.by, is_driver(missing.name)), []).append(missing.name)
    for (by, driver), names in asking.items():
        line = f"{', '.join(names)}, needed by {by}, {'is' if len(names) == 1 else 'are'} not on this machine"
        (notes if driver else unknown).append(line)
    return Needs(
        loader=loader,
        path=path,
        held=tuple(held),
        starts=starts,
        loaded=loaded,
        spelled=tuple(sorted(spelled)),
        libraries=frozenset(libraries & ruled),
        mapped=frozenset(unruled - ruled),
        drivers=frozenset(drivers),
        found=closed.found,
        unknown=tuple(unknown),
        notes=tuple(notes),
    )


def elsewhere(facts: Interpretation) -> list[str]:
    """Folders of the environment and the interpreter, as they are spelled and as they are."""
    layout, python = facts.layout, facts.interpreter
    found = [python.stdlib, python.platstdlib]
    if facts.is_venv or layout.prefix not in interpreter.SHARED:
        found.append(layout.prefix)
    else:
        found += [f"{layout.prefix}/{site}" for site in (layout.purelib, layout.platlib)]
    if own := interpreter.own_prefix(facts):
        found.append(own)
    return [*found, *map(real, found)]


def differing(asked: Needs, program: str, cache: Iterable[Library]) -> tuple[str, ...]:
    """Libraries that are found elsewhere once LD_LIBRARY_PATH is gone and this cache is the loader's. One line each, sorted."""
    inside = closure.close(asked.starts, closure.Loader(cache), program=program, loaded=asked.loaded)
    lines = set()
    for (by, name), here in asked.found.items():
        there = inside.found.get((by, name), "")
        if (by, name) in inside.found and real(there) != real(here):
            lines.add(f"{name}, needed by {by}: here LD_LIBRARY_PATH leads to {here}, in a run it is {there}")
    gone = {(one.name, one.by) for one in inside.missing}
    lines |= {f"{name}, needed by {by}: LD_LIBRARY_PATH leads to {asked.found[by, name]}, and nothing does in a run"
              for name, by in gone if (by, name) in asked.found}  # fmt: skip
    return tuple(sorted(lines))
