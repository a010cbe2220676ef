"""Make the overlay: the environment's files outside its packages and wheels, and the files that it uses elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from repro_env.environment.live import LiveEnvironment, Request
from repro_env.environment.python.externalpaths import collect_link_targets
from repro_env.environment.python.interpreter import StartupReport
from repro_env.environment.python.sites import Site
from repro_env.environment.system.tree import LiveContents, Tree, within
from repro_env.environment.wheels import composition
from repro_env.io.files import FileContents, keys_of
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.oci.paths import HOME, inside
from repro_env.store.hashes import entries_of


def overlay(
    request: Request,
    live: LiveEnvironment,
    compositions: Sequence[composition.Composition],
    generated: Mapping[str, bytes],
    home: Mapping[str, bytes],
) -> tuple[Tree | None, tuple[str, ...]]:
    """The tree, or None if it would be empty; and a line for each path that is not captured.

    `compositions`: one per site. `generated`: contents that replace files of the first site. `home`: configuration files by path
    below the home directory. Raises `CaptureError` for links to too many files.
    """
    store, sites, external_paths, lower = request.store, live.sites, live.external, live.lower_entries
    entries = [entry for composition in compositions for entry in composition.overlay]
    for external_path in external_paths:
        entries += entries_of(
            external_path.found, store.hashes.of(external_path.root, external_path.found), below=inside(str(external_path.root))
        )
    roots = [request.workspace, *(external_path.root for external_path in external_paths if external_path.is_complete)]
    skipped: list[str] = []
    links = collect_link_targets(entries, sites, lower, roots, skipped)
    for external_path in external_paths:
        links.follow(str(external_path.named))
    entries += _by_real_name(sites[0], live.startup)
    for site in sites:
        if site.layout.in_place:
            links.follow(site.layout.prefix)
    linked_entries = links.finish(store.hashes).entries
    keys = links.keys
    for site in sites[1:]:
        keys |= keys_of(site.found, f"{site.root}/")
    for external_path in external_paths:
        keys |= keys_of(external_path.found, f"{inside(str(external_path.root))}/")
    parents = {entry.path.rpartition("/")[0] for entry in linked_entries}
    entries += [entry for entry in linked_entries if lower.get(entry.path) != entry and entry.path not in parents]
    generated_contents = {f"{inside(HOME)}/{path}": data for path, data in home.items()}
    entries += [Entry.of(path, data) for path, data in generated_contents.items()]
    generated_contents |= {f"{sites[0].root}/{path}": data for path, data in generated.items()}
    environment = FileContents(sites[0].prefix, strip=sites[0].root, keys=keys_of(sites[0].found))
    tree = (
        Tree(
            entries=tuple(sort_with_parents(entries)),
            contents=LiveContents(generated_contents, keys, (sites[0].root, environment)),
        )
        if entries
        else None
    )
    return tree, tuple(skipped)


def _by_real_name(site: Site, startup: StartupReport) -> list[Entry]:
    """A link at the real path of an environment that is reached through a symlink, if `sys.path` uses the real path."""
    real = os.path.realpath(site.prefix)
    if site.layout.in_place or real == str(site.prefix) or not any(within(path, (real,)) for path in startup.sys_path):
        return []
    return [Entry(inside(real), "link", target=f"/{site.root}")]
