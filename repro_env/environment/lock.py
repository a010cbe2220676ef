"""Lock an environment: identify all packages, compute all layers and the overlay. Nothing is written yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from repro_env.environment.conda import identification as conda
from repro_env.environment.conda import metadata as records
from repro_env.environment.live import LiveEnvironment, Request, inspect
from repro_env.environment.locked import LockedEnvironment
from repro_env.environment.machine import homefiles, variables
from repro_env.environment.overlay import overlay
from repro_env.environment.python import caveats, distributions, interpreter, packagemanagers
from repro_env.environment.python.externalpaths import on_host, python_path
from repro_env.environment.python.selection import Target
from repro_env.environment.python.sites import Site
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.system.tree import Tree
from repro_env.environment.wheels import composition, layers
from repro_env.environment.wheels import identification as wheels
from repro_env.oci import conda as rule
from repro_env.oci import wheel, wheellayers
from repro_env.oci.entry import Entry
from repro_env.schema.environment import Carried
from repro_env.schema.errors import CaptureError
from repro_env.schema.image import Layer
from repro_env.schema.progress import Tell
from repro_env.store.store import Store


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Convert an `OSError` to a `CaptureError` that names the path."""
    try:
        yield
    except OSError as error:
        raise CaptureError(
            f"this path cannot be read: {error.strerror or error}",
            where=str(error.filename or ""),
            hint="make it readable, repair it or remove it, then try again",
        ) from None


@_readable()
def lock(
    target: Target | str,
    environ: Mapping[str, str],
    *,
    workspace: Path,
    programs: Sequence[str],
    store: Store,
    tell: Tell,
    secrets: SecretSearch | None = None,
    added: Sequence[str] = (),
) -> LockedEnvironment:
    """Inspect and lock the environment of a Python. `workspace` is the source directory, which runs see at its own path.

    `added`: variables to replay in addition to the standard ones. `secrets` searches everything that a capture would bundle; if there are secrets, `CaptureError` lists them all.
    """
    facts = interpreter.interpret(target, environ)
    meta = records.read(Path(facts.layout.prefix)) if facts.kind == "conda" else records.Meta((), ())
    scanned = records.exclude_conda(distributions.scan(facts.layout), meta)
    tell.detail(f"{len(scanned.distributions)} distributions in {facts.layout.prefix}")
    request = Request(
        facts=facts,
        scanned=scanned,
        packaged=meta.library_owners(facts.layout.prefix),
        programs=programs,
        workspace=workspace,
        environ=environ,
        store=store,
    )
    live, identified, indexes = _inspect_and_identify(request, tell, secrets)
    own_site = live.sites[0]
    packages, plain_packages = conda.identify(meta, own_site, store=store, environ=environ, tell=tell)
    installed_packages = {package.package.key: rule.canonical(package.facts, facts.layout) for package in packages}
    rewritten = frozenset(rule.record_path(package.package.filename) for package in packages)
    generated = records.replaced_files(own_site.prefix, rewritten) if meta.is_there else {}
    compositions, all_layers, nothing_read = _compare(live, packages, installed_packages, identified, generated, store)
    names = {dist.facts.name for site in live.sites for dist in site.scanned.distributions}
    home = homefiles.look(names | {package.package.name for package in packages}, environ, without=workspace)
    overlay_tree, skipped = overlay(
        compositions, live, workspace, generated, {path: item.data for path, item in home.files.items()}, store
    )
    if secrets is not None:
        _search_trees(secrets, live, overlay_tree)
        wheels.search(secrets, identified, live.sites, store)
        conda.search(secrets, packages, installed_packages, own_site.prefix, store)
        secrets.raise_if_found()
    nothing_read = nothing_read and (
        overlay_tree is None or layers.known_blob(overlay_tree.entries, facts=store.facts) is not None
    )
    return LockedEnvironment(
        facts=facts,
        live=live,
        variables=variables.sort(environ, added),
        activation=records.variables(own_site.prefix, environ) if meta.is_there else (),
        packages=packages,
        plain_packages=plain_packages,
        unrelated_directories=records.unrelated_directories(own_site.prefix) if meta.is_there else (),
        wheels=identified,
        indexes=indexes,
        compositions=compositions,
        overlay=overlay_tree,
        layers=all_layers,
        files_read=not nothing_read,
        python_path=python_path(environ),
        home_files=tuple(
            Carried(name=path, version="", why=f"{item.library} reads it in the home directory", size=len(item.data))
            for path, item in sorted(home.files.items())
        ),
        unknown=(
            *meta.problems,
            *home.problems,
            *skipped,
            *caveats.of_environment(request, live, overlay_tree),
        ),
    )


