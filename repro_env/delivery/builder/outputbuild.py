"""Send the image of a spec to an output: layers, then config and manifest. Nothing is unpacked.

Layers that were proven before and that the output already has are skipped. The other layers need the complete wheels,
so installed files cannot be used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from repro_env.delivery.builder import diskspace, outputjob
from repro_env.delivery.builder.build import Build
from repro_env.delivery.builder.job import LAYER_FACTS, HasBlob, Job, JobResult, LayerFacts, Source, Tree, parts_key
from repro_env.delivery.builder.locations import Artifact
from repro_env.delivery.builder.plan import Item, Plan
from repro_env.delivery.builder.task import Task, layer_tasks
from repro_env.delivery.builder.workers import Workers
from repro_env.delivery.target import Output
from repro_env.oci import config
from repro_env.oci.manifest import Image
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import BuildError
from repro_env.schema.image import Packed
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store import layerblobs
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

ALONE = 16 << 20
"""An image with fewer bytes is sent without worker processes, because starting them takes longer."""


class SentImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an output."""

    image: Image
    layers: tuple[Packed, ...]
    """Lowest first."""
    where: str
    """Where it is, as a line for the user."""
    made: tuple[str, ...]
    """Diff IDs of the layers that were sent; the output had the others."""
    fetched: int
    """Bytes downloaded."""
    sent: int
    """Bytes sent."""

    @property
    def image_id(self) -> str:
        return self.image.config_blob.digest


def pack(
    spec: Spec,
    directory: Path,
    store: Store,
    output: Output,
    *,
    tell: Tell,
    source: bool = False,
    workers: int | None = None,
) -> SentImage:
    """Send the image of a spec to an output, and close the output in any case. `directory` holds the spec and `blobs/`.

    `source`: add the source as the last layer, at its captured path. Then the image ID differs from the spec's.
    `workers`: number of processes (default: one for each core). Raises `ArtifactError`, `NetworkError`, `DiskError`,
    `BuildError`.
    """
    with closing(output):
        return OutputBuild(spec, directory, store, output, source=source, workers=workers).run(tell)


