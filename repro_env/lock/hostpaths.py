"""Paths of this machine that the environment names but the image lacks: paths in its code, programs that its scripts start."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro_env.base.programs import interpreter
from repro_env.base.tree import Tree, real, within
from repro_env.image.layout import inside
from repro_env.lock.live import Live
from repro_env.lock.outside import on_host
from repro_env.lock.places import Place
from repro_env.model import codec, redact
from repro_env.store.store import Store

_PATH = re.compile(rb"""["'](/[^"'\\\n\0{}%*]+)["']""")
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
_LARGE = 1 << 20
"""Bytes: a larger file is data."""
_SHOWN = 3


def folders(rest: Tree | None, live: Live, workspace: Path, store: Store) -> Iterator[str]:
    """A line for each absolute path that unpackaged code names, that exists here, and that a run would not have.

    Packaged code is skipped: it is the same on every machine. `rest` is the overlay.
    """
    if rest is None:
        return
    held = {f"/{entry.path}" for entry in rest.entries} | {f"/{path}" for path in live.held}
    own = [str(workspace), *(str(place.prefix) for place in live.places), *(str(one.root) for one in live.outside)]
    own += [real(one) for one in own]
    naming: dict[str, list[str]] = {}
    for file, path in _constants(rest, live.places, store):
        if not within(path, (*_SYSTEM, *own)) and path not in held and real(path) not in held and _is_far(path):
            naming.setdefault(path, []).append(file)
    for path in sorted(naming):
        files = sorted(set(naming[path]))
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        yield redact.line(
            f"{', '.join(files[:_SHOWN])}{more} names {path}, which is on this machine but not in the image: "
            f"give it to runs with --data {path}"
        )


def _is_far(path: str) -> bool:
    """Whether the path exists and is not a directory that every machine has."""
    return path.count("/") > 1 and path != str(Path.home()) and os.path.exists(path)  # noqa: PTH110


def _constants(rest: Tree, places: Sequence[Place], store: Store) -> list[tuple[str, str]]:
    """(file on this machine, absolute path in quotes in it); cached until a file changes."""
    code = [one for one in rest.entries if one.kind == "file" and one.path.endswith(".py") and one.size <= _LARGE]
    key = codec.digest([(one.path, one.sha256) for one in code])
    known = store.facts.recall("named", key, list[tuple[str, str]])
    if known is None:
        known = [(str(file), path) for file in (on_host(one.path, places) for one in code) for path in dict.fromkeys(_in(file))]
        store.facts.put("named", key, codec.canonical(known))
    return known


def _in(file: Path) -> Iterator[str]:
    try:
        text = file.read_bytes()
    except OSError:
        return
    for found in _PATH.finditer(text):
        path = os.fsdecode(found[1])
        if path.isprintable():
            yield os.path.normpath(path)


def programs(live: Live) -> Iterator[str]:
    """A line for each program that scripts of the environment name in their first line and that the image does not have."""
    held = live.held
    own = [folder for place in live.places for folder in (str(place.prefix), real(str(place.prefix)))]
    starting: dict[str, list[str]] = {}
    for place in live.places:
        folder = place.prefix / place.layout.scripts
        for one in place.found:
            if one.kind != "file" or not one.executable or one.path.rpartition("/")[0] != place.layout.scripts:
                continue
            program = interpreter(str(place.prefix / one.path))
            if not program or within(program, own) or (folder / Path(program).name).exists():
                continue
            if inside(real(program)) not in held:
                starting.setdefault(program, []).append(one.path)
    for program, scripts in sorted(starting.items()):
        more = f" and {len(scripts) - _SHOWN} more" if len(scripts) > _SHOWN else ""
        verb = "starts" if len(scripts) == 1 else "start"
        yield redact.line(
            f"{', '.join(sorted(scripts)[:_SHOWN])}{more} {verb} {program}, which is not in the image: capture with --with {program}"
        )
