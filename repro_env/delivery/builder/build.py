"""Make the layers of a spec's image and give them to a sink, such as the store or an output.

The content of each layer follows from the spec's identity and the facts of its wheels. `expected` only gives the order of
work, and it is checked against the identity: the fixed layers first, each layer by its diff ID, and the groups at the end.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Protocol

from msgspec.structs import replace

from repro_env.delivery.builder import layers
from repro_env.delivery.builder.content import Content, Marker, Part, SourceTree, Tree
from repro_env.delivery.builder.layers import Task
from repro_env.delivery.builder.sources import DOWNLOADS, Counter, Item, Origin, Sources
from repro_env.delivery.builder.worker import Job, Made, Worker, Writer, make
from repro_env.oci import wheel as rule
from repro_env.schema import codec
from repro_env.schema.artifact import Artifact, Size, TreeBlob, Wheel
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import ArtifactError, BuildError, NetworkError, ReproEnvError
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store.packages import wheelfile
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

WORKER_BYTES = 16 << 20
"""Bytes to write for which the start of worker processes pays."""
_LAYER_FACTS = "made"
"""Kind of the facts of layers, by the digest of their parts."""


class Plan(Frozen, frozen=True, kw_only=True):
    """What a rebuild would do."""

    items: tuple[Item, ...]
    """Every artifact, in the order of the layers."""
    fetch: Size
    """Bytes to download."""
    write: Size
    """Bytes to write. For a wheel whose installed size is not known yet, the size of its file."""


class LayerFacts(Frozen, frozen=True, kw_only=True):
    """What is known of a layer of packages that was made and proven."""

    diff_id: str
    sizes: dict[str, int]
    """Installed size of each part in bytes, by key, for the grouping rule."""


class Sink(Protocol):
    """What takes the layers of one image, from several threads."""

    origin: Origin
    """The origin, in a plan, of layers that it has already."""
    accepts_installed_files: bool
    """Whether a layer of wheels may be made from installed files, not only from complete wheels."""
    in_workers: bool
    """Whether `writer` also works in other processes."""

    @property
    def writer(self) -> Writer: ...

    def has(self, task: Task) -> bool: ...

    def note(self, task: Task, made: Made, *, is_own: bool) -> None:
        """Note a layer that was written. `is_own`: it was made here, not fetched complete."""
        ...


class Build:
    """Makes the layers of one spec that a sink lacks."""

    def __init__(
        self, spec: Spec, directory: Path, store: Store, sink: Sink, *, source: Literal["tree", "layer"] | None = None
    ) -> None:
        """`directory` holds the spec and `blobs/`. `source`: also give the source to the sink: its tree, unless it is missing
        everywhere, or a layer that has it at its captured path.

        Raises `BuildError` if the expected layers contradict the identity, or if there is no source for a layer.
        """
        self.tasks = layers.tasks(spec)
        self.made: list[Task] = []
        """The layers that the sink did not have."""
        self.written = Counter()
        """Bytes that were given to the sink."""
        self.sources = Sources(spec, directory, store)
        self._spec = spec
        self._store = store
        self._sink = sink
        self._source = source
        if spec.observed.source is not None and source is not None:
            tree = spec.observed.source.tree
            self.tasks.append(Task(None, "source", tree.sha256, tree.size, tree=tree))
        elif source == "layer":
            raise BuildError("the spec has no source", where=str(directory), hint="capture again with --source DIR")
        self._facts: dict[str, rule.Facts] = {}
        self._sizes: dict[str, int] = {}
        self._complete: set[str] = set()
        """Diff IDs of layers that were fetched complete."""
        self._slots: SimpleQueue[Worker | None] = SimpleQueue()
        """What is free to make a layer: worker processes, and None for this process."""

    def plan(self, *, ask: bool) -> Plan:
        """Find every artifact that is needed. `ask`: also ask the servers whether they have it. Raises `ArtifactError`."""
        items: list[Item] = []
        fetch = write = 0
        with self.sources, ThreadPoolExecutor(DOWNLOADS) as pool:
            for task, is_needed in zip(self.tasks, list(pool.map(self._is_needed, self.tasks)), strict=True):
                if not is_needed:
                    sizes = {artifact.label: artifact.size for artifact in task.artifacts} or {task.what: task.size}
                    found = [Item(what=what, origin=self._sink.origin, size=size) for what, size in sizes.items()]
                elif task.tree is not None:
                    found = [self.sources.peek_tree(task.what, task.tree, ask=ask)]
                    fetch += found[0].size if found[0].origin == "registry" else 0
                    write += task.tree.size
                else:
                    found, size = self._plan_group(task, pool, ask=ask)
                    fetch += size
                    write += sum(map(self._installed_size, task.artifacts))
                items += found if task.kind != "marker" else ()
        return Plan(items=tuple(items), fetch=fetch, write=write)

    def _plan_group(self, task: Task, pool: ThreadPoolExecutor, *, ask: bool) -> tuple[list[Item], int]:
        """Return where the parts of a layer are, or the complete layer if one is not found; and the bytes to download."""
        try:
            places = list(pool.map(lambda part: self.sources.peek(part, self._usable_facts(part), ask=ask), task.artifacts))
        except (ArtifactError, NetworkError) as error:
            offer = self.sources.copies.offer(task.diff_id)
            if offer is None:
                raise self.sources.copies.explain(error) from None
            where = offer.where
            return [Item(what=part.label, origin="registry", where=where, size=part.size) for part in task.artifacts], offer.size
        pairs = list(zip(task.artifacts, places, strict=True))
        items = [Item(what=part.label, origin=place.origin, where=str(place), size=part.size) for part, place in pairs]
        return items, sum(part.size for part, place in pairs if place.is_remote)

    def run(self, plan: Plan, tell: Tell, what: str) -> None:
        """Make every layer that is needed, and give it to the sink. `what`: for the progress.

        Raises `ArtifactError`, `NetworkError`, `DiskError`, `BuildError`. Layers that are complete are kept.
        """
        with self.sources, self._store.temp.directory() as scratch, tell.progress(plan.fetch + plan.write, what) as advance:
            self._tell, self._scratch = tell, SpecBlobs(scratch / "blobs")
            self.written.advance = self.sources.received.advance = advance
            pending = sorted(filter(self._is_needed, self.tasks), key=lambda task: -task.size)
            slots = self._assign_slots(plan, len(pending))
            with ThreadPoolExecutor(max(len(pending), 1)) as pool, ExitStack() as stack:
                for worker in filter(None, slots):
                    stack.callback(worker.close)
                futures = [pool.submit(self._make, task) for task in pending]
                try:
                    for future in as_completed(futures):
                        future.result()
                except BaseException:
                    self.written.is_stopped = self.sources.received.is_stopped = True
                    for worker in filter(None, slots):
                        worker.stop()
                    pool.shutdown(cancel_futures=True)
                    raise
        unchecked = {task.kind for task in self.tasks if task.diff_id in self._complete}
        layers.check_groups(self._spec, self._sizes, unchecked)

    def _assign_slots(self, plan: Plan, layers: int) -> list[Worker | None]:
        """Let one layer on each core be made at a time: the first in this process, which has the largest one."""
        others = min(len(os.sched_getaffinity(0)), layers) - 1
        is_large = self._sink.in_workers and plan.write >= WORKER_BYTES
        slots = [None, *(Worker() if is_large else None for _ in range(others))]
        for slot in slots:
            self._slots.put(slot)
        return slots

    def _is_needed(self, task: Task) -> bool:
        """Return whether a layer has to be made. A layer of packages is only reused if it was made of the same packages before."""
        facts = self._store.facts.recall(_LAYER_FACTS, self._key(task), LayerFacts) if task.artifacts else None
        if (task.artifacts and (facts is None or facts.diff_id != task.diff_id)) or not self._sink.has(task):
            return True
        self._sizes.update(facts.sizes if facts is not None else {})
        return False

    def _key(self, task: Task) -> str:
        """Return a key that is equal for layers of the same artifacts at the same place in an image."""
        layouts = [self._spec.identity.layout_of(artifact) for artifact in task.artifacts]
        places = [layout if layout.in_place else replace(layout, prefix="") for layout in layouts]
        return codec.digest(list(zip(task.artifacts, places, strict=True)))

    def _make(self, task: Task) -> None:
        """Make one layer. If that fails, try once more with other or checked files. Runs in a thread."""
        found = self._find(task)
        if found is None:
            return
        try:
            self._put(task, found)
        except (ArtifactError, BuildError) as error:
            other = self._find(task, after=error)
            if other is None or (isinstance(found, tuple) and other == found):
                raise
            self._put(task, other)
        self.made.append(task)

    def _find(self, task: Task, *, after: ReproEnvError | None = None) -> tuple[Part, ...] | Content | None:
        """Return what a layer is made of, on this machine; None for a source that is missing everywhere.

        `after`: the error after which all files are checked again, and which is raised if there is nothing else to try.
        """
        if task.tree is not None:
            if self._source == "tree" and self.sources.peek_tree(task.what, task.tree).origin == "nowhere":
                self._tell(f"note: the captured {task.what} is not next to the spec; runs can use a live directory")
                return None
            self.sources.bring_tree(task.what, task.tree, after=after)
            if task.kind is None and self._source == "layer" and self._spec.observed.source is not None:
                return SourceTree(self.sources.blobs, self._spec.observed.source)
            return Tree(self.sources.blobs, task.tree)
        if not task.artifacts:
            if after is not None:
                raise after
            return Marker(task.diff_id, self._spec.identity)
        try:
            return tuple(self._part(artifact, after) for artifact in task.artifacts)
        except (ArtifactError, NetworkError) as error:
            return self._fetch_complete(task, error)

    def _part(self, artifact: Artifact, after: ReproEnvError | None) -> Part:
        """Fetch a part of a layer. Raises as `Sources.fetch`."""
        layout = self._spec.identity.layout_of(artifact)
        location = self.sources.fetch(artifact, self._usable_facts(artifact), after=after)
        facts = self._facts_of(artifact)
        if facts is None and isinstance(artifact, Wheel):
            try:
                facts = wheelfile.open_facts(Path(location.where), artifact.filename)
            except ArtifactError as error:
                if after is not None:
                    raise
                return self._part(artifact, error)
            self._store.facts.put(wheelfile.FACTS, artifact.sha256, codec.canonical(facts))
        return Part(artifact, layout, facts, location)

    def _fetch_complete(self, task: Task, error: ReproEnvError) -> Tree:
        """Fetch a layer complete, because a part was not found. Raises `error` if no registry has the layer."""
        offer = self.sources.copies.offer(task.diff_id)
        if offer is None:
            raise self.sources.copies.explain(error) from None
        self._tell.detail(f"{task.label} is fetched complete from {offer.where}: not all of its packages were found")
        size = self.sources.copies.fetch(task.diff_id, self._scratch, size=None)
        self._complete.add(task.diff_id)
        return Tree(self._scratch, TreeBlob(sha256=task.diff_id, size=size, files=0))

    def _put(self, task: Task, found: tuple[Part, ...] | Content) -> None:
        """Give a layer to the sink. Errors name the layer."""
        job = Job(task, found, self._store, self._sink.writer)
        slot = self._slots.get()
        try:
            self.written.add(0)  # raises if the build was stopped
            made = make(job, self.written.add) if slot is None else slot.make(job, self.written.add)
        except (ArtifactError, BuildError) as error:
            raise type(error)(f"{task.label}: {error.what}", where=error.where, hint=error.hint) from None
        finally:
            self._slots.put(slot)
        self._sink.note(task, made, is_own=not task.artifacts or isinstance(found, tuple))
        if made.sizes:
            self._sizes.update(made.sizes)
            facts = LayerFacts(diff_id=task.diff_id, sizes=made.sizes)
            self._store.facts.put(_LAYER_FACTS, self._key(task), codec.canonical(facts))

    def _usable_facts(self, artifact: Artifact) -> rule.Facts | None:
        return self._facts_of(artifact) if self._sink.accepts_installed_files else None

    def _facts_of(self, artifact: Artifact) -> rule.Facts | None:
        """Return the facts of a wheel if they are known."""
        if isinstance(artifact, Wheel) and artifact.key not in self._facts:
            facts = wheelfile.recall_facts(artifact.filename, artifact.sha256, self._store.facts)
            if facts is None:
                return None
            self._facts[artifact.key] = facts
        return self._facts.get(artifact.key)

    def _installed_size(self, artifact: Artifact) -> int:
        facts = self._facts_of(artifact)
        return sum(file.size for file in facts.files) if facts is not None else artifact.size
