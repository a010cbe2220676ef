"""The environment's part of a capture: every distribution told, every layer computed, nothing written yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import msgspec

from repro_env.base import fit
from repro_env.base.tree import Tree
from repro_env.capture import conda as records
from repro_env.capture import distributions, homefiles, mentions, packagemanagers, python, variables
from repro_env.capture.target import Target
from repro_env.image import conda as rule
from repro_env.image import stack, wheel
from repro_env.image.entry import Entry, ordered
from repro_env.image.layout import HOME
from repro_env.lock import compared, compose, conda, hostpaths, identify, layers
from repro_env.lock.compared import Compared
from repro_env.lock.installed import Installed, layers_of
from repro_env.lock.live import Live, look
from repro_env.lock.locked import Locked
from repro_env.lock.outside import Outside, followed, python_path
from repro_env.lock.overlay import overlay
from repro_env.lock.places import Place
from repro_env.lock.search import Search
from repro_env.lock.searched import carried
from repro_env.lock.untold import untold
from repro_env.model.environment import Carried, Interpretation
from repro_env.model.errors import CaptureError
from repro_env.model.talk import Tell
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.base.pulled import Base


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """What the operating system refuses is an error that names the path."""
    try:
        yield
    except PermissionError as error:
        raise CaptureError(
            "cannot be read by you",
            where=str(error.filename or ""),
            hint="make it readable, or capture as the user who can read it",
        ) from None
    except OSError as error:
        raise CaptureError(
            f"cannot be read: {error.strerror or error}",
            where=str(error.filename or ""),
            hint="mend it, or remove it, and try again",
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
    searching: Search | None = None,
    base: Base | None = None,
    added: Sequence[str] = (),
) -> Locked:
    """Observe the environment of a Python and lock it. `workspace` is the source folder: runs show it at its own path.

    `base`: the pulled one that it is to stand on; else the base is cut from this machine. `added`: variables to replay
    although they are not on the list.

    `searching` searches all that a capture would bundle; secrets in it raise `CaptureError`, which lists them all.
    """
    facts = python.interpret(target, environ)
    meta = records.read(Path(facts.layout.prefix)) if facts.kind == "conda" else records.Meta((), ())
    scanned = records.without(distributions.scan(facts.layout), meta)
    tell.detail(f"{len(scanned.distributions)} distributions in {facts.layout.prefix}")
    live, identified, indexes = _seen(facts, meta, scanned, environ, programs, workspace, store, tell, searching, base)
    first = live.places[0]
    packages, plain = conda.identify(meta, first, store=store, environ=environ, tell=tell)
    linked = {one.package.key: rule.canonical(one.facts, facts.layout) for one in packages}
    installed = Installed(identified, live.places, store)
    rewritten = frozenset(rule.record_path(one.package.filename) for one in packages)
    made = records.made(first.prefix, rewritten) if meta.is_there else {}
    known, unread = _compared(live, packages, linked, identified, installed, made, store)
    beside = live.outside
    names = {one.facts.name for place in live.places for one in place.scanned.distributions}
    home = homefiles.look(names | {one.package.name for one in packages}, environ, without=workspace)
    own = {path: one.data for path, one in home.held.items()}
    rest, left = overlay(known.compositions, live.places, live.startup, beside, live.held, workspace, made, own, store)
    if base is not None:
        rest = _upon(base, live.places, rest)
    if searching is not None:
        carried(searching, live, identified, installed, rest, store)
        conda.search(searching, packages, linked, first.prefix, store)
        searching.refuse()
    unread = unread and (rest is None or layers.known_blob(rest.entries, facts=store.facts) is not None)
    return Locked(
        facts=facts,
        live=live,
        variables=variables.sort(environ, added),
        activation=records.variables(first.prefix, environ) if meta.is_there else (),
        packages=packages,
        plain=plain,
        beside=records.beside(first.prefix) if meta.is_there else (),
        identified=identified,
        indexes=indexes,
        compositions=known.compositions,
        overlay=rest,
        layers=known.layers,
        read=not unread,
        python_path=python_path(environ),
        outside=tuple(_carried(one) for one in beside),
        home=tuple(
            Carried(name=path, version="", why=f"{one.library} reads it in the home directory", size=len(one.data))
            for path, one in sorted(home.held.items())
        ),
        followed=followed(rest.entries, live.places, [*(one.root for one in beside), Path(HOME)]) if rest is not None else (),
        unknown=(
            *meta.problems,
            *home.problems,
            *_git_calls(beside),
            *untold(facts, live, environ, store),
            *(one.left for one in beside if one.left),
            *left,
            *hostpaths.folders(rest, live, workspace, store),
            *hostpaths.programs(live),
        ),
    )


def _seen(
    facts: Interpretation,
    meta: records.Meta,
    scanned: distributions.Scan,
    environ: Mapping[str, str],
    programs: Sequence[str],
    workspace: Path,
    store: Store,
    tell: Tell,
    searching: Search | None,
    base: Base | None,
) -> tuple[Live, tuple[identify.Identified, ...], tuple[str, ...]]:
    """What there is; every distribution of every place as a wheel; the indexes that were asked."""
    calm = Event()
    sources = packagemanagers.look(workspace, environ, store.facts)
    for problem in sources.problems:
        tell(f"note: {problem}")

    def ask() -> tuple[tuple[identify.Identified, ...], tuple[str, ...]]:
        calm.wait()
        return identify.identify(scanned.distributions, facts.layout, store=store, talk=tell, search=searching, sources=sources)

    with ThreadPoolExecutor(1) as pool:
        # The indexes are asked while the files are read, but not while PyTorch is loaded: both take much memory.
        answer = pool.submit(ask)
        try:
            live = look(
                facts,
                scanned,
                environ,
                packaged=meta.shared(facts.layout.prefix),
                programs=programs,
                workspace=workspace,
                store=store,
                calm=calm,
                pulled=base,
            )
        finally:
            calm.set()
        identified, indexes = answer.result()
    for place in live.places[1:]:
        if found := place.scanned.distributions:
            tell.detail(f"{len(found)} distributions in {place.layout.prefix}")
            more, _ = identify.identify(
                found, place.layout, place=place.number, store=store, talk=tell, search=searching, sources=sources
            )
            identified = (*identified, *more)
    return live, identified, indexes


def _compared(
    live: Live,
    packages: Sequence[conda.Identified],
    linked: Mapping[str, wheel.Installed],
    identified: Sequence[identify.Identified],
    installed: Mapping[str, wheel.Installed],
    made: Mapping[str, bytes],
    store: Store,
) -> tuple[Compared, bool]:
    """The places against what packages and wheels show there, and the layers; whether no file had to be read for it."""
    seen = compared.key(live.places, live.trees, [one.package for one in packages], [one.wheel for one in identified], made)
    known = compared.recall(seen, store.facts)
    if known is not None:
        return known, True
    held = live.held
    first, *others = live.places
    compositions = tuple(_composed(place, [linked, installed], held) for place in (first.with_made(made), *others))
    lower, upper = stack.layers(linked), stack.layers(installed)
    unread = all(layers.known_layer(group, facts=store.facts) for group in (*lower, *upper))
    known = Compared(
        compositions=compositions,
        layers=(
            *conda.layers_of(lower, linked, packages, compositions[0].altered, first, store),
            *layers_of(upper, installed, identified, compositions, live.places, store),
        ),
    )
    compared.remember(seen, known, store.facts)
    return known, unread


def _composed(place: Place, stacks: Sequence[Mapping[str, wheel.Installed]], held: Mapping[str, Entry]) -> compose.Composition:
    prefix = place.prefix
    composition = compose.compose(
        stacks,
        place.found,
        place.hashes,
        root=place.root,
        mine=place.owns,
        held=held,
        read=lambda path: (prefix / path).read_bytes(),
        starts=place.starts,
    )
    if composition.unheld:
        raise CaptureError(
            "is no file, folder or symlink, and no image can hold it",
            where=str(prefix / composition.unheld[0]),
            hint="remove it from the environment and capture again",
        )
    return composition


def _upon(base: Base, places: Sequence[Place], rest: Tree | None) -> Tree | None:
    """The overlay, with removals of what the base has in the environment's folders and the environment has not."""
    gone = fit.hidden(
        base,
        [(one.root, tuple({one.layout.purelib, one.layout.platlib}), [found.path for found in one.found]) for one in places],
    )
    if not gone:
        return rest
    if rest is None:
        return Tree(entries=tuple(ordered(gone)), contents=base.tree.contents)
    return msgspec.structs.replace(rest, entries=tuple(ordered([*gone, *rest.entries])))


def _git_calls(beside: Sequence[Outside]) -> Iterator[str]:
    places = [f"{one.root}/{place}" for one in beside for place in mentions.look(one.root, one.found, ()).git]
    if places:
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield f"{places[0]}{more}: this code calls git, and runs do not see the repository of a project outside the source"


def _carried(one: Outside) -> Carried:
    why = "Python imports from there, outside the environment"
    return Carried(name=str(one.root), version="", why=why, size=sum(file.size for file in one.found))
