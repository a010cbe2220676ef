"""Inspect the live environment: its sites, the system libraries that it needs, and the machine. Makes no decisions."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from repro_env.environment.machine import frameworks, gpus
from repro_env.environment.machine import host as machine
from repro_env.environment.python import distributions
from repro_env.environment.python import interpreter as python
from repro_env.environment.python.distributions import Scan
from repro_env.environment.python.externalpaths import ExternalPath, find_external_paths
from repro_env.environment.python.interpreter import StartupReport
from repro_env.environment.python.selection import Target
from repro_env.environment.python.sites import Site, list_files, other_sites
from repro_env.environment.system import base, openedlibraries
from repro_env.environment.system.base import SystemFiles
from repro_env.environment.system.elf import KeptElves
from repro_env.environment.system.interpretertree import interpreter_tree
from repro_env.environment.system.libraries import Needs, Owners
from repro_env.environment.system.tree import Tree
from repro_env.io.files import fingerprint
from repro_env.oci.entry import Entry
from repro_env.schema import codec
from repro_env.schema.environment import Host, Interpretation, SharedLibrary
from repro_env.schema.frameworks import Frameworks
from repro_env.store.store import Store


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to inspect and lock."""

    target: Target | str
    """The Python; a string is interpreted like the value of `--python`."""
    environ: Mapping[str, str]
    workspace: Path
    """The source, which runs see at its own path."""
    store: Store
    programs: tuple[str, ...] = ()
    """The programs of `--with`."""
    added: tuple[str, ...] = ()
    """Variables to replay in addition to the standard ones."""
    asks: bool = False
    """Whether indexes are asked about distributions that were identified before, too."""


class LiveEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    facts: Interpretation
    startup: StartupReport
    host: Host
    frameworks: Frameworks
    sites: tuple[Site, ...]
    """The first is the environment's own."""
    system: SystemFiles
    interpreter: Tree | None
    """None if it is a conda package of the environment."""
    libraries: tuple[SharedLibrary, ...]
    external: tuple[ExternalPath, ...]
    """Paths outside the environment that Python imports from."""
    began: int
    """When the first site was listed (ns)."""
    unknown: tuple[str, ...] = ()
    """A line for each library that the code opens and that cannot be determined."""

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The trees from this machine, lowest first."""
        trees = (self.system.base, self.system.unpackaged, self.interpreter)
        return tuple(tree for tree in trees if tree is not None)

    @property
    def lower_entries(self) -> dict[str, Entry]:
        """The entries of these trees by path from the image's root."""
        return {entry.path: entry for tree in self.trees for entry in tree.entries}


def inspect(request: Request, facts: Interpretation, scanned: Scan, packaged: Mapping[str, str]) -> LiveEnvironment:
    """Inspect the environment, and read each file once.

    `scanned`: its own distributions. `packaged`: real path -> owner, of files of conda packages.
    """
    environ, store, this_host, began = request.environ, request.store, machine.host(), time.time_ns()
    elves = KeptElves(store.facts, facts.layout.prefix)
    with ThreadPoolExecutor(2) as pool:
        # Meanwhile Python starts and libraries are loaded, while this thread reads from the disk.
        startup_future = pool.submit(python.start_up, facts, environ)
        listed = [(facts.layout, scanned, list_files(facts, facts.layout, scanned))]
        startup = startup_future.result()
        for layout in other_sites(facts, startup):
            scan = distributions.scan(layout)
            listed.append((layout, scan, list_files(facts, layout, scan)))
        report_future = pool.submit(
            frameworks.look,
            facts,
            environ,
            state=codec.digest([(layout.prefix, fingerprint(found)) for layout, _, found in listed]),
            machine=this_host,
            cache=store.facts,
        )
        sites = tuple(
            Site(number, layout, scan, found, store.hashes.of(Path(layout.prefix), found))
            for number, (layout, scan, found) in enumerate(listed)
        )
        external = find_external_paths(facts, startup, sites, request.workspace)
        directories = [
            *((site.prefix, site.found, site.scanned.lists) for site in sites),
            *((path.root, path.found, lambda _: False) for path in external),
        ]
        opened = openedlibraries.of_environment(facts.interpreter.executable, directories, environ, store, elves.read)
        report = report_future.result()
    own = [
        f"{root}/{file.path}"
        for root, found, _ in directories
        for file in found
        if file.kind == "file" and ".so" in file.path.rpartition("/")[2]
    ]
    outside = [
        path for path in (*report.mapped, *report.deferred) if not path.startswith(f"{os.path.realpath(sites[0].prefix)}/")
    ]
    packages = base.database(Path("/"), store.facts)
    site_directories = tuple(path for site in sites for path in site.layout.sites)
    needs = Needs(
        facts=facts,
        startup=startup,
        environ=environ,
        libraries=tuple(own),
        loaded=tuple(path for path in (*outside, *opened.libraries) if not gpus.is_driver(path)),
        programs=request.programs,
        # Only where system packages may be: a virtual environment has none.
        directories=() if facts.is_venv and len(sites) == 1 else site_directories,
        read=elves.read,
        other_layers=(*site_directories, *(str(path.root) for path in external if path.is_complete)),
    )
    system = base.system_files(needs, packages, store.hashes)
    interpreter = None
    if not facts.is_conda:
        interpreter = interpreter_tree(facts, environ, store.hashes, elves.read)
    elves.save()
    owners = Owners(sites, packaged, system.libraries, interpreter)
    live = LiveEnvironment(
        facts=facts,
        startup=startup,
        host=this_host,
        frameworks=owners.frameworks(report.facts),
        sites=sites,
        system=system,
        interpreter=interpreter,
        libraries=owners.libraries((*startup.mapped, *report.mapped)),
        external=external,
        began=began,
        unknown=opened.unknown,
    )
    paths = live.lower_entries
    return msgspec.structs.replace(live, sites=(sites[0], *(site.without_packaged(paths) for site in sites[1:])))
