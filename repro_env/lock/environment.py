"""The environment's part of a capture: every distribution told, every layer computed, nothing written yet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import msgspec

from repro_env.base.tree import Tree
from repro_env.capture import conda as records
from repro_env.capture import distributions, python, variables
from repro_env.capture.distributions import InstalledDistribution
from repro_env.capture.unsaid import unsaid
from repro_env.image import conda as rule
from repro_env.image import stack, wheel
from repro_env.image.entry import Contents, Entry, entries_of, ordered
from repro_env.image.layout import inside
from repro_env.io import machine
from repro_env.io.files import FileContents
from repro_env.lock import assemble, compared, compose, conda, identify, layers, places
from repro_env.lock.live import Live, look
from repro_env.lock.outside import Outside, followed, linked, on_host, outside, python_path, systems
from repro_env.lock.places import Place
from repro_env.lock.search import Search
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob
from repro_env.model.environment import Carried, Interpretation, Layout, Variable, Variables
from repro_env.model.errors import CaptureError
from repro_env.model.image import Layer
from repro_env.model.spec import Identity, Rules
from repro_env.model.talk import Tell
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS, WheelContents


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    facts: Interpretation
    live: Live
    variables: Variables
    activation: tuple[Variable, ...]
    """What activating a conda environment sets."""
    packages: tuple[conda.Identified, ...]
    plain: tuple[Carried, ...]
    """Conda packages that are none here: their files are plain files of the environment."""
    beside: tuple[str, ...]
    """Folders in the prefix of a base conda environment that are no part of it."""
    identified: tuple[identify.Identified, ...]
    indexes: tuple[str, ...]
    compositions: tuple[compose.Composition, ...]
    """Of the places."""
    overlay: Tree | None
    layers: tuple[Layer, ...]
    """Of the conda packages and the distributions."""
    read: bool
    """Whether a layer has to be, or was, computed from the installed files after they were hashed."""
    python_path: str
    followed: tuple[Entry, ...]
    """Files outside of it that its symlinks lead to."""
    outside: tuple[Carried, ...]
    """Folders that Python imports from, outside of all of it."""
    unknown: tuple[str, ...]

    @property
    def installed(self) -> tuple[tuple[Place, InstalledDistribution], ...]:
        """Every distribution with its place."""
        return tuple((place, one) for place in self.live.places for one in place.scanned.distributions)

    @property
    def edited(self) -> tuple[str, ...]:
        """Files that are not as their distribution installed them."""
        pairs = zip(self.live.places, self.compositions, strict=True)
        return tuple(line for place, one in pairs for line in places.edited(place, one.edited))


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
    python_name: str | None,
    environ: Mapping[str, str],
    *,
    workspace: Path,
    programs: Sequence[str],
    store: Store,
    tell: Tell,
    search: Search | None = None,
) -> Locked:
    """Observe the environment of a python and lock it. `workspace` is the source folder: runs show it at its own path.

    `search` looks through all that a capture would carry, and raises for a secret in it.
    """
    facts = python.interpret(python_name, environ)
    meta = records.read(Path(facts.layout.prefix)) if facts.kind == "conda" else records.Meta((), ())
    scanned = records.without(distributions.scan(facts.layout), meta)
    tell(f"{len(scanned.distributions)} distributions in {facts.layout.prefix}")
    calm = Event()

    def ask() -> tuple[tuple[identify.Identified, ...], tuple[str, ...]]:
        calm.wait()
        return identify.identify(scanned.distributions, facts.layout, store=store, talk=tell, search=search)

    with ThreadPoolExecutor(1) as pool:
        # The indexes are asked while the files are read, but not while PyTorch is loaded: both take much memory.
        answer = pool.submit(ask)
        try:
            live = look(
                facts, scanned, environ, packaged=meta.shared(facts.layout.prefix), programs=programs, store=store, calm=calm
            )
        finally:
            calm.set()
        identified, indexes = answer.result()
    for place in live.places[1:]:
        if found := place.scanned.distributions:
            tell(f"{len(found)} distributions in {place.layout.prefix}")
            more, _ = identify.identify(found, place.layout, place=place.number, store=store, talk=tell, search=search)
            identified = (*identified, *more)
    packages, plain = conda.identify(meta, live.places[0], store=store, environ=environ, tell=tell)
    held = live.held
    linked_in = {one.package.key: rule.canonical(one.facts, facts.layout) for one in packages}
    installed = _Installed(identified, live.places, store)
    first = live.places[0]
    made = (
        records.made(first.prefix, frozenset(rule.record_path(one.package.filename) for one in packages)) if meta.is_there else {}
    )
    seen = compared.key(live.places, live.trees, [one.package for one in packages], [one.wheel for one in identified], made)
    known = compared.recall(seen, store.facts)
    compositions = (
        known.compositions
        if known is not None
        else tuple(_compose(place, [linked_in, installed], held) for place in (first.with_made(made), *live.places[1:]))
    )
    beside = outside(facts, live.startup, live.places, workspace)
    overlay = _overlay(compositions, live.places, beside, held, workspace, made, store)
    if search is not None:
        _search(search, live, identified, installed, overlay, store)
        conda.search(search, packages, linked_in, first.prefix, store)
    unread = overlay is None or layers.known_blob(overlay.entries, facts=store.facts) is not None
    if known is None:
        lower, upper = stack.layers(linked_in), stack.layers(installed)
        unread = unread and all(layers.known_layer(group, facts=store.facts) for group in (*lower, *upper))
        known = compared.Compared(
            compositions=compositions,
            layers=(
                *conda.layers_of(lower, linked_in, packages, compositions[0].altered, first.prefix, store),
                *_layers(upper, installed, identified, compositions, live.places, store),
            ),
        )
        compared.remember(seen, known, store.facts)
    return Locked(
        facts=facts,
        live=live,
        variables=variables.sort(environ),
        activation=records.variables(first.prefix, environ) if meta.is_there else (),
        packages=packages,
        plain=plain,
        beside=records.beside(first.prefix) if meta.is_there else (),
        identified=identified,
        indexes=indexes,
        compositions=compositions,
        overlay=overlay,
        layers=known.layers,
        read=not unread,
        python_path=python_path(environ),
        outside=tuple(
            Carried(
                name=str(one.root),
                version="",
                why="Python imports from there, outside the environment",
                size=sum(file.size for file in one.found),
            )
            for one in beside
        ),
        followed=followed(overlay.entries, live.places, [one.root for one in beside]) if overlay is not None else (),
        unknown=(
            *meta.problems,
            *_unknown(live, environ),
            *_unsaid(facts, live.places, store),
            *(one.left for one in beside if one.left),
        ),
    )


def _compose(place: Place, stacks: Sequence[Mapping[str, wheel.Installed]], held: Mapping[str, Entry]) -> compose.Composition:
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


def identity(locked: Locked, seed: int, hold: Callable[[Tree], TreeBlob]) -> Identity:
    """The identity of a locked environment. `hold` says what becomes of each tree: carried, or only hashed."""
    live = locked.live
    return assemble.identity(
        locked.facts,
        machine.platform(),
        assemble.Trees(
            base=hold(live.base),
            unowned=hold(live.unowned) if live.unowned is not None else None,
            interpreter=hold(live.interpreter) if live.interpreter is not None else None,
            overlay=hold(locked.overlay) if locked.overlay is not None else None,
        ),
        [one.package for one in locked.packages],
        [one.wheel for one in locked.identified],
        locked.variables,
        activation=locked.activation,
        others=[place.layout for place in live.places[1:]],
        # Where nothing of the user's is held, the image is the same for every user.
        user_base=live.startup.user_base if live.startup.user_base in {place.layout.prefix for place in live.places} else "",
        python_path=locked.python_path,
        seed=seed,
    )


class _Installed(Mapping[str, wheel.Installed]):
    """What each wheel becomes, by its key; made, or read from the store, when it is asked for."""

    def __init__(self, identified: Sequence[identify.Identified], observed: Sequence[Place], store: Store) -> None:
        self._wheels = {one.wheel.key: one for one in identified}
        self._places = observed
        self._store = store
        self._made: dict[str, wheel.Installed] = {}

    def __getitem__(self, key: str) -> wheel.Installed:
        if key not in self._made:
            one = self._wheels[key]
            self._made[key] = _installed(one, self._places[one.wheel.place].layout, self._store)
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._wheels)

    def __len__(self) -> int:
        return len(self._wheels)


def _installed(one: identify.Identified, layout: Layout, store: Store) -> wheel.Installed:
    """What the wheel becomes. The store remembers that, and the wheel's facts: a rebuild here can use the installed files."""
    key = codec.digest([one.wheel.filename, one.wheel.sha256, one.wheel.name, layout, Rules().canonical])
    known = store.facts.recall("installed", key, wheel.Installed)
    if known is not None:
        return known
    facts = identify.facts_of(one, store)
    store.facts.put(FACTS, one.wheel.sha256, codec.canonical(facts))
    made = wheel.canonical(facts, layout, name=one.wheel.name)
    store.facts.put("installed", key, codec.canonical(made))
    return made


