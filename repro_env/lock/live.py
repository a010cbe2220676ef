"""What there is: the environment's places, the system below it, the machine, each as it was found. Decides nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import msgspec

from repro_env.base import fit, host, interpreter
from repro_env.base.tree import Tree, within
from repro_env.capture import distributions, frameworks, gpu, python, system
from repro_env.capture.distributions import Scan
from repro_env.image.entry import Entry
from repro_env.io.files import Found, fingerprint
from repro_env.io.hashes import settled
from repro_env.lock import dlopen, places
from repro_env.lock.outside import Outside, outside
from repro_env.lock.owners import Owners
from repro_env.lock.places import Place
from repro_env.model import codec
from repro_env.model.accelerator import Accelerators, Frameworks
from repro_env.model.environment import Carried, Host, Interpretation, Layout, SharedLibrary, Startup
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.base.pulled import Base


class Live(msgspec.Struct, frozen=True, kw_only=True):
    startup: Startup
    host: Host
    accelerators: Accelerators
    frameworks: Frameworks
    places: tuple[Place, ...]
    """The first is the environment itself."""
    base: Tree
    unowned: Tree | None
    interpreter: Tree | None
    """None where it is a package of the environment itself."""
    libraries: tuple[SharedLibrary, ...]
    carried: tuple[Carried, ...]
    """What belongs to no package of the system."""
    outside: tuple[Outside, ...]
    """What Python imports from elsewhere."""
    unknown: tuple[str, ...] = ()
    """One line for each library that the code opens and that cannot be determined."""

    @property
    def trees(self) -> tuple[Tree, ...]:
        """Those that are cut from the machine, the lowest first."""
        return tuple(tree for tree in (self.base, self.unowned, self.interpreter) if tree is not None)

    @property
    def held(self) -> dict[str, Entry]:
        """Their entries by path from the image's root."""
        return {entry.path: entry for tree in self.trees for entry in tree.entries}


class _Listed(msgspec.Struct, frozen=True):
    """A place before its files are hashed."""

    layout: Layout
    scanned: Scan
    found: tuple[Found, ...]
    state: str


def look(
    facts: Interpretation,
    scanned: Scan,
    environ: Mapping[str, str],
    *,
    packaged: Mapping[str, str],
    programs: Sequence[str],
    workspace: Path,
    store: Store,
    calm: Event | None = None,
    pulled: Base | None = None,
) -> Live:
    """Look at everything, each file once.

    `scanned`: the environment's own distributions; `packaged`: real path -> owner of what conda packages hold;
    `programs`: of `--with`; `workspace`: the source, which runs show at its own path; `pulled`: the base, where it is not cut from this machine.

    `calm` is set when the libraries that were loaded to be asked are gone from memory.
    """
    with ThreadPoolExecutor(3) as pool:
        # Python starts, drivers answer and libraries load while this thread has the disk.
        starting = pool.submit(python.start_up, facts, environ)
        asking = pool.submit(_machine, environ)
        listed = [_listed(facts, facts.layout, scanned)]
        startup = starting.result()
        listed += [_listed(facts, layout, distributions.scan(layout)) for layout in places.others(facts, startup)]
        loading = pool.submit(_load, facts, environ, tuple(listed), asking, store)
        if calm is not None:
            loading.add_done_callback(lambda _: calm.set())
        found = [_hashed(number, one, store) for number, one in enumerate(listed)]
        beside = outside(facts, startup, found, workspace)
        opened = dlopen.of_environment(facts.interpreter.executable, found, beside, environ, store)
        loaded = loading.result()
        if pulled is None:
            cut, runtime = _system(
                facts, startup, found, beside, (*_outside(loaded, found), *opened.libraries), environ, programs, store
            )
        else:
            cut, runtime = _upon(pulled, facts, startup, found, beside, _outside(loaded, found), environ, store)
        this_host, accelerators = asking.result()
    owners = Owners(found, packaged, cut, runtime)
    tied = frameworks.frameworks(loaded, owner=owners.owner, sha256=owners.sha256)
    held = {entry.path for tree in (cut.base, cut.unowned, runtime) if tree is not None for entry in tree.entries}
    return Live(
        startup=startup,
        host=this_host,
        accelerators=gpu.filled(accelerators, tied.devices),
        frameworks=tied,
        places=(found[0], *(_without_packaged(place, held) for place in found[1:])),
        base=cut.base,
        unowned=cut.unowned,
        interpreter=runtime,
        libraries=owners.libraries((*startup.mapped, *loaded.mapped)),
        carried=cut.carried,
        outside=beside,
        unknown=(*opened.unknown, *(_lacking(pulled, opened.libraries, found, beside) if pulled is not None else ())),
    )


def _listed(facts: Interpretation, layout: Layout, scanned: Scan) -> _Listed:
    found = places.listed(facts, layout, scanned)
    return _Listed(layout, scanned, found, fingerprint(found))


def _machine(environ: Mapping[str, str]) -> tuple[Host, Accelerators]:
    return system.host(environ), gpu.accelerators(environ)


