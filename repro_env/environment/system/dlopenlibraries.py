"""Find libraries of this machine that Python code opens at run time (`environment.python.dlopencalls`), by the rules of the loader and ctypes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.machine.frameworks import is_driver
from repro_env.environment.python import dlopencalls
from repro_env.environment.python.dlopencalls import Call
from repro_env.environment.python.externalpaths import ExternalPath
from repro_env.environment.python.sites import Site
from repro_env.environment.system import loader as systemloader
from repro_env.environment.system.loader import Loader
from repro_env.environment.system.tree import real, within
from repro_env.io.files import Found, fingerprint
from repro_env.io.hashes import settled
from repro_env.schema import codec
from repro_env.schema.messages import shorten
from repro_env.store.store import Store

_MAX_NAMES = 5
_MAX_DEPTH = 4
"""Leading parts of a path that are cached together: `lib/python3.11/site-packages/torch`."""


class Opened(msgspec.Struct, frozen=True):
    libraries: tuple[str, ...] = ()
    """Absolute paths as the loader spells them, sorted."""
    unknown: tuple[str, ...] = ()
    """One line for each library that cannot be determined or captured."""


def of_environment(
    program: str, sites: Sequence[Site], external_paths: Sequence[ExternalPath], environ: Mapping[str, str], store: Store
) -> Opened:
    """The libraries that the code of the environment opens; `program` is the binary that runs it."""
    loader = systemloader.host(environ)
    found: set[str] = set()
    unknown: list[str] = []
    for root, files, is_packaged in (
        *((site.prefix, site.found, _packaged_check(site)) for site in sites),
        *((external_path.root, external_path.found, _nothing) for external_path in external_paths),
    ):
        libraries, lines = _resolve(_calls(root, files, store), root, loader, program, is_packaged)
        found |= set(libraries)
        unknown += lines
    return Opened(tuple(sorted(found)), tuple(unknown))


def of_source(
    root: Path, files: Sequence[Found], environ: Mapping[str, str], store: Store, other_directories: Iterable[Path]
) -> Opened:
    """The libraries that the source's code opens.

    Those in the source or in `other_directories`, and those that this Python has loaded, are left out.
    """
    loader, program = systemloader.host(environ), real(sys.executable)
    found, unknown = _resolve(_calls(root, files, store), root, loader, program, _nothing)
    already_loaded = {real(library) for library in loader.resolve([program], program).libraries}
    own_directories = [*map(str, other_directories), str(root)]
    own_directories += [real(directory) for directory in own_directories]
    return Opened(
        tuple(
            library
            for library in sorted(found)
            if real(library) not in already_loaded
            and not is_driver(library)
            and not within(library, own_directories)
            and not within(real(library), own_directories)
        ),
        tuple(unknown),
    )


def _calls(root: Path, files: Sequence[Found], store: Store) -> list[Call]:
    """The calls, cached by directory, so that one changed file does not require reading all of PyTorch again."""
    groups: dict[str, list[Found]] = {}
    for file in files:
        if file.path.endswith(".py"):
            groups.setdefault("/".join(file.path.split("/")[:_MAX_DEPTH]), []).append(file)
    cached = store.facts.recall("dlopen", str(root), dict[str, tuple[Call, ...]]) or {}
    calls: dict[str, tuple[Call, ...]] = {}
    fresh: dict[str, tuple[Call, ...]] = {}
    for group in groups.values():
        key = fingerprint(group)
        calls[key] = cached[key] if key in cached else dlopencalls.calls(root, group)
        if key in cached or settled(group):
            fresh[key] = calls[key]
    if fresh.keys() != cached.keys():
        store.facts.put("dlopen", str(root), codec.canonical(fresh))
    return [call for group_calls in calls.values() for call in group_calls]


def _nothing(path: str) -> bool:  # noqa: ARG001
    return False


def _packaged_check(site: Site) -> Callable[[str], bool]:
    """A function that tells whether a distribution lists a file.

    Names that packaged code computes do not depend on the machine.
    """
    records = [(f"{dist.facts.site}/", dist.record) for dist in site.scanned.distributions if not dist.facts.editable]
    return lambda path: any(
        path.startswith(directory) and f"{path[len(directory) :]},".encode() in record for directory, record in records
    )


def _resolve(
    calls: Sequence[Call], root: Path, loader: Loader, program: str, is_packaged: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """(the libraries that the calls find here, a line for each one that cannot be determined).

    A name that is found nowhere is ignored: the code works without it on this machine too.
    """
    libraries_found: list[str] = []
    computed: list[str] = []
    unknown: list[str] = []
    for call in calls:
        location = f"{root / call.path}:{call.line}"
        if call.is_computed and not is_packaged(call.path):
            computed.append(location)
        for name in call.names:
            libraries_found += _find(call, name, root, loader, program)
    if computed:
        unknown.append(
            f"{shorten(computed, _MAX_NAMES)}: the library that this code opens is known only when the code runs; "
            "to include a library outside the environment, capture with --with LIBRARY"
        )
    return libraries_found, unknown


def _find(call: Call, name: str, root: Path, loader: Loader, program: str) -> list[str]:
    if call.search:
        return loader.search(name, program)
    if "/" not in name:
        return loader.find(name, program, ())
    # A relative path depends on the working directory; the project's is the most likely one.
    path = name if name.startswith("/") else str(root / name)
    return [path] if "\0" not in path and loader.facts(path) is not None else []
