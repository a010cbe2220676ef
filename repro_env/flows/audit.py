"""The story of `repro-env runs audit`: every record against what is there now. Reads; writes nothing.

What several runs share (an image, a source tree, data) is looked at once and named once, with all their ids.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from repro_env.catalog import annotation, ids, outputs, records
from repro_env.catalog import audit as rule
from repro_env.catalog.audit import BAD, Claim, Finding, Part, State
from repro_env.catalog.index import Index
from repro_env.catalog.left import left
from repro_env.catalog.outputs import Left
from repro_env.catalog.parents import run_above
from repro_env.catalog.records import Run, Unreadable
from repro_env.catalog.retention import parents, when
from repro_env.flows import before, snapshot
from repro_env.flows.committed import History, likely, written
from repro_env.flows.locate import ours
from repro_env.flows.specof import Found, Specs
from repro_env.io.files import sha256_of
from repro_env.model import redact
from repro_env.model.errors import DataError, NetworkError, PlatformError, ReproEnvError, SpecVersionError
from repro_env.model.run import DataFact, Mount, SourceFact
from repro_env.model.talk import Tell
from repro_env.store import parts
from repro_env.store.carried import Carried
from repro_env.store.store import Store

Answer = tuple[State, str] | None
"""What is wrong, and why; None when nothing is."""
K = TypeVar("K")
_SpecOf = tuple[str, str | None]
"""A spec's digest, and that of its file where the record has it."""


class Audit(msgspec.Struct, frozen=True):
    runs: int
    checked: dict[str, int]
    """Part -> how many of it were held against a record: each image, source tree and data set once."""
    findings: tuple[Finding, ...]

    @property
    def bad(self) -> int:
        return sum(one.state in BAD for one in self.findings)


class _Shared(Generic[K]):
    """Things that several runs name: each is looked at once."""

    def __init__(self, part: Part, name: Callable[[K], str], look: Callable[[K, Run], Answer]) -> None:
        self.part = part
        self._name = name
        self._look = look
        self._answers: dict[K, Answer] = {}
        self._runs: dict[K, list[str]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, key: K, run: Run) -> None:
        if key not in self._answers:
            self._answers[key] = self._look(key, run)
        self._runs.setdefault(key, []).append(run.start.id)

    def findings(self) -> Iterator[Finding]:
        for key, answer in self._answers.items():
            if answer is not None:
                state, why = answer
                what = redact.line(self._name(key))
                yield Finding(part=self.part, state=state, what=what, why=redact.line(why), runs=tuple(self._runs[key]))


def audit(runs: Path, words: Sequence[str], *, here: Path, store: Store, ask: bool, tell: Tell) -> Audit:
    """Hold runs against what is there; all of the folder without `words`.

    `ask`: ask servers whether they still have what a rebuild would fetch. Raises `RecordError` for a word that names no run.
    """
    there, broken = records.listing(runs)
    if words:
        wanted = {records.find(runs, word) for word in words}
        chosen, bad = [run for run in there if run.folder in wanted], [one for one in broken if one.folder in wanted]
    else:
        chosen, bad = there, broken
    findings = [_unreadable(one) for one in bad]
    checked: dict[str, int] = {"record": len(chosen) + len(bad)}
    sizes = sum(one.size for run in chosen if run.end is not None for one in (*run.end.outputs, *run.end.trace))
    with tell.progress(sizes, "reading outputs") as advance:
        for run in chosen:
            mine, count = _own(run)
            findings += mine
            for part, many in count.items():
                checked[part] = checked.get(part, 0) + many
            advance(sum(one.size for one in (*run.end.outputs, *run.end.trace)) if run.end is not None else 0)
    lost, checked["checkpoint"] = _checkpoints(chosen, there, store)
    findings += lost
    near = {run.start.id: run.folder for run in there}
    why = {one.folder.name[-ids.SHORT :]: str(one.why) for one in broken}
    far = _Far(store)
    for run in chosen:
        named = parents(run)
        found = {one.id: folder for one in named if (folder := near.get(one.id) or far.folder(one.id, run)) is not None}
        findings += rule.parents(run, named, {key: _digest(folder / "end.json") for key, folder in found.items()}, why)
        checked["parent"] = checked.get("parent", 0) + len(named)
    for each in _World(runs, here, store, ask=ask, tell=tell).shared(chosen):
        findings += each.findings()
        checked[each.part] = len(each)
    return Audit(len(chosen) + len(bad), checked, rule.ordered(findings))


