"""The environment's part of a capture: every distribution told, every layer computed, nothing written yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from repro_env.base import host, interpreter
from repro_env.base.tree import Tree
from repro_env.capture import distributions, python, system, variables
from repro_env.image import stack, wheel
from repro_env.image.entry import Contents, Entry, entries_of, ordered
from repro_env.image.layout import inside
from repro_env.io import machine
from repro_env.io.files import FileContents, Found, walk
from repro_env.lock import assemble, compose, identify, layers
from repro_env.lock.outside import Outside, check_links, outside, python_path
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob
from repro_env.model.environment import Host, Interpretation, Layout, Startup, Variables
from repro_env.model.errors import CaptureError
from repro_env.model.image import Layer
from repro_env.model.spec import Identity, Rules
from repro_env.model.talk import Tell
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS, WheelContents


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    facts: Interpretation
    startup: Startup
    host: Host
    variables: Variables
    scanned: distributions.Scan
    found: tuple[Found, ...]
    """The whole prefix but its bytecode, as it was when its files were hashed."""
    identified: tuple[identify.Identified, ...]
    indexes: tuple[str, ...]
    composition: compose.Composition
    base: Tree
    interpreter: Tree
    overlay: Tree | None
    layers: tuple[Layer, ...]
    """Of the distributions."""
    read: bool
    """Whether a layer has to be, or was, computed from the installed files after they were hashed."""
    python_path: str
    unknown: tuple[str, ...]


def lock(
    python_name: str | None,
    environ: Mapping[str, str],
    *,
    workspace: Path,
    programs: Sequence[str],
    store: Store,
    tell: Tell,
) -> Locked:
    """Observe the environment of a python and lock it. `workspace` is the source folder: runs show it at its own path."""
    facts = python.interpret(python_name, environ)
    prefix = Path(facts.layout.prefix)
    scanned = distributions.scan(facts)
    tell(f"{len(scanned.distributions)} distributions in {prefix}")
    with ThreadPoolExecutor(2) as pool:
        # Python starts and the indexes are asked while the files are read: two wait, the third has the disk.
        starting = pool.submit(python.start_up, facts, environ)
        answer = pool.submit(identify.identify, scanned.distributions, facts, store=store, talk=tell)
        found = tuple(walk(prefix, skip=compose.bytecode))
        hashes = store.hashes.of(prefix, found)
        libraries = [prefix / one.path for one in found if one.kind == "file" and ".so" in one.path.rpartition("/")[2]]
        startup = starting.result()
        host_base = host.cut(
            facts,
            startup,
            libraries=libraries,
            programs=programs,
            locale=startup.locale,
            hashes=store.hashes,
            known=store.facts,
        )
        runtime = interpreter.interpreter_tree(facts, hashes=store.hashes)
        identified, indexes = answer.result()
    installed = {one.wheel.name: _installed(one, facts.layout, store) for one in identified}
    composition = compose.compose(installed, found, hashes, read=lambda path: (prefix / path).read_bytes())
    if composition.unheld:
        raise CaptureError(
            "is no file, folder or symlink, and no image can hold it",
            where=str(prefix / composition.unheld[0]),
            hint="remove it from the environment and capture again",
        )
    beside = outside(facts, startup, scanned, workspace)
    held = {entry.path for tree in (host_base, runtime) for entry in tree.entries}
    check_links(composition.overlay, prefix, held, [workspace, *(one.root for one in beside)])
    overlay = _overlay(composition, prefix, beside, store)
    groups = stack.layers(installed)
    unread = all(layers.known_layer(group, facts=store.facts) for group in groups)
    unread = unread and (overlay is None or layers.known_blob(overlay.entries, facts=store.facts) is not None)
    return Locked(
        facts=facts,
        startup=startup,
        host=system.host(),
        variables=variables.sort(environ),
        scanned=scanned,
        found=found,
        identified=identified,
        indexes=indexes,
        composition=composition,
        base=host_base,
        interpreter=runtime,
        overlay=overlay,
        layers=_layers(groups, installed, identified, composition, prefix, store),
        read=not unread,
        python_path=python_path(environ),
        unknown=_unknown(startup, scanned, host_base, runtime, environ),
    )


def identity(locked: Locked, seed: int, hold: Callable[[Tree], TreeBlob]) -> Identity:
    """The identity of a locked environment. `hold` says what becomes of each tree: carried, or only hashed."""
    return assemble.identity(
        locked.facts,
        machine.platform(),
        assemble.Trees(
            base=hold(locked.base),
            interpreter=hold(locked.interpreter),
            overlay=hold(locked.overlay) if locked.overlay is not None else None,
        ),
        [one.wheel for one in locked.identified],
        locked.variables,
        python_path=locked.python_path,
        seed=seed,
    )


def _installed(one: identify.Identified, layout: Layout, store: Store) -> wheel.Installed:
    """What the wheel becomes. The store remembers that, and the wheel's facts: a rebuild here can use the installed files."""
    key = codec.digest([one.facts.filename, one.wheel.sha256, one.wheel.name, layout, Rules().canonical])
    known = store.facts.recall("installed", key, wheel.Installed)
    if known is not None:
        return known
    store.facts.put(FACTS, one.wheel.sha256, codec.canonical(one.facts))
    made = wheel.canonical(one.facts, layout, name=one.wheel.name)
    store.facts.put("installed", key, codec.canonical(made))
    return made


