"""Inspect the live environment: its sites, the system libraries that it needs, and the machine. Makes no decisions."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import msgspec

from repro_env.environment.machine import frameworks
from repro_env.environment.machine import host as machine
from repro_env.environment.python import distributions
from repro_env.environment.python import interpreter as python
from repro_env.environment.python.distributions import Scan
from repro_env.environment.python.externalpaths import ExternalPath, find_external_paths
from repro_env.environment.python.sites import Site, list_files, other_sites
from repro_env.environment.system import base, openedlibraries
from repro_env.environment.system import interpretertree as interpreter
from repro_env.environment.system.libraries import Needs, Owners
from repro_env.environment.system.tree import Tree
from repro_env.io.files import fingerprint
from repro_env.io.hashes import settled
from repro_env.oci.entry import Entry
from repro_env.schema import codec
from repro_env.schema.environment import Carried, Host, Interpretation, Layout, SharedLibrary, Startup
from repro_env.schema.frameworks import Frameworks
from repro_env.store.store import Store


class LiveEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    startup: Startup
    host: Host
    frameworks: Frameworks
    sites: tuple[Site, ...]
    """The first is the environment's own."""
    base: Tree
    unpackaged: Tree | None
    interpreter: Tree | None
    """None if it is a conda package of the environment."""
    libraries: tuple[SharedLibrary, ...]
    bundled: tuple[Carried, ...]
    """Files that belong to no package of the system."""
    library_path: str
    """LD_LIBRARY_PATH of the image."""
    external: tuple[ExternalPath, ...]
    """Paths outside the environment that Python imports from."""
    unknown: tuple[str, ...] = ()
    """A line for each library that the code opens and that cannot be determined."""

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The trees from this machine, lowest first."""
        return tuple(tree for tree in (self.base, self.unpackaged, self.interpreter) if tree is not None)

    @property
    def lower_entries(self) -> dict[str, Entry]:
        """The entries of these trees by path from the image's root."""
        return {entry.path: entry for tree in self.trees for entry in tree.entries}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to inspect."""

    facts: Interpretation
    scanned: Scan
    """The environment's own distributions."""
    packaged: Mapping[str, str]
    """Real path -> owner, of files of conda packages."""
    programs: Sequence[str]
    """The programs of `--with`."""
    workspace: Path
    """The source, which runs see at its own path."""
    environ: Mapping[str, str]
    store: Store


def inspect(request: Request, memory_free: Event) -> LiveEnvironment:
    """Inspect the environment, and read each file once.

    `memory_free` is set when the libraries that were loaded for inspection have left the memory.
    """
    facts, environ, store = request.facts, request.environ, request.store
    this_host = machine.host()
    with ThreadPoolExecutor(2) as pool:
        # Meanwhile Python starts and libraries are loaded, while this thread reads from the disk.
        startup_future = pool.submit(python.start_up, facts, environ)
        listed = [_list_site(0, facts, facts.layout, request.scanned)]
        startup = startup_future.result()
        for number, layout in enumerate(other_sites(facts, startup), 1):
            listed.append(_list_site(number, facts, layout, distributions.scan(layout)))
        report_future = pool.submit(_load, request, tuple(listed), this_host)
        report_future.add_done_callback(lambda _: memory_free.set())
        sites = [msgspec.structs.replace(site, hashes=store.hashes.of(site.prefix, site.found)) for site in listed]
        external_paths = find_external_paths(facts, startup, sites, request.workspace)
        directories = [
            *((site.prefix, site.found, site.scanned.lists) for site in sites),
            *((path.root, path.found, lambda _: False) for path in external_paths),
        ]
        opened = openedlibraries.of_environment(facts.interpreter.executable, directories, environ, store)
        report = report_future.result()
        loaded = _loaded_outside(report, sites[0])
        system_files, interpreter_tree = _system_files(request, startup, sites, external_paths, loaded, opened.libraries)
    owners = Owners(sites, request.packaged, system_files.libraries, interpreter_tree)
    live = LiveEnvironment(
        startup=startup,
        host=this_host,
        frameworks=frameworks.frameworks(report, owner=owners.owner, sha256=owners.sha256),
        sites=tuple(sites),
        base=system_files.base,
        unpackaged=system_files.unpackaged,
        interpreter=interpreter_tree,
        libraries=owners.libraries((*startup.mapped, *report.mapped)),
        bundled=system_files.bundled,
        library_path=system_files.library_path,
        external=external_paths,
        unknown=opened.unknown,
    )
    paths = live.lower_entries
    return msgspec.structs.replace(live, sites=(sites[0], *(_without_packaged(site, paths) for site in sites[1:])))


