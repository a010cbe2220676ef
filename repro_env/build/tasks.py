"""The layers of an image that is sent, as tasks: what each is made of, and what the store knows that it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from repro_env.build import packed
from repro_env.build.contradiction import contradiction, label, several
from repro_env.build.packed import Answer, Group, Job, Marker, Part, Source, Tree
from repro_env.build.sources import Artifact, Place
from repro_env.model.artifact import CondaPackage, TreeBlob
from repro_env.model.errors import BuildError
from repro_env.model.image import Layer, LayerKind, Packed
from repro_env.model.spec import Spec
from repro_env.store import sent
from repro_env.store.carried import Carried
from repro_env.store.store import Store


class Task:
    """One layer. Used by the main thread only."""

    def __init__(self, what: str, job: Job, size: int) -> None:
        self.what = what
        """The word for its tree; of other layers, what they hold."""
        self.job = job
        self.size = size
        """Bytes to send, about; for the order of work: the largest first."""
        self.expected: Packed | None = None
        """What it was proven to become."""
        self.sizes: Mapping[str, int] = {}
        """Of a group, once known: bytes that each part becomes, by key."""
        self.needed: dict[str, Future[Place]] = {}
        """Of a group: key -> the whole file on this machine."""
        self.bringing: Future[Tree | Source] | None = None
        """Of a tree: its job, once its blob is beside the spec."""
        self.whole = False
        """A layer of packages that somebody has as it was sent, since not all that it is made of was to be had."""
        self.again = False
        """Whether its blob was fetched anew."""
        self.found: Packed | None = None

    @property
    def label(self) -> str:
        """For messages."""
        return f"the layer of {self.what}"

    @property
    def diff_id(self) -> str:
        """Of a layer of packages or a tree."""
        return self.job.blob.sha256 if isinstance(self.job, Tree) else self.job.diff_id if isinstance(self.job, Group) else ""

    @property
    def ready(self) -> bool:
        awaited: list[Future[Any]] = [*self.needed.values()]
        if self.bringing is not None:
            awaited.append(self.bringing)
        return all(future.done() for future in awaited)

    def complete(self) -> Job:
        """The job of a task that is ready. Raises what finding its parts raised."""
        if self.bringing is not None:
            self.job = self.bringing.result()
        if isinstance(self.job, Group):
            paths = tuple(self.needed[part.artifact.key].result().where for part in self.job.parts)
            return msgspec.structs.replace(self.job, paths=paths)
        return self.job

    def settle(self, answer: Answer) -> None:
        self.found = answer.packed
        self.sizes = answer.sizes or self.sizes


def parts(task: Task) -> tuple[Part, ...]:
    """What a layer of packages is made of; nothing for the others."""
    return task.job.parts if isinstance(task.job, Group) else ()


def found(task: Task) -> Packed:
    """What a task that is done became."""
    if task.found is None:
        raise BuildError("was not made", where=task.label, hint="rebuild again")
    return task.found


def tasks(spec: Spec, folder: Path, store: Store, *, source: bool) -> list[Task]:
    """Every layer, lowest first; `source`: and the code.

    Raises `BuildError` for a spec whose expected layers contradict its identity, or without source when asked for it.
    """
    contradiction(spec)
    identity = spec.identity
    artifacts: list[Artifact] = [*identity.packages, *identity.distributions]
    by_label = {label(one): one for one in artifacts}
    trees = [identity.base, identity.unowned, identity.interpreter.tree, identity.overlay]
    blobs = {tree.sha256: tree for tree in trees if tree is not None}
    made = []
    for one in spec.expected.layers:
        if one.kind in ("conda", "distributions"):
            made.append(_group(one, [by_label[held] for held in one.holds], spec, store))
        elif one.kind == "marker":
            task = Task("the marker", Marker(diff_id=one.diff_id, identity=identity), 0)
            task.expected = sent.known(store.facts, sent.STITCHED, one.diff_id)
            made.append(task)
        else:
            what = {"unowned": "unowned libraries"}.get(one.kind, one.kind)
            made.append(_tree(what, blobs[one.diff_id], folder, store))
    if source:
        made.append(_source(spec, folder, store))
    return made


def sizes(done: Sequence[Task]) -> dict[str, int]:
    """Bytes that each wheel and package becomes, by key, as far as these tasks know."""
    return {key: size for task in done for key, size in task.sizes.items()}


def whole(spec: Spec, done: Sequence[Task]) -> set[LayerKind]:
    """Kinds of which a layer came as it was sent."""
    return {one.kind for one, task in zip(spec.expected.layers, done, strict=False) if task.whole}


def _group(one: Layer, artifacts: Iterable[Artifact], spec: Spec, store: Store) -> Task:
    identity = spec.identity
    held = tuple(
        Part(
            artifact=artifact,
            layout=identity.layout if isinstance(artifact, CondaPackage) else identity.layout_of(artifact),
        )
        for artifact in sorted(artifacts, key=lambda artifact: artifact.key)
    )
    what = several(one.holds)
    made = store.facts.recall(packed.MADE, packed.parts_key(held), packed.Made)
    if made is not None and made.diff_id != one.diff_id:
        raise BuildError(
            f"the layer of {what} is {made.diff_id}, not the expected {one.diff_id}",
            hint="the spec contradicts itself; capture again",
        )
    job = Group(diff_id=one.diff_id, parts=held, paths=(), known=None)
    task = Task(what, job, sum(part.artifact.size for part in held))
    if made is not None:
        how = sent.how(one.kind)
        task.sizes = made.sizes
        task.expected = sent.known(store.facts, how, one.diff_id)
        if task.expected is not None and how == sent.STITCHED:  # what zlib makes may be other bytes by now
            task.job = msgspec.structs.replace(job, known=task.expected.blob)
    return task


def _tree(what: str, blob: TreeBlob, folder: Path, store: Store) -> Task:
    path = Carried(folder / "blobs").path(blob.sha256)
    task = Task(what, Tree(blob=blob, folder=str(folder)), path.stat().st_size if path is not None else blob.size)
    if path is None:
        task.expected = sent.known(store.facts, sent.CARRIED, blob.sha256)
    else:
        lying = sent.carried(store.facts, path)
        task.expected = Packed(diff_id=blob.sha256, blob=lying) if lying is not None else None
    return task


def _source(spec: Spec, folder: Path, store: Store) -> Task:
    source = spec.observed.source
    if source is None:
        raise BuildError("the spec holds no source", where=str(folder), hint="capture again with --source DIR")
    task = Task("source", Source(blob=source.tree, folder=str(folder), path=source.path), source.tree.size)
    diff_id = store.facts.get(packed.PLACED, packed.placed_key(source.tree, source.path))
    if diff_id is not None:
        task.expected = sent.known(store.facts, sent.ZLIB, diff_id.decode())
    return task