def _layers(
    groups: Sequence[stack.GroupLayer],
    installed: Mapping[str, wheel.Installed],
    identified: Sequence[identify.Identified],
    compositions: Sequence[compose.Composition],
    observed: Sequence[Place],
    store: Store,
) -> tuple[Layer, ...]:
    sources: dict[str, Contents] = {}
    for one in identified:
        key, place = one.wheel.key, one.wheel.place
        altered = compositions[place].altered[key] & set(installed[key].members)
        original = WheelContents(identify.whole(one, store), installed[key]) if altered else None
        sources[key] = layers.DistributionContents(installed[key], FileContents(observed[place].prefix), altered, original)
    holds = {one.wheel.key: f"{one.wheel.key}=={one.wheel.version}" for one in identified}
    return layers.diff_ids(groups, sources, holds, facts=store.facts)


def _overlay(
    compositions: Sequence[compose.Composition],
    observed: Sequence[Place],
    beside: Sequence[Outside],
    held: Mapping[str, Entry],
    workspace: Path,
    made: Mapping[str, bytes],
    store: Store,
) -> Tree | None:
    entries = [entry for one in compositions for entry in one.overlay]
    roots = [workspace, *(one.root for one in beside)]
    links = linked(entries, observed, held, roots)
    for one in beside:
        entries += entries_of(one.found, store.hashes.of(one.root, one.found), below=inside(str(one.root)))
        links.follow(str(one.named))
    for place in observed:
        if place.layout.in_place:
            links.follow(place.layout.prefix)
    found, _ = links.finish(store.hashes)
    parents = {entry.path.rpartition("/")[0] for entry in found}
    entries += [entry for entry in found if held.get(entry.path) != entry and entry.path not in parents]
    return Tree(entries=tuple(ordered(entries)), contents=_OverlayContents(observed[0], made)) if entries else None