def _layers(
    groups: Sequence[stack.GroupLayer],
    installed: Mapping[str, wheel.Installed],
    identified: Sequence[identify.Identified],
    composition: compose.Composition,
    prefix: Path,
    store: Store,
) -> tuple[Layer, ...]:
    live = FileContents(prefix)
    sources: dict[str, Contents] = {}
    for one in identified:
        name = one.wheel.name
        altered = composition.altered[name] & set(installed[name].members)
        original = WheelContents(identify.whole(one, store), installed[name]) if altered else None
        sources[name] = layers.DistributionContents(installed[name], live, altered, original)
    versions = {one.wheel.name: one.wheel.version for one in identified}
    return layers.diff_ids(groups, sources, versions, facts=store.facts)


def _overlay(composition: compose.Composition, prefix: Path, beside: Sequence[Outside], store: Store) -> Tree | None:
    entries = list(composition.overlay)
    for one in beside:
        entries += entries_of(one.found, store.hashes.of(one.root, one.found), below=inside(str(one.root)))
    return Tree(entries=tuple(ordered(entries)), contents=_OverlayContents(prefix)) if entries else None


class _OverlayContents:
    """Overlay entries below the environment's place come from the live prefix, others from their own path."""

    def __init__(self, prefix: Path) -> None:
        self._environment = FileContents(prefix, strip=stack.ROOT)
        self._outside = FileContents(Path("/"))

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        below = entry.path.startswith(stack.ROOT + "/")
        return (self._environment if below else self._outside).chunks(entry)


def _unknown(
    startup: Startup, scanned: distributions.Scan, host_base: Tree, runtime: Tree, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """What could not be told or cannot be held, in words. Never empty by default: each source of facts adds its own."""
    notes = [*scanned.problems, *host_base.unknown, *runtime.unknown]
    if startup.problem:
        notes.append(f"start of Python: {startup.problem}")
    notes += [
        f"{name} is set: libraries found through it are held only where a captured file needs them"
        for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")
        if environ.get(name)
    ]
    if any(part and not part.startswith("/") for part in environ.get("PYTHONPATH", "").split(":")):
        notes.append("PYTHONPATH has a relative entry, which means another folder in every working directory: left out")
    return tuple(dict.fromkeys(notes))


def check_unchanged(locked: Locked) -> None:
    """Nobody installed or edited while the layers were computed: the tree still has the keys it was hashed by."""
    prefix = Path(locked.facts.layout.prefix)
    now = {one.path: one.key for one in walk(prefix, skip=compose.bytecode) if one.kind == "file"}
    before = {one.path: one.key for one in locked.found if one.kind == "file"}
    changed = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
    if changed:
        raise CaptureError(
            f"changed while it was captured ({len(changed)} files in all)",
            where=str(prefix / changed[0]),
            hint="wait until nothing is installing into the environment and capture again",
        )
