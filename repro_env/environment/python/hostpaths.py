"""Find paths of this machine that the environment refers to but that the image lacks: in its code and in its scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro_env.environment.live import LiveEnvironment
from repro_env.environment.python.externalpaths import on_host
from repro_env.environment.python.sites import Site
from repro_env.environment.system.programs import script_interpreter
from repro_env.environment.system.tree import Tree, real, within
from repro_env.io.files import read_head
from repro_env.oci.paths import inside
from repro_env.schema import codec, redact
from repro_env.schema.messages import shorten
from repro_env.store.store import Store

_PATH = re.compile(rb"""["'](/[^"'\\\n\0{}%*]+)["']""")
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
_MAX_SIZE = 1 << 20
"""Bytes; larger files are considered data."""


def referenced_paths(overlay: Tree | None, live: LiveEnvironment, workspace: Path, store: Store) -> Iterator[str]:
    """A line for each absolute path that unpackaged code refers to, that exists here, and that a run would not have.

    Packaged code is skipped: it is the same on every machine.
    """
    if overlay is None:
        return
    image_paths = {f"/{entry.path}" for entry in overlay.entries} | {f"/{path}" for path in live.lower_entries}
    own = [
        str(workspace),
        *(str(site.prefix) for site in live.sites),
        *(str(external_path.root) for external_path in live.external),
    ]
    own += [real(directory) for directory in own]
    naming: dict[str, list[str]] = {}
    for file, path in _constants(overlay, live.sites, store):
        if not within(path, (*_SYSTEM, *own)) and path not in image_paths and real(path) not in image_paths and _is_far(path):
            naming.setdefault(path, []).append(file)
    for path in sorted(naming):
        yield redact.line(
            f"{shorten(sorted(set(naming[path])))} refers to {path}, which is on this machine but not in the image: "
            f"provide it to runs with --data {path}"
        )


def _is_far(path: str) -> bool:
    """Whether the path exists and is not a directory that every machine has."""
    return path.count("/") > 1 and path != str(Path.home()) and os.path.exists(path)  # noqa: PTH110


def _constants(overlay: Tree, sites: Sequence[Site], store: Store) -> list[tuple[str, str]]:
    """(file on this machine, absolute path quoted in it); cached until a file changes."""
    code = [entry for entry in overlay.entries if entry.kind == "file" and entry.path.endswith(".py") and entry.size <= _MAX_SIZE]
    key = codec.digest([(entry.path, entry.sha256) for entry in code])
    cached = store.facts.recall("named", key, list[tuple[str, str]])
    if cached is None:
        cached = [
            (str(file), path) for file in (on_host(entry.path, sites) for entry in code) for path in dict.fromkeys(_in(file))
        ]
        store.facts.put("named", key, codec.canonical(cached))
    return cached


def _in(file: Path) -> Iterator[str]:
    for found in _PATH.finditer(read_head(file, _MAX_SIZE)):
        path = os.fsdecode(found[1])
        if path.isprintable():
            yield os.path.normpath(path)


def missing_programs(live: LiveEnvironment) -> Iterator[str]:
    """A line for each program that scripts of the environment start by their first line and that the image does not have."""
    image_paths = live.lower_entries
    own = [directory for site in live.sites for directory in (str(site.prefix), real(str(site.prefix)))]
    starting: dict[str, list[str]] = {}
    for site in live.sites:
        directory = site.prefix / site.layout.scripts
        for file in site.found:
            if file.kind != "file" or not file.executable or file.path.rpartition("/")[0] != site.layout.scripts:
                continue
            program = script_interpreter(str(site.prefix / file.path))
            if not program or within(program, own) or (directory / Path(program).name).exists():
                continue
            if inside(real(program)) not in image_paths:
                starting.setdefault(program, []).append(file.path)
    for program, scripts in sorted(starting.items()):
        verb = "starts" if len(scripts) == 1 else "start"
        yield redact.line(
            f"{shorten(sorted(scripts))} {verb} {program}, which is not in the image: capture with --with {program}"
        )