class _OverlayContents:
    """Overlay entries below the environment's place come from its prefix, all others from their own path.

    `made`: what stands in the place of files below the prefix.
    """

    def __init__(self, place: Place, made: Mapping[str, bytes]) -> None:
        self._made = {f"{place.root}/{path}": data for path, data in made.items()}
        self._root = f"{place.root}/"
        self._environment = FileContents(place.prefix, strip=place.root)
        self._outside = FileContents(Path("/"))

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        if entry.path in self._made:
            return iter([self._made[entry.path]])
        below = entry.path.startswith(self._root)
        return (self._environment if below else self._outside).chunks(entry)


def _search(
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


def _unknown(live: Live, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What could not be told or cannot be held, in words. Never empty by default: each source of facts adds its own."""
    lines = [line for place in live.places for line in places.edited(place, place.scanned.problems)]
    lines += [line for tree in live.trees for line in tree.unknown]
    lines += systems(live.startup, live.places)
    if live.startup.problem:
        lines.append(f"start of Python: {live.startup.problem}")
    path = environ.get("PYTHONPATH", "")
    if path and any(not part.startswith("/") for part in path.split(":")):
        lines.append("PYTHONPATH has a relative or empty entry, which means another folder in every working directory: left out")
    return tuple(dict.fromkeys(lines))


def _unsaid(facts: Interpretation, observed: Sequence[Place], store: Store) -> tuple[str, ...]:
    """Remembered while no file of a place changes: bytecode is looked at once."""
    told: list[str] = []
    for place in observed:
        key = codec.digest([place.layout, place.state, facts.interpreter.cache_tag])
        known = store.facts.recall("unsaid", key, tuple[str, ...])
        if known is None:
            known = unsaid(place.layout, place.found, facts.interpreter.cache_tag)
            if place.settled:
                store.facts.put("unsaid", key, codec.canonical(known))
        told += known
    return tuple(told)


def check_unchanged(locked: Locked) -> None:
    """Nobody installed or edited while the layers were computed: the trees still have the keys they were hashed by."""
    for place in locked.live.places:
        again = places.listed(locked.facts, place.layout, place.scanned)
        now = {one.path: one.key for one in again if one.kind == "file"}
        before = {one.path: one.key for one in place.found if one.kind == "file"}
        changed = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
        if changed:
            raise CaptureError(
                f"changed while it was captured ({len(changed)} files in all)",
                where=str(place.prefix / changed[0]),
                hint="wait until nothing is installing into the environment and capture again",
            )
