"""Everything that an environment's capture carries, searched for secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repro_env.base.tree import Tree
from repro_env.image import wheel
from repro_env.lock import identify
from repro_env.lock.live import Live
from repro_env.lock.outside import on_host
from repro_env.lock.search import Search
from repro_env.store.store import Store
from repro_env.store.wheelfile import WheelContents


def carried(
    search: Search,
    live: Live,
    identified: Sequence[identify.Identified],
    installed: Mapping[str, wheel.Installed],
    overlay: Tree | None,
    store: Store,
) -> None:
    """All that is carried and that no database vouches for. Repacked distributions were searched when they were packed."""
    if overlay is not None:
        search.tree(overlay.entries, overlay.contents, lambda path: str(on_host(path, live.places)))
    settings = [entry for entry in live.base.entries if entry.path.startswith("etc/")]
    search.tree(settings, live.base.contents, lambda path: f"/{path}")
    for tree in (live.unowned, live.interpreter):
        if tree is not None:
            search.tree(tree.entries, tree.contents, lambda path: f"/{path}")
    for one in identified:
        if one.hint.origin == "carried" and not search.clean(one.wheel.sha256):
            made = installed[one.wheel.key]
            members = [entry for entry in made.entries if entry.path in made.members]
            contents = WheelContents(identify.whole(one, store), made)
            search.whole(one.wheel.sha256, members, contents, f"{one.wheel.filename}/".__add__)