def _inspect_and_identify(
    request: Request, tell: Tell, secrets: SecretSearch | None
) -> tuple[LiveEnvironment, tuple[wheels.IdentifiedWheel, ...], tuple[str, ...]]:
    """Inspect the environment, and identify the distributions of all sites. Returns also the indexes that were used."""
    memory_free, store = Event(), request.store
    sources = packagemanagers.look(request.workspace, request.environ, store.facts)
    for problem in sources.problems:
        tell(f"note: {problem}")

    def identify() -> tuple[tuple[wheels.IdentifiedWheel, ...], tuple[str, ...]]:
        memory_free.wait()
        own = request.scanned.distributions
        return wheels.identify(own, request.facts.layout, store=store, tell=tell, search=secrets, sources=sources)

    with ThreadPoolExecutor(1) as pool:
        # The indexes are queried while files are read, but not while PyTorch is loaded: both need much memory.
        answer = pool.submit(identify)
        try:
            live = inspect(request, memory_free)
        finally:
            memory_free.set()
        identified, indexes = answer.result()
    for site in live.sites[1:]:
        if site_distributions := site.scanned.distributions:
            tell.detail(f"{len(site_distributions)} distributions in {site.layout.prefix}")
            more_wheels, _ = wheels.identify(
                site_distributions, site.layout, site_number=site.number, store=store, tell=tell, search=secrets, sources=sources
            )
            identified = (*identified, *more_wheels)
    return live, identified, indexes


def _compare(
    live: LiveEnvironment,
    packages: Sequence[conda.IdentifiedPackage],
    installed_packages: Mapping[str, wheel.Installed],
    identified: Sequence[wheels.IdentifiedWheel],
    generated: Mapping[str, bytes],
    store: Store,
) -> tuple[tuple[composition.Composition, ...], tuple[Layer, ...], bool]:
    """Compare the sites with their packages and wheels, and compute the layers. Also return whether no file had to be read."""
    installed = {dist.wheel.key: wheels.installed_form(dist, live.sites, store) for dist in identified}
    lower = live.lower_entries
    own_site, *other_sites = live.sites
    compositions = tuple(
        _compose(site, [installed_packages, installed], lower) for site in (own_site.with_generated(generated), *other_sites)
    )
    package_layers, wheel_layers = wheellayers.layers(installed_packages), wheellayers.layers(installed)
    nothing_read = all(layers.known_layer(group, facts=store.facts) for group in (*package_layers, *wheel_layers))
    all_layers = (
        *conda.layers_of(package_layers, installed_packages, packages, compositions[0].altered, own_site, store),
        *wheels.layers_of(wheel_layers, installed, identified, compositions, live.sites, store),
    )
    return compositions, all_layers, nothing_read


def _compose(site: Site, stacks: Sequence[Mapping[str, wheel.Installed]], lower: Mapping[str, Entry]) -> composition.Composition:
    prefix = site.prefix
    found = composition.compose(
        stacks,
        site.found,
        site.hashes,
        root=site.root,
        owns=site.owns,
        lower=lower,
        read=lambda path: (prefix / path).read_bytes(),
        is_own_python=site.is_own_python,
    )
    if found.unsupported:
        raise CaptureError(
            "this path is not a file, directory or symlink, so no image can contain it",
            where=str(prefix / found.unsupported[0]),
            hint="remove it from the environment and capture again",
        )
    return found


def _search_trees(secrets: SecretSearch, live: LiveEnvironment, overlay_tree: Tree | None) -> None:
    """Search the bundled trees for secrets, except files of system packages outside `/etc`."""
    if overlay_tree is not None:
        secrets.search_tree(overlay_tree.entries, overlay_tree.contents, lambda path: str(on_host(path, live.sites)))
    configuration = [entry for entry in live.base.entries if entry.path.startswith("etc/")]
    secrets.search_tree(configuration, live.base.contents, lambda path: f"/{path}")
    for tree in (live.unpackaged, live.interpreter):
        if tree is not None:
            secrets.search_tree(tree.entries, tree.contents, lambda path: f"/{path}")