def _unreadable(one: Unreadable) -> Finding:
    files = sum(len(names) for _, _, names in os.walk(one.folder / "files"))
    orphans = f"; {files} files in it have no record" if files else ""
    state: State = "changed"
    if isinstance(one.why, SpecVersionError):
        state = "unknown"
    elif not (one.folder / "start.json").exists():
        state = "gone"
    return Finding(part="record", state=state, what=one.folder.name, why=f"{one.why.what}{orphans}", runs=(one.folder.name,))


def _own(run: Run) -> tuple[list[Finding], dict[str, int]]:
    """What belongs to one run alone: its record and its files."""
    found = rule.record(run, _digest(run.folder / "start.json") or "")
    try:
        annotation.of(run.folder)
    except SpecVersionError as error:
        found.append(_said(run, "unknown", error))
    except ReproEnvError as error:
        found.append(_said(run, "changed", error))
    if run.end is None:
        return found, {}
    found += rule.outputs(run, outputs.collect(run.files))
    for name, digest in ((before.BEFORE, run.start.before), (before.AFTER, run.end.after)):
        now = _digest(run.folder / name)
        if digest is not None and now != digest:
            what = f"{name} is not the one that the record means" if now else f"{name} is not there"
            found.append(Finding(part="record", state="changed" if now else "gone", what=name, why=what, runs=(run.start.id,)))
    has_trace = bool(run.end.trace) or (run.folder / records.TRACE).is_dir()
    found += rule.trace(run, outputs.collect(run.folder / records.TRACE) if has_trace else Left((), ()))
    others = sum(not line.startswith("(") for line in run.end.others)
    return found, {"output": len(run.end.outputs) + others, "trace": len(run.end.trace)}


def _said(run: Run, state: State, error: ReproEnvError) -> Finding:
    where = Path(error.where).name
    return Finding(part="record", state=state, what=f"{annotation.FOLDER}/{where}", why=error.what, runs=(run.start.id,))


def _checkpoints(chosen: Sequence[Run], there: Sequence[Run], store: Store) -> tuple[list[Finding], int]:
    """Folders of checkpoints as their last run left them: runs before it had other files there, and that is as it should be."""
    found: list[Finding] = []
    count = 0
    sources = {one.source for run in chosen for one in run.start.data if one.kind == "checkpoints"}
    for source in sorted(sources):
        users = [
            (run, one) for run in there for one in run.start.data if one.kind == "checkpoints" and _overlap(one.source, source)
        ]
        last, mount = users[0]
        listing, why = None, ""
        if mount.source != source:
            why = "the last run that could write there had another folder mounted, above it or below"
        elif last.end is None:
            why = f"the last run that could write there is {last.state}, so what it left was never recorded"
        elif last.end.after is None:
            why = "the last run that could write there did not record what it left"
        else:
            try:
                listing = before.read(last.folder, before.AFTER, last.end.after)
            except ReproEnvError as error:
                why = f"the list of what was left there: {error.what}"
        if listing is None:
            found.append(Finding(part="checkpoint", state="unknown", what=source, why=why, runs=(last.start.id,)))
            continue
        files = [one for one in listing.files if one.target == mount.target]
        count += len(files)
        if not Path(source).exists():
            why = f"nothing is there; the last run left {len(files)} files in it"
            found.append(Finding(part="checkpoint", state="gone", what=source, why=why, runs=(last.start.id,)))
            continue
        now = before.take([Mount(kind="checkpoints", source=source, target=mount.target)], store)
        if now is None or any(line.startswith(f"{mount.target} (") for line in now.others):
            why = f"it cannot be read: {'; '.join(now.others[:1]) if now is not None else ''}"
            found.append(Finding(part="checkpoint", state="unknown", what=source, why=why, runs=(last.start.id,)))
            continue
        # The oldest run that left these very bytes there made them; one that mounts the folder later only sees them.
        owners = {
            (one.path, one.sha256): run.start.id
            for run, other in users
            if other.source == source
            for one in left(run.folder, run.start, run.end)
            if one.target == other.target
        }
        claims = [Claim(_below(source, one.path), one.sha256, owners.get((one.path, one.sha256), last.start.id)) for one in files]
        found += rule.checkpoints(claims, {_below(source, one.path): one.sha256 for one in now.files})
    return found, count


def _below(source: str, path: str) -> str:
    return f"{source}/{path}" if path else source


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(other.rstrip("/") + "/") or other.startswith(one.rstrip("/") + "/")


