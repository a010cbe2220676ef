"""What many runs share, in an audit: spec, image, code, recipe and data, each looked at once. Reads; writes nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.catalog import outputs
from repro_env.catalog.audit import Answer, Shared, State
from repro_env.catalog.records import Run
from repro_env.catalog.retention import when
from repro_env.flows import sourcedir
from repro_env.flows.committed import History, likely, place, written
from repro_env.flows.locate import ours
from repro_env.flows.specof import Found, Specs
from repro_env.model.errors import DataError, NetworkError, PlatformError, ReproEnvError
from repro_env.model.run import DataFact, SourceFact
from repro_env.model.talk import Tell
from repro_env.store import parts
from repro_env.store.carried import Carried
from repro_env.store.store import Store

_SpecOf = tuple[str, str | None]
"""A spec's digest, and that of its file where the record has it."""


class World:
    """What runs share, and where it is looked for."""

    def __init__(self, runs: Path, here: Path, store: Store, *, ask: bool, tell: Tell) -> None:
        self._runs = runs
        self._store = store
        self._ask = ask
        self._tell = tell
        self._specs = Specs(runs, here, store)
        self._histories: dict[tuple[Path, tuple[Path, ...]], History] = {}
        self._data: dict[str, str | DataError] = {}

    def shared(self, chosen: Sequence[Run]) -> tuple[Shared[Any], ...]:
        specs = Shared[_SpecOf]("spec", lambda key: key[0], self._spec)
        images = Shared[tuple[str, _SpecOf]]("image", lambda key: key[0], self._image)
        code = Shared[tuple[SourceFact, _SpecOf]]("code", lambda key: f"{key[0].directory} ({key[0].digest})", self._code)
        recipes = Shared[tuple[str, str, SourceFact]]("recipe", lambda key: key[0], self._recipe)
        data = Shared[DataFact]("data", lambda fact: fact.source, self._fingerprint)
        for run in chosen:
            # What differs from the capture is said for people; it decides nothing.
            source = msgspec.structs.replace(run.start.source, differs=(), directory=str(place(run.start.source)))
            spec = (run.start.spec, run.start.spec_file)
            specs.add(spec, run)
            images.add((run.start.image, spec), run)
            code.add((source, spec), run)
            for one in run.start.recipe:
                recipes.add((os.path.normpath(Path(run.start.cwd, one.path)), one.sha256, source), run)
            for fact in run.start.data:
                if fact.kind == "data":
                    data.add(fact, run)
        return specs, images, code, recipes, data

    def _spec(self, key: _SpecOf, run: Run) -> Answer:
        if self._specs.exact(run.start) is not None:
            return None
        found = self._specs.find(key[0])
        if found is not None and key[1] is None:
            return None
        unread = f"; not read: {'; '.join(self._specs.problems)}" if self._specs.problems else ""
        if found is None:
            return "gone", f"no spec has this digest: not beside the runs, in the store, or in git's history of them{unread}"
        where = f"commit {found.commit[:12]}" if found.commit else str(found.folder)
        return "gone", f"the file that it ran from ({key[1]}) is nowhere; the spec in {where} has the same identity{unread}"

    def _image(self, key: tuple[str, _SpecOf], run: Run) -> Answer:
        image = key[0]
        if self._is_stored(image):
            return None
        found = self._specs.of(run.start)
        if found is None:
            return "gone", "it is not in the store, and there is no spec to rebuild it from"
        if found.spec.expected.image_id != image:
            return "gone", f"it is not in the store, and the spec now makes {found.spec.expected.image_id}"
        return self._planned(found)

    def _is_stored(self, image: str) -> bool:
        """Whether the store holds it whole."""
        config = self._store.images.get(image)
        if config is None:
            return False
        layers = msgspec.json.decode(config, type=_Config).rootfs.diff_ids
        return all(self._store.layers.path(one) is not None for one in layers)

    def _planned(self, found: Found) -> Answer:
        """Whether everything that a rebuild takes is to be had."""
        from repro_env.build.direct import Direct
        from repro_env.flows.rebuild import check_platform

        try:
            check_platform(found.spec)
            Direct(found.spec, found.folder, self._store).plan(ask=self._ask)
        except (PlatformError, NetworkError) as error:
            return "unknown", f"it is not in the store, and whether it can be rebuilt could not be told: {error}"
        except ReproEnvError as error:
            return "gone", f"it is not in the store and cannot be rebuilt: {error}"
        return None

    def _code(self, key: tuple[SourceFact, _SpecOf], run: Run) -> Answer:
        fact = key[0]
        if self._store.layers.path(fact.digest) is not None:
            return None
        found = self._specs.of(run.start)
        folders = {one.folder for one in (*self._specs.all(), *([found] if found else []))}
        if any(Carried(folder / parts.BLOBS).has(fact.digest, self._store.facts) for folder in sorted(folders)):
            return None
        root = place(fact)
        own = self._runs.is_relative_to(root) or (found is not None and sourcedir.is_known(found.spec, found.folder, self._store))
        if own and root.is_dir() and (self._is_live(fact, found, run) or self._is_committed(fact, found, run)):
            return None
        where = "the store, the spec's blobs, the folder as it is now, or git's newest commits before the run"
        if found is not None and (found.folder / parts.REMOTE).is_file():
            return self._is_pushed(fact, found, where)
        return "gone", f"it is not in {where}"

    def _is_live(self, fact: SourceFact, found: Found | None, run: Run) -> bool:
        """Whether the folder is that very tree now."""
        from repro_env.flows.code import live
        from repro_env.io.files import FileContents
        from repro_env.lock import layers

        source = found.spec.observed.source if found is not None else None
        if found is None or source is None:
            return False
        try:
            never = (self._runs, *written(run.start))
            code = live(source, place(fact), found.folder, self._store, without=never)
            entries = sorted(code.entries.values(), key=lambda one: one.key)
            return layers.tree_blob(entries, FileContents(place(fact)), facts=self._store.facts).sha256 == fact.digest
        except ReproEnvError:
            return False

    def _is_committed(self, fact: SourceFact, found: Found | None, run: Run) -> bool:
        source = found.spec.observed.source if found is not None else None
        root = place(fact)
        never = (*ours(root, found.folder if found is not None else root / "repro"), self._runs, *written(run.start))
        if (root, never) not in self._histories:
            self._histories[root, never] = History(root, never=never, exclude=source.exclude if source is not None else ())
        named = likely(source) if source is not None else ()
        return self._histories[root, never].find(fact.digest, likely=named, before=when(run)) is not None

    def _is_pushed(self, fact: SourceFact, found: Found, where: str) -> Answer:
        from repro_env.build.trees import Trees

        source = found.spec.observed.source
        if source is None or source.tree.sha256 != fact.digest:
            return "gone", f"it is not in {where}"
        if not self._ask:
            return "unknown", f"it is not in {where}; where the spec was pushed was not asked (--ask does)"
        trees = Trees(found.spec, found.folder, self._store)
        try:
            there = trees.item("source", source.tree, ask=True)[0].origin != "nowhere"
        except ReproEnvError as error:
            return "unknown", f"it is not in {where}; where the spec was pushed: {error}"
        finally:
            trees.givers.close()
        return None if there else ("gone", f"it is not in {where}, nor where the spec was pushed")

    def _recipe(self, key: tuple[str, str, SourceFact], run: Run) -> Answer:  # noqa: ARG002
        """A file of the source may be edited: the source tree of the run has it as it was."""
        path, digest, source = key
        now = outputs.digest(Path(path))
        if now == digest:
            return None
        state: State = "changed" if now else "gone"
        why = f"it was {digest[:19]}…, it is {now[:19]}…" if now else "nothing is there"
        root = place(source)
        if not Path(path).is_relative_to(root):
            return state, why
        tree = self._store.layers.path(source.digest)
        if tree is None:
            return "unknown", f"{why}; the run's own source tree is not in the store, and may have it"
        return (
            None
            if outputs.digest(tree / Path(path).relative_to(root)) == digest
            else (state, f"{why}; it is not in the run's source either")
        )

    def _fingerprint(self, fact: DataFact, run: Run) -> Answer:  # noqa: ARG002
        from repro_env.capture.data import look

        if fact.digest is None:
            return "unknown", "no digest of it was recorded"
        if not Path(fact.source).exists():
            return "gone", f"nothing is there; the run saw it at {fact.target}"
        if fact.source not in self._data:
            try:
                self._data[fact.source] = look(Path(fact.source), fact.target, self._store.hashes, self._tell).data.digest
            except DataError as error:
                self._data[fact.source] = error
        now = self._data[fact.source]
        if isinstance(now, DataError):
            return "unknown", f"it could not be read: {now.what}"
        return None if now == fact.digest else ("changed", f"it was {fact.digest[:19]}…, it is {now[:19]}…")


class _Rootfs(msgspec.Struct):
    diff_ids: list[str]


class _Config(msgspec.Struct):
    rootfs: _Rootfs