class OutputBuild(Build):
    """Sends one image to one output."""

    destination = "output"
    complete_wheels = True

    def __init__(
        self,
        spec: Spec,
        directory: Path,
        store: Store,
        output: Output,
        *,
        source: bool = False,
        user: str = "",
        workers: int | None = None,
        local: bool = False,
    ) -> None:
        """`user`: the `UID` or `UID:GID` that a container runs as. `local`: the output consists of files, so it can be
        inspected quickly, without a connection that workers would inherit.

        Raises `BuildError` if the expected layers contradict the identity, or if the spec has no source to add.
        """
        super().__init__(spec, directory, store)
        self._output = output
        self._user = user
        self._tasks = list(layer_tasks(spec, directory))
        known = {layer.diff_id: layer for layer in layerblobs.recall_all(spec.expected.layers, directory / "blobs", store.facts)}
        for task in self._tasks:
            self._recall(task, known.get(task.diff_id))
        if source:
            self._tasks.append(_source_task(spec, directory, store))
        total = sum(task.size for task in self._tasks)
        if local:
            self._find_sent_layers()
        in_process = total < ALONE or all(task.result for task in self._tasks)
        self._count = 0 if in_process else workers or len(os.sched_getaffinity(0))

    def _recall(self, task: Task, known: Packed | None) -> None:
        """Set what an earlier build proved of a layer. Raises `BuildError` if it made a different one."""
        task.expected = known
        if isinstance(task.job, Tree) and (path := SpecBlobs(self._directory / "blobs").path(task.diff_id)) is not None:
            task.size = path.stat().st_size
        if not task.parts:
            return
        facts = self._store.facts.recall(LAYER_FACTS, parts_key(task.parts), LayerFacts)
        if facts is None:
            task.expected = None
        elif facts.diff_id != task.diff_id:
            raise BuildError(
                f"{task.label} is {facts.diff_id}, not the expected {task.diff_id}",
                hint="the spec contradicts itself; capture again",
            )
        else:
            task.sizes = facts.sizes
            if known is not None and task.kind == "distributions":  # the output of zlib may have changed
                task.job = msgspec.structs.replace(task.job, known=known.blob)

    def _is_done(self, task: Task) -> bool:
        return task.result is not None

    def _needs(self, task: Task, artifact: Artifact) -> bool:  # noqa: ARG002 a layer needs all of its parts
        return task.result is None

    def _plan_of(self, items: Iterable[Item], downloads: list[int]) -> Plan:
        write = sum(task.size for task in self._tasks if task.result is None)
        return Plan(items=tuple(items), fetch=sum(downloads), write=write, files=len(downloads), exact=True)

    def _tree_item(self, task: Task, blob: TreeBlob, *, ask: bool) -> Item:
        """Return the location of a tree. A blob is preferred to an unpacked layer, because it is sent unchanged."""
        if task.result is None and (item := self._trees.bundled_item(task.what, blob, ask=ask)) is not None:
            return item
        return super()._tree_item(task, blob, ask=ask)

    def plan(self, *, ask: bool) -> Plan:
        self._find_sent_layers()
        return super().plan(ask=ask)

    def run(self, tell: Tell) -> SentImage:
        """Send the image. Raises as `pack`."""
        with self._workers(self._count, partial(outputjob.serve, self._store.root, self._output), tell) as workers:
            self._ask_output(workers)
            needed = [task for task in self._tasks if task.result is None]
            if needed:
                self._send(needed, workers, tell)
            self._check_groups()
            layers = tuple(_result_of(task) for task in self._tasks)
            source = self._spec.observed.source if len(layers) > len(self._spec.expected.layers) else None
            diff_ids = [layer.diff_id for layer in layers]
            data = config.config(self._spec.identity, diff_ids, source=source, user=self._user)
            image = Image(data, tuple(layer.blob for layer in layers))
            where = self._output.finish(image)
            sent_bytes = workers.done
        return SentImage(
            image=image,
            layers=layers,
            where=where,
            made=tuple(_result_of(task).diff_id for task in needed),
            fetched=self._fetched,
            sent=sent_bytes,
        )

    def _find_sent_layers(self) -> None:
        for task in self._tasks:
            if task.expected is not None and task.result is None and self._output.has(task.expected.blob):
                task.result = task.expected

    def _ask_output(self, workers: Workers[Job, JobResult]) -> None:
        """Ask the output for every layer whose blob is known."""
        questions = [
            (task, self._lanes.submit(workers.run, HasBlob(blob=task.expected.blob)))
            for task in self._tasks
            if task.expected is not None and task.result is None
        ]
        for task, future in questions:
            if future.result().packed is not None:
                task.result = task.expected

    def _send(self, needed: Sequence[Task], workers: Workers[Job, JobResult], tell: Tell) -> None:
        plan = self._plan(self._fetchers, ask=False)
        diskspace.check_free_space(self._store.root, plan.fetch, plan.files)
        tell(f"packing: {len(needed)} of {len(self._tasks)} layers to send, {plan.fetch / 1e6:.1f} MB to fetch")
        with tell.progress(plan.fetch + plan.write, "packing") as advance:
            self._make(needed, workers, max(self._count, 1), advance)
        for note in self._compression_notes(needed):
            tell(note)

    def _compression_notes(self, sent: Iterable[Task]) -> Iterator[str]:
        hints = {layer.diff_id: layer.blob for layer in self._spec.expected.packed}
        for task in sent:
            packed = _result_of(task)
            hint = hints.get(packed.diff_id)
            if hint is not None and hint.digest != packed.blob.digest:
                yield (
                    f"note: {task.label} was compressed to {packed.blob.digest[:19]}…, not to {hint.digest[:19]}… as at "
                    "capture: the image ID is the same, but the manifest digest differs"
                )


def _result_of(task: Task) -> Packed:
    """Return the blob of a finished task."""
    if task.result is None:
        raise BuildError("the layer was not sent", where=task.label, hint="rebuild again")
    return task.result


def _source_task(spec: Spec, directory: Path, store: Store) -> Task:
    source = spec.observed.source
    if source is None:
        raise BuildError("the spec has no source", where=str(directory), hint="capture again with --source DIR")
    job = Source(blob=source.tree, directory=str(directory), path=source.path)
    task = Task(None, "source", job, source.tree.size)
    diff_id = store.facts.get(outputjob.SOURCE_LAYER, outputjob.source_layer_key(source.tree, source.path))
    if diff_id is not None:
        task.expected = layerblobs.recall(store.facts, layerblobs.ZLIB, diff_id.decode())
    return task
