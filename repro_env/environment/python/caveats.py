"""Warn about what a run of the captured environment may miss or do differently: one line for each thing that was found.

Examples are code with paths of this machine, scripts that start a program that the image does not have, and bytecode that
Python runs without checking it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from repro_env.environment.live import LiveEnvironment, Request
from repro_env.environment.python.externalpaths import on_host, system_paths
from repro_env.environment.python.sites import Site, with_prefix
from repro_env.environment.system.programs import script_interpreter
from repro_env.environment.system.tree import Tree, list_names, real, within
from repro_env.io.files import Found, key_of, read_head
from repro_env.oci.paths import inside
from repro_env.schema import redact
from repro_env.schema.environment import Layout
from repro_env.schema.messages import shorten
from repro_env.store.facts import FactCache
from repro_env.store.hashes import FileFacts

_UNCHECKED = (1).to_bytes(4, "little")
"""Flags of a .pyc file with an unchecked hash of its source (PEP 552)."""
_POSITION = re.compile(rb"sys\.path\.insert\(\s*-?[1-9]")
_LOADER = re.compile(r".+/_[^/]*editable[^/]*\.py")
_REBUILDS = re.compile(rb"^class MesonpyMetaFinder|^install\(.*, ['\"][^'\"]+['\"], True, ", re.MULTILINE)
"""Loaders of meson-python, and of scikit-build-core with `editable.rebuild`."""
_PATH = re.compile(rb"""["'](/[^"'\\\n\0{}%*]+)["']""")
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
_MAX_SIZE = 1 << 20
"""Bytes; larger files are considered data."""


def of_environment(request: Request, live: LiveEnvironment, overlay: Tree | None) -> Iterator[str]:
    """Yield a line for each thing about the environment that is not known, cannot be captured, or may surprise the user."""
    for site in live.sites:
        yield from with_prefix(site, site.scanned.problems)
    yield from live.system.unknown
    yield from map(redact.line, live.unknown)
    yield from system_paths(live.startup, live.sites)
    if live.startup.problem:
        yield f"Python did not start properly: {live.startup.problem}"
    path = request.environ.get("PYTHONPATH", "")
    if path and any(not part.startswith("/") for part in path.split(":")):
        yield "PYTHONPATH has a relative or empty entry; a run uses such entries from its own PYTHONPATH, within the source"
    for site in live.sites:
        yield from of_site(site.layout, site.found, live.facts.interpreter.cache_tag, request.store.facts)
    yield from (external_path.excluded for external_path in live.external if external_path.excluded)
    yield from _referenced_paths(overlay, live, request.workspace)
    yield from _missing_programs(live)


def of_site(layout: Layout, found: Sequence[Found], cache_tag: str, facts: FactCache) -> tuple[str, ...]:
    """Return warnings for the user. `found`: the listing of the prefix, without bytecode."""
    prefix = Path(layout.prefix)
    sites = {layout.purelib, layout.platlib}
    files = [entry.path for entry in found if entry.kind == "file"]
    unchecked = _unchecked(prefix, [path for path in files if path.endswith(".py")], cache_tag, facts)
    lines = [
        f"{path} inserts a directory at a fixed position of sys.path, so the order may differ in the image"
        for path in files
        if path.endswith(".pth") and path.rpartition("/")[0] in sites and _contains(prefix / path, _POSITION)
    ]
    if unchecked:
        lines.append(
            f"Python runs bytecode of {shorten(unchecked)} here without checking the source "
            "(unchecked hash); the image runs the source"
        )
    lines += [
        f"{path} rebuilds the project at every import, but a run has no build tools; install the project without --editable"
        for path in sorted(files)
        if _LOADER.fullmatch(path) and _contains(prefix / path, _REBUILDS)
    ]
    return tuple(redact.line(line) for line in lines)


def _unchecked(prefix: Path, paths: Iterable[str], cache_tag: str, facts: FactCache) -> list[str]:
    """Return the modules whose bytecode Python does not compare with its source, sorted."""
    names = functools.cache(lambda directory: frozenset(list_names(directory)))
    kept = FileFacts[bool](facts, "unchecked-bytecode", os.fsencode(prefix).hex(), bool, _is_unchecked)
    unchecked = []
    for path in paths:
        directory, _, name = f"{prefix}/{path}".rpartition("/")
        compiled = f"{name[:-3]}.{cache_tag}.pyc"
        if compiled in names(f"{directory}/__pycache__"):
            with contextlib.suppress(OSError):  # removed meanwhile
                file = f"{directory}/__pycache__/{compiled}"
                unchecked += [path] * kept.of(key_of(os.lstat(file)), file)
    kept.save()
    return sorted(unchecked)


def _is_unchecked(path: str) -> bool:
    return read_head(path, 8)[4:] == _UNCHECKED


def _contains(path: Path, pattern: re.Pattern[bytes]) -> bool:
    return pattern.search(read_head(path, 1 << 20)) is not None


def _referenced_paths(overlay: Tree | None, live: LiveEnvironment, workspace: Path) -> Iterator[str]:
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
    for file, path in _constants(overlay, live.sites):
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


def _constants(overlay: Tree, sites: Sequence[Site]) -> Iterator[tuple[str, str]]:
    """Yield (file on this machine, absolute path quoted in it)."""
    for entry in overlay.entries:
        if entry.kind == "file" and entry.path.endswith(".py") and entry.size <= _MAX_SIZE:
            file = on_host(entry.path, sites)
            paths = {os.fsdecode(found[1]) for found in _PATH.finditer(read_head(file, _MAX_SIZE))}
            yield from ((str(file), os.path.normpath(path)) for path in paths if path.isprintable())


def _missing_programs(live: LiveEnvironment) -> Iterator[str]:
    """A line for each program that scripts of the environment start by their first line and that the image does not have."""
    image_paths = live.lower_entries
    own = [directory for site in live.sites for directory in (str(site.prefix), real(str(site.prefix)))]
    starting: dict[str, list[str]] = {}
    broken: dict[str, list[str]] = {}
    for site in live.sites:
        directory = site.prefix / site.layout.scripts
        for file in site.found:
            if file.kind != "file" or not file.executable or file.path.rpartition("/")[0] != site.layout.scripts:
                continue
            program = script_interpreter(str(site.prefix / file.path))
            if program and not os.path.exists(program):  # noqa: PTH110
                broken.setdefault(program, []).append(file.path)
            elif not program or within(program, own) or (directory / Path(program).name).exists():
                continue
            elif inside(real(program)) not in image_paths:
                starting.setdefault(program, []).append(file.path)
    for program, scripts in sorted(broken.items()):
        yield redact.line(
            f"{shorten(sorted(scripts))}: the first line names {program}, which exists neither here nor in a run; "
            "if the environment was moved, make it again where it is now"
        )
    for program, scripts in sorted(starting.items()):
        verb = "starts" if len(scripts) == 1 else "start"
        yield redact.line(
            f"{shorten(sorted(scripts))} {verb} {program}, which is not in the image: capture with --with {program}"
        )
