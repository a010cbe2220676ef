"""Libraries of this machine that Python code opens at run time (`capture.dlopen`), by the rules of the loader and ctypes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.base import closure, libpath
from repro_env.base.closure import Loader
from repro_env.base.libpath import LibPath
from repro_env.base.tree import real, within
from repro_env.capture import dlopen
from repro_env.capture.dlopen import Call
from repro_env.capture.frameworks import is_driver
from repro_env.io.files import Found, fingerprint
from repro_env.io.hashes import settled
from repro_env.lock.outside import Outside
from repro_env.lock.places import Place
from repro_env.model import codec
from repro_env.store.store import Store

_SHOWN = 5
_DEEP = 4
"""Leading parts of a path that make one cached unit: `lib/python3.11/site-packages/torch`."""


class Opened(msgspec.Struct, frozen=True):
    libraries: tuple[str, ...] = ()
    """Absolute paths as the loader spells them, sorted."""
    unknown: tuple[str, ...] = ()
    """One line for each library that cannot be determined or held."""


def of_environment(
    program: str, places: Sequence[Place], beside: Sequence[Outside], environ: Mapping[str, str], store: Store
) -> Opened:
    """The libraries that the code of the environment opens; `program` is the binary that runs it."""
    path = libpath.read(environ)
    loader = closure.host(path.folders)
    found: set[str] = set()
    unknown: list[str] = []
    for root, files, is_packaged in (
        *((place.prefix, place.found, _packaged(place)) for place in places),
        *((one.root, one.found, _nothing) for one in beside),
    ):
        libraries, lines = _resolve(_calls(root, files, store), root, loader, program, path, is_packaged)
        found |= set(libraries)
        unknown += lines
    return Opened(tuple(sorted(found)), tuple(unknown))


def of_source(root: Path, files: Sequence[Found], environ: Mapping[str, str], store: Store, apart: Iterable[Path]) -> Opened:
    """What the code of the source opens outside of itself and the folders `apart`, and this very Python has not loaded itself."""
    path = libpath.read(environ)
    loader, program = closure.host(path.folders), real(sys.executable)
    found, unknown = _resolve(_calls(root, files, store), root, loader, program, path, _nothing)
    usual = {real(one) for one in closure.close([program], loader, program=program).libraries}
    inside = [*map(str, apart), str(root)]
    inside += [real(one) for one in inside]
    return Opened(
        tuple(
            one
            for one in sorted(found)
            if real(one) not in usual and not is_driver(one) and not within(one, inside) and not within(real(one), inside)
        ),
        tuple(unknown),
    )


def _calls(root: Path, found: Sequence[Found], store: Store) -> list[Call]:
    """The calls, cached by directory, so that one changed file does not require reading all of PyTorch again."""
    groups: dict[str, list[Found]] = {}
    for one in found:
        if one.path.endswith(".py"):
            groups.setdefault("/".join(one.path.split("/")[:_DEEP]), []).append(one)
    known = store.facts.recall("dlopen", str(root), dict[str, tuple[Call, ...]]) or {}
    calls: dict[str, tuple[Call, ...]] = {}
    fresh: dict[str, tuple[Call, ...]] = {}
    for group in groups.values():
        key = fingerprint(group)
        calls[key] = known[key] if key in known else dlopen.calls(root, group)
        if key in known or settled(group):
            fresh[key] = calls[key]
    if fresh.keys() != known.keys():
        store.facts.put("dlopen", str(root), codec.canonical(fresh))
    return [call for one in calls.values() for call in one]


def _nothing(path: str) -> bool:  # noqa: ARG001
    return False


def _packaged(place: Place) -> Callable[[str], bool]:
    """Whether an installed distribution lists a file: the name that it computes is the same wherever the distribution is."""
    sites = [(f"{one.facts.site}/", one.record) for one in place.scanned.distributions if not one.facts.editable]
    return lambda path: any(path.startswith(site) and f"{path[len(site) :]},".encode() in record for site, record in sites)


def _resolve(
    calls: Sequence[Call], root: Path, loader: Loader, program: str, path: LibPath, is_packaged: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """(the libraries that the calls find here, a line for each one that cannot be determined).

    A name that is found nowhere is ignored: the code works without it on this machine too.
    """
    found: list[str] = []
    computed: list[str] = []
    unknown: list[str] = []
    for call in calls:
        place = f"{root / call.path}:{call.line}"
        if call.is_computed and not is_packaged(call.path):
            computed.append(place)
        for name in call.names:
            libraries = _found(call, name, root, loader, program)
            found += libraries
            if call.search and not libraries and (there := _by_linker(name, path)):
                unknown.append(
                    f"{place} searches for the library {name}: on this machine a compiler or linker may find {there}, and a run has neither"
                )
    if computed:
        more = f" and {len(computed) - _SHOWN} more" if len(computed) > _SHOWN else ""
        unknown.append(
            f"{', '.join(computed[:_SHOWN])}{more}: the library that this code opens is known only when the code runs; "
            "to hold a library outside the environment, capture with --with LIBRARY"
        )
    return found, unknown


def _found(call: Call, name: str, root: Path, loader: Loader, program: str) -> list[str]:
    if call.search:
        return loader.search(name, program)
    if "/" not in name:
        return loader.find(name, program, ())
    # A relative path depends on the working directory; the project's is the most likely one.
    path = name if name.startswith("/") else str(root / name)
    return [path] if "\0" not in path and loader.facts(path) is not None else []


def _by_linker(name: str, path: LibPath) -> str:
    """The path that `ld -l`, the last method of `find_library`, finds in LD_LIBRARY_PATH; empty for none."""
    places = (f"{folder}/lib{name}.so" for folder in path.folders)
    return next((place for place in places if Path(place).is_file()), "")