class _Far:
    """Parents in other folders of runs: where a mount of the run leads, and those that this store has seen."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def folder(self, parent: str, run: Run) -> Path | None:
        return _mounted(parent, run) or self._seen.get(parent)

    @cached_property
    def _seen(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for runs in self._store.seen.folders():
            with contextlib.suppress(ReproEnvError):
                found |= {one.id: Path(one.folder) for one in Index(self._store.runs).listing(runs).runs}
        return found


def _mounted(parent: str, run: Run) -> Path | None:
    for one in run.start.data:
        folder = run_above(Path(one.source))
        if folder is not None:
            with contextlib.suppress(ReproEnvError):
                if records.read(folder).start.id == parent:
                    return folder
    return None


def _digest(path: Path) -> str | None:
    """Of a plain file, through symlinks; None where there is none. A record may name a pipe or a device: none is opened."""
    try:
        real = path.resolve(strict=True)
        return f"sha256:{sha256_of(real)}" if real.is_file() else None
    except (OSError, RuntimeError):  # the second: symlinks in a circle
        return None


class _World:
    """What runs share, and where it is looked for."""

    def __init__(self, runs: Path, here: Path, store: Store, *, ask: bool, tell: Tell) -> None:
        self._runs = runs
        self._store = store
        self._ask = ask
        self._tell = tell
        self._specs = Specs(runs, here, store)
        self._histories: dict[tuple[str, tuple[Path, ...]], History] = {}
        self._data: dict[str, str | DataError] = {}

    def shared(self, chosen: Sequence[Run]) -> tuple[_Shared[Any], ...]:
        specs = _Shared[_SpecOf]("spec", lambda key: key[0], self._spec)
        images = _Shared[tuple[str, _SpecOf]]("image", lambda key: key[0], self._image)
        code = _Shared[tuple[SourceFact, _SpecOf]]("code", lambda key: f"{key[0].path} ({key[0].digest})", self._code)
        recipes = _Shared[tuple[str, str, SourceFact]]("recipe", lambda key: key[0], self._recipe)
        data = _Shared[DataFact]("data", lambda fact: fact.source, self._fingerprint)
        for run in chosen:
            # What differs from the capture is said for people; it decides nothing.
            source = msgspec.structs.replace(run.start.source, differs=(), frozen=False)
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
        root = Path(fact.path)
        own = self._runs.is_relative_to(root) or (found is not None and snapshot.is_known(found.spec, found.folder, self._store))
        if own and root.is_dir() and (self._is_live(fact, found, run) or self._is_committed(fact, found, run)):
            return None
        where = "the store, the spec's blobs, the folder as it is now, or git's newest commits before the run"
        if found is not None and (found.folder / parts.REMOTE).is_file():
            return self._is_pushed(fact, found, where)
        return "gone", f"it is not in {where}"

    def _is_live(self, fact: SourceFact, found: Found | None, run: Run) -> bool:
        """Whether the folder is that very tree now."""
        from repro_env.flows.code import live
        from repro_env.image.entry import Entry
        from repro_env.io.files import FileContents
        from repro_env.lock import layers

        source = found.spec.observed.source if found is not None else None
        if found is None or source is None:
            return False
        try:
            never = (self._runs, *written(run.start))
            code = live(source, Path(fact.path), found.folder, self._store, without=never)
            entries = sorted(code.tree.entries().values(), key=lambda one: one.key) if code.tree is not None else list[Entry]()
            return layers.tree_blob(entries, FileContents(Path(fact.path)), facts=self._store.facts).sha256 == fact.digest
        except ReproEnvError:
            return False

    def _is_committed(self, fact: SourceFact, found: Found | None, run: Run) -> bool:
        source = found.spec.observed.source if found is not None else None
        root = Path(fact.path)
        never = (*ours(root, found.folder if found is not None else root / "repro"), self._runs, *written(run.start))
        if (fact.path, never) not in self._histories:
            self._histories[fact.path, never] = History(root, never=never, exclude=source.exclude if source is not None else ())
        named = likely(source) if source is not None else ()
        return self._histories[fact.path, never].find(fact.digest, likely=named, before=when(run)) is not None

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
        now = _digest(Path(path))
        if now == digest:
            return None
        state: State = "changed" if now else "gone"
        why = f"it was {digest[:19]}…, it is {now[:19]}…" if now else "nothing is there"
        if not path.startswith(source.path + "/"):
            return state, why
        tree = self._store.layers.path(source.digest)
        if tree is None:
            return "unknown", f"{why}; the run's own source tree is not in the store, and may have it"
        return (
            None
            if _digest(tree / path[len(source.path) + 1 :]) == digest
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
