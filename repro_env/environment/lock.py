"""Lock an environment: identify all packages, compute all layers and the overlay. Nothing is written yet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from repro_env.environment import archives
from repro_env.environment.conda import identification as conda
from repro_env.environment.conda import metadata as records
from repro_env.environment.live import LiveEnvironment, Request, inspect
from repro_env.environment.machine import homefiles
from repro_env.environment.overlay import overlay
from repro_env.environment.python import caveats, distributions, interpreter, packagemanagers, requirements
from repro_env.environment.python.distributions import InstalledDistribution
from repro_env.environment.python.externalpaths import on_host
from repro_env.environment.python.sites import Site, list_files
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.system.tree import Tree
from repro_env.environment.wheels import composition
from repro_env.environment.wheels import identification as wheels
from repro_env.oci import conda as rule
from repro_env.oci.wheel import Installed
from repro_env.schema import redact
from repro_env.schema.environment import Bundled
from repro_env.schema.errors import CaptureError, os_errors_as
from repro_env.schema.image import Layer
from repro_env.schema.progress import Tell
from repro_env.store.hashes import unchanged


class LockedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment with its packages, its wheels and all its other files."""

    request: Request
    live: LiveEnvironment
    packages: tuple[archives.IdentifiedPackage, ...]
    plain_packages: tuple[Bundled, ...]
    """Conda packages without an archive: their files are plain files of the environment."""
    wheels: tuple[archives.IdentifiedWheel, ...]
    forms: dict[str, Installed]
    """The installed forms of the wheels, by key (`Wheel.key`)."""
    compositions: tuple[composition.Composition, ...]
    """One per site."""
    layers: tuple[Layer, ...]
    """The layers of conda packages and distributions."""
    overlay: Tree | None
    home_files: tuple[Bundled, ...]
    """Configuration files of libraries, by path below the home directory."""
    lacking: tuple[str, ...]
    """Requirements of the project that the environment does not have."""
    unknown: tuple[str, ...]

    @property
    def installed(self) -> tuple[tuple[Site, InstalledDistribution], ...]:
        """All distributions with their sites."""
        return tuple((site, dist) for site in self.live.sites for dist in site.scanned.distributions)

    @property
    def archives(self) -> tuple[archives.IdentifiedPackage | archives.IdentifiedWheel, ...]:
        return (*self.packages, *self.wheels)

    def check_unchanged(self) -> None:
        """Raise `CaptureError` if a file was changed while the layers were computed, by comparing the files' keys."""
        for site in self.live.sites:
            if unchanged(site.prefix, site.found, since=self.live.began):
                continue
            files = list_files(self.live.facts, site.layout, site.scanned)
            keys_now = {file.path: file.key for file in files if file.kind == "file"}
            keys_before = {file.path: file.key for file in site.found if file.kind == "file"}
            changed = sorted(path for path in keys_now.keys() | keys_before.keys() if keys_now.get(path) != keys_before.get(path))
            if changed:
                raise CaptureError(
                    f"this file changed while it was captured ({len(changed)} files in all)",
                    where=str(site.prefix / changed[0]),
                    hint="wait until nothing is installed or edited in the environment, then capture again",
                )


@os_errors_as(CaptureError, "this path cannot be read", hint="make it readable, repair it or remove it, then try again")
def lock(request: Request, tell: Tell, secrets: SecretSearch | None = None) -> LockedEnvironment:
    """Inspect and lock the environment of a Python.

    `secrets` searches everything that a capture would bundle; if there are secrets, `CaptureError` lists them all.
    """
    store, environ = request.store, request.environ
    facts = interpreter.interpret(request.target, environ)
    meta = records.read(Path(facts.layout.prefix)) if facts.is_conda else records.Meta((), ())
    scanned = records.exclude_conda(distributions.scan(facts.layout), meta)
    tell.detail(f"{len(scanned.distributions)} distributions in {facts.layout.prefix}")
    sources = packagemanagers.look(request.workspace, environ)
    for problem in sources.problems:
        tell(f"note: {problem}")
    with ThreadPoolExecutor(1) as pool:  # the indexes are queried while files are read
        answer = pool.submit(
            wheels.identify,
            scanned.distributions,
            facts.layout,
            store=store,
            tell=tell,
            search=secrets,
            sources=sources,
            asks=request.asks,
        )
        live = inspect(request, facts, scanned, meta.library_owners(facts.layout.prefix))
        lacking = requirements.missing(request.workspace, facts.interpreter.version, live.startup.sys_path)
        if not isinstance(request.target, str):
            request.target.check_requirements(lacking)
        identified = answer.result()
    for site in live.sites[1:]:
        if more := site.scanned.distributions:
            tell.detail(f"{len(more)} distributions in {site.layout.prefix}")
            identified += wheels.identify(
                more,
                site.layout,
                site_number=site.number,
                store=store,
                tell=tell,
                search=secrets,
                sources=sources,
                asks=request.asks,
            )
    own_site = live.sites[0]
    packages, plain_packages = conda.identify(meta, own_site, store=store, environ=environ, tell=tell)
    rewritten = frozenset(rule.record_path(package.artifact.filename) for package in packages)
    generated = records.replaced_files(own_site.prefix, rewritten) if facts.is_conda else {}
    forms = {package.artifact.key: package.installed(facts.layout, store) for package in packages}
    wheel_forms = {dist.artifact.key: dist.installed(live.sites[dist.artifact.site].layout, store) for dist in identified}
    lower = live.lower_entries
    compositions = tuple(
        composition.compose([forms, wheel_forms], site, lower) for site in (own_site.with_generated(generated), *live.sites[1:])
    )
    altered = {key: paths for composed in compositions for key, paths in composed.altered.items()}
    names = {dist.facts.name for site in live.sites for dist in site.scanned.distributions}
    home = homefiles.look(names | {package.artifact.name for package in packages}, environ, without=request.workspace)
    overlay_tree, skipped = overlay(request, live, compositions, generated, home.data)
    if secrets is not None:
        _search_trees(secrets, live, overlay_tree)
        archives.search(secrets, identified, wheel_forms, altered, live.sites, store)
        archives.search(secrets, packages, forms, altered, live.sites, store)
        secrets.raise_if_found()
    return LockedEnvironment(
        request=request,
        live=live,
        packages=packages,
        plain_packages=plain_packages,
        wheels=identified,
        forms=wheel_forms,
        compositions=compositions,
        layers=(
            *archives.layers_of(packages, forms, altered, live.sites, store, "conda"),
            *archives.layers_of(identified, wheel_forms, altered, live.sites, store, "distributions"),
        ),
        overlay=overlay_tree,
        home_files=home.files,
        lacking=tuple(map(redact.line, lacking)),
        unknown=(*meta.problems, *home.problems, *skipped, *caveats.of_environment(request, live, overlay_tree)),
    )


def _search_trees(secrets: SecretSearch, live: LiveEnvironment, overlay_tree: Tree | None) -> None:
    """Search the bundled trees for secrets, except files of system packages outside `/etc`."""
    if overlay_tree is not None:
        secrets.search_tree(overlay_tree.entries, overlay_tree.contents.chunks, lambda path: str(on_host(path, live.sites)))
    base, *others = live.trees
    configuration = [entry for entry in base.entries if entry.path.startswith("etc/")]
    for entries, contents in ((configuration, base.contents), *((tree.entries, tree.contents) for tree in others)):
        secrets.search_tree(entries, contents.chunks, lambda path: f"/{path}")