def _load(
    facts: Interpretation,
    environ: Mapping[str, str],
    listed: Sequence[_Listed],
    asking: Future[tuple[Host, Accelerators]],
    store: Store,
) -> frameworks.Report:
    """Have PyTorch and its neighbours loaded, unless every file and the machine are as they were the last time."""
    return frameworks.look(
        facts,
        environ,
        names={dist.facts.name for one in listed for dist in one.scanned.distributions},
        state=codec.digest([(one.layout.prefix, one.state) for one in listed]),
        here=asking.result(),
        cache=store.facts,
    )


def _hashed(number: int, one: _Listed, store: Store) -> Place:
    known = settled(one.found)
    return Place(
        number, one.layout, one.scanned, one.found, store.hashes.of(Path(one.layout.prefix), one.found), one.state, known
    )


def _system(
    facts: Interpretation,
    startup: Startup,
    found: Sequence[Place],
    beside: Sequence[Outside],
    mapped: Sequence[str],
    environ: Mapping[str, str],
    programs: Sequence[str],
    store: Store,
) -> tuple[host.Cut, Tree | None]:
    """The operating system that the places need, and the interpreter, unless it is a package of the environment."""
    sites = [place.prefix / site for place in found for site in dict.fromkeys((place.layout.purelib, place.layout.platlib))]
    packages = host.database(Path("/"))
    cut = host.cut(
        facts,
        startup,
        system=packages,
        libraries=_libraries(found, beside),
        mapped=map(Path, mapped),
        programs=programs,
        locale=startup.locale,
        # Only where packages of the system may be: nobody's package is in a virtual environment.
        folders=[] if facts.is_venv and len(found) == 1 else sites,
        elsewhere=[str(site) for site in (*sites, *(one.root for one in beside if _is_whole(one)))],
        environ=environ,
        hashes=store.hashes,
        known=store.facts,
    )
    if facts.kind == "conda":
        return cut, None
    return cut, interpreter.interpreter_tree(facts, hashes=store.hashes, system=packages, environ=environ, known=store.facts)


def _upon(
    pulled: Base,
    facts: Interpretation,
    startup: Startup,
    found: Sequence[Place],
    beside: Sequence[Outside],
    mapped: Sequence[str],
    environ: Mapping[str, str],
    store: Store,
) -> tuple[host.Cut, Tree | None]:
    """The pulled base, held against what the places and the interpreter need of it, and the interpreter."""
    cut = fit.cut(
        facts,
        startup,
        pulled,
        libraries=_libraries(found, beside),
        mapped=map(Path, mapped),
        elsewhere=[str(place.prefix / site) for place in found for site in (place.layout.purelib, place.layout.platlib)],
        environ=environ,
    )
    if facts.kind == "conda":
        return cut, None
    runtime = interpreter.interpreter_tree(facts, hashes=store.hashes, environ=environ, known=store.facts)
    fit.check_interpreter(pulled, runtime, facts)
    return cut, runtime


def _outside(loaded: frameworks.Report, found: Sequence[Place]) -> list[str]:
    """Libraries that were loaded from outside all places; a driver's is every machine's own."""
    prefixes = tuple(f"{os.path.realpath(place.prefix)}/" for place in found if place.number == 0)
    paths = (*loaded.mapped, *loaded.beside)
    return [path for path in paths if not frameworks.is_driver(path) and not path.startswith(prefixes)]


def _libraries(places: Sequence[Place], beside: Sequence[Outside]) -> list[Path]:
    """The libraries of the environment, and of directories outside it that Python imports from."""
    return [
        root / one.path
        for root, found in (*((one.prefix, one.found) for one in places), *((one.root, one.found) for one in beside))
        for one in found
        if ".so" in one.path and one.kind == "file" and ".so" in one.path.rpartition("/")[2]
    ]


def _is_whole(one: Outside) -> bool:
    """Whether the whole directory is bundled, not only an archive in it."""
    return one.named.is_dir()


def _lacking(pulled: Base, libraries: Sequence[str], found: Sequence[Place], beside: Sequence[Outside]) -> list[str]:
    """A line for each library that the code opens and that a pulled base does not have."""
    names = {path.rpartition("/")[2] for path in pulled.entries}
    held = [os.path.realpath(one) for one in (*(place.prefix for place in found), *(one.root for one in beside))]
    return [
        f"code of the environment opens {one} at run time, and {pulled.hint.reference} has no library of that name"
        for one in libraries
        if one.rpartition("/")[2] not in names and not frameworks.is_driver(one) and not within(os.path.realpath(one), held)
    ]


def _without_packaged(place: Place, held: set[str]) -> Place:
    """Without the distributions that a package of the system brought: they are part of the base, and no wheel's."""
    scanned = place.scanned
    own = tuple(one for one in scanned.distributions if f"{place.root}/{one.facts.dist_info}/METADATA" not in held)
    return msgspec.structs.replace(place, scanned=msgspec.structs.replace(scanned, distributions=own))