def _list_site(number: int, facts: Interpretation, layout: Layout, scanned: Scan) -> Site:
    """The site before its files are hashed."""
    found = list_files(facts, layout, scanned)
    return Site(number, layout, scanned, found, {}, fingerprint(found), settled(found))


def _load(request: Request, sites: Sequence[Site], this_host: Host) -> frameworks.Report:
    """Load PyTorch and related libraries and report on them.

    The report is cached while the files and the machine do not change.
    """
    return frameworks.look(
        request.facts,
        request.environ,
        names={dist.facts.name for site in sites for dist in site.scanned.distributions},
        state=codec.digest([(site.layout.prefix, site.state) for site in sites]),
        machine=this_host,
        cache=request.store.facts,
    )


def _system_files(
    request: Request,
    startup: Startup,
    sites: Sequence[Site],
    external_paths: Sequence[ExternalPath],
    loaded: Sequence[str],
    opened: Sequence[str],
) -> tuple[base.SystemFiles, Tree | None]:
    """The system files that the environment needs, and the interpreter, unless it is a conda package of the environment.

    `loaded`: libraries outside the sites that were loaded; `opened`: libraries that the code opens.
    """
    facts, environ, store = request.facts, request.environ, request.store
    site_directories = tuple(
        dict.fromkeys(str(site.prefix / path) for site in sites for path in (site.layout.purelib, site.layout.platlib))
    )
    packages = base.database(Path("/"))
    needs = Needs(
        facts=facts,
        startup=startup,
        environ=environ,
        libraries=tuple(_libraries(sites, external_paths)),
        loaded=(*loaded, *opened),
        programs=tuple(request.programs),
        # Only where system packages may be: a virtual environment has none.
        directories=() if facts.is_venv and len(sites) == 1 else site_directories,
        other_layers=(*site_directories, *(str(path.root) for path in external_paths if path.is_complete)),
    )
    system_files = base.system_files(needs, packages, store.hashes)
    if facts.kind == "conda":
        return system_files, None
    return system_files, interpreter.interpreter_tree(facts, hashes=store.hashes, system=packages, environ=environ)


def _loaded_outside(report: frameworks.Report, site: Site) -> list[str]:
    """Libraries that were loaded from outside the environment's own site, without those of the driver."""
    prefix = f"{os.path.realpath(site.prefix)}/"
    paths = (*report.mapped, *report.deferred)
    return [path for path in paths if not frameworks.is_driver(path) and not path.startswith(prefix)]


def _libraries(sites: Sequence[Site], external_paths: Sequence[ExternalPath]) -> list[str]:
    """The libraries of the environment, and of directories outside it that Python imports from."""
    return [
        f"{root}/{file.path}"
        for root, files in (
            *((site.prefix, site.found) for site in sites),
            *((external_path.root, external_path.found) for external_path in external_paths),
        )
        for file in files
        if file.kind == "file" and ".so" in file.path.rpartition("/")[2]
    ]


def _without_packaged(site: Site, base_paths: Collection[str]) -> Site:
    """The site without distributions that belong to a system package: these are part of the base, not wheels."""
    scanned = site.scanned
    own = tuple(dist for dist in scanned.distributions if f"{site.root}/{dist.facts.dist_info}/METADATA" not in base_paths)
    return msgspec.structs.replace(site, scanned=msgspec.structs.replace(scanned, distributions=own))
