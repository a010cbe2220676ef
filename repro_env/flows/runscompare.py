"""The story of `repro-env runs compare`: two recorded runs, and in what they differ. Nothing is run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.catalog import annotation, parents, records
from repro_env.catalog.records import Run
from repro_env.flows import before, committed, compare, results, sides, traces, trees
from repro_env.flows.runs import where
from repro_env.flows.specof import Specs
from repro_env.image.entry import Entry
from repro_env.model.errors import ArtifactError, ReproEnvError
from repro_env.model.run import Start
from repro_env.store.store import Store
from repro_env.verify import divergence
from repro_env.verify import runs as rules
from repro_env.verify.difference import Difference, NotCompared, ordered
from repro_env.verify.judge import Judge
from repro_env.verify.runs import Beside, Fact, Measured, Outputs
from repro_env.verify.tree import changes, described


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    left: Run
    right: Run
    tags: tuple[tuple[str, ...], tuple[str, ...]]
    facts: tuple[Fact, ...]
    """What the records say otherwise."""
    differences: tuple[Difference, ...]
    """Of environment, code and data; ordered."""
    missing: tuple[NotCompared, ...]
    metrics: tuple[Measured, ...]
    outputs: Outputs
    steps: divergence.Compared | None
    """Their traces; None when neither has one."""

    @property
    def same(self) -> bool:
        """Whether all outputs are there on both sides, byte for byte."""
        return self.outputs.same


def compared(words: tuple[str, str], runs: Path | None, here: Path, store: Store) -> Compared:
    """Compare two runs, each named by its id or by its folder. `here`: the caller's folder, absolute.

    Raises `RecordError` for one that is not there, `SpecError` for a record that cannot be read.
    """
    left, right = (records.read(_folder(word, runs, here)) for word in words)
    differences, missing = _environment(left, right, here, store)
    differences += _data(left.start, right.start)
    facts = rules.begun(left.start, right.start)
    outputs = Outputs()
    metrics: tuple[Measured, ...] = ()
    if left.end is not None and right.end is not None:
        judge = Judge(results.own(left.folder, left.start, left.end), results.own(right.folder, right.start, right.end))
        outputs = rules.outputs(left.end, right.end, (_beside(left), _beside(right)), judge.pair_names)
        facts = _sorted(*facts, *rules.ended(left.end, right.end, outputs))
        metrics = rules.metrics(left.end.metrics, right.end.metrics, outputs)
    for run in (left, right):
        if run.end is None:
            missing.append(NotCompared(what="outputs, metrics and settings in force", why=f"{run.short} is {run.state}"))
    return Compared(
        left=left,
        right=right,
        tags=(annotation.tags(annotation.of(left.folder)), annotation.tags(annotation.of(right.folder))),
        facts=facts,
        differences=ordered(differences),
        missing=tuple(missing),
        metrics=metrics,
        outputs=outputs,
        steps=traces.compared(left.folder, right.folder),
    )


def _folder(word: str, runs: Path | None, here: Path) -> Path:
    if "/" in word and (here / word).is_dir():  # then it does not matter what is around the caller
        return parents.folder_of(word, here, here)
    return parents.folder_of(word, where(runs, here), here)


def _beside(run: Run) -> Beside:
    """What the run left in folders of `--checkpoints`."""
    if run.end is None or not any(one.kind == "checkpoints" for one in run.start.data):
        return Beside()
    try:
        old = before.read(run.folder, before.BEFORE, run.start.before)
        new = before.read(run.folder, before.AFTER, run.end.after)
    except ReproEnvError as error:
        return Beside(unread=(f"checkpoints of {run.short} ({error.what})",))
    if new is None:
        return Beside(unread=(f"checkpoints of {run.short} (what it left there is not in its record)",))
    there = {one.shown for one in new.files}
    gone = [one.shown for one in old.files if one.shown not in there] if old is not None else []
    left = [(path, one.sha256) for path, one in before.changed(old, new).items()]
    return Beside(
        files=(*left, *((path, "removed") for path in gone)),
        unread=tuple(line for line in new.others if " -> " not in line),
    )


def _sorted(*facts: Fact) -> tuple[Fact, ...]:
    return tuple(sorted(facts, key=lambda one: rules.PARTS.index(one.part)))


def _environment(left: Run, right: Run, here: Path, store: Store) -> tuple[list[Difference], list[NotCompared]]:
    """What differs of spec, image and code."""
    found: list[Difference] = []
    missing: list[NotCompared] = []
    specs = [Specs(run.folder.parent, here, store) for run in (left, right)]
    if left.start.spec != right.start.spec:
        both = [each.of(run.start) for each, run in zip(specs, (left, right), strict=True)]
        if both[0] is not None and both[1] is not None:
            named = zip(both, (left.short, right.short), strict=True)
            one, two = (sides.of_spec(spec.spec, spec.folder, name, store) for spec, name in named if spec is not None)
            found += compare.environments(one, two, store).differences
        else:
            gone = ", ".join(
                f"the spec of {run.short} ({run.start.spec[7:19]})"
                for run, spec in zip((left, right), both, strict=True)
                if spec is None
            )
            missing.append(NotCompared(what="environment", why=f"they differ; {gone} is not here"))
            found += _digests(left.start, right.start)
    if left.start.source.digest != right.start.source.digest:
        found += _source(left, right, specs, store)
    return found, missing


def _digests(left: Start, right: Start) -> list[Difference]:
    pairs = (("spec digest", left.spec, right.spec), ("image ID", left.image, right.image))
    return [Difference(level="digests", what=what, left=one, right=two) for what, one, two in pairs if one != two]


def _source(left: Run, right: Run, specs: list[Specs], store: Store) -> list[Difference]:
    """The files of the code that differ; the code as a whole where they cannot be told."""
    listings = [_listing(run, each, store) for run, each in zip((left, right), specs, strict=True)]
    old, new = listings
    if old is not None and new is not None:
        return [
            Difference(level="source", what=one.path, left=described(one.left), right=described(one.right))
            for one in changes(old, new)
        ]
    gone = " and ".join(run.short for run, listing in zip((left, right), listings, strict=True) if listing is None)
    return [
        Difference(
            level="source",
            what="files of the source",
            left=left.start.source.digest[7:19],
            right=right.start.source.digest[7:19],
            why=f"which ones cannot be told: the code of {gone} is not here",
        )
    ]


def _listing(run: Run, specs: Specs, store: Store) -> Mapping[str, Entry] | None:
    """The code of a run by its paths: from the store, else as its spec carries it, else from git's history."""
    fact = run.start.source
    there = store.layers.path(fact.digest)
    if there is not None:
        return trees.Stored(there, store.hashes).entries()
    spec = specs.of(run.start)
    source = spec.spec.observed.source if spec is not None else None
    if spec is None or source is None:
        return None
    held = trees.captured(source.tree, spec.folder, store) if source.tree.sha256 == fact.digest else None
    if held is not None:
        with contextlib.suppress(ArtifactError):
            return held.entries()
    commit = committed.of_run(run, source, spec.folder)
    return None if commit is None else {one.path: one for one in commit.entries}


def _data(left: Start, right: Start) -> list[Difference]:
    """Data that were mounted, by the path where the run saw them."""
    old, new = ({one.target: one.digest for one in start.data if one.digest is not None} for start in (left, right))
    return [
        Difference(level="data", what=path, left=_short(old.get(path)), right=_short(new.get(path)))
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


def _short(digest: str | None) -> str:
    return "" if digest is None else f"sha256 {digest[7:19]}"
