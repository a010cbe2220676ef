"""The layers of an image as tasks: what each layer is made of, and the search for its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from repro_env.delivery.builder.blobsource import Offer
from repro_env.delivery.builder.consistency import label, list_briefly
from repro_env.delivery.builder.job import Group, HasBlob, Job, JobResult, Marker, Part, Tree
from repro_env.delivery.builder.locations import Artifact
from repro_env.delivery.builder.plan import Item
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.image import LayerKind, Packed
from repro_env.schema.spec import Spec


class Task:
    """One layer to unpack or to send. Used by the main thread only."""

    def __init__(self, kind: LayerKind | None, what: str, job: Job, size: int, parts: tuple[Part, ...] = ()) -> None:
        self.kind = kind
        """None for the source, which is not a layer of the spec."""
        self.what = what
        """The name of its tree, or what the layer holds."""
        self.job = job
        self.size = size
        """Approximate bytes to write. The largest task is done first."""
        self.parts = parts
        """The wheels or packages of the layer without their locations, sorted by key; empty for other layers."""
        self.part_futures: dict[str, Future[Part]] = {}
        """The parts with their locations, by key."""
        self.tree_future: Future[Job] | None = None
        """For a tree or a layer that is fetched complete: its job, once its blob is on this machine."""
        self.offer: Offer | None = None
        """For a layer that is fetched complete, because one of its parts was not found: where it is."""
        self.item: Item | None = None
        """For a tree: its location in the plan."""
        self.refetched = False
        """Whether its blob was fetched a second time."""
        self.expected: Packed | None = None
        """The blob that the layer was proven to have."""
        self.sizes: Mapping[str, int] = {}
        """For a group, once known: installed size of each part in bytes, by key."""
        self.result: Packed | None = None
        """The layer in the output."""

    @property
    def label(self) -> str:
        """The name of the task for messages."""
        return f"the layer of {self.what}" if self.parts else f"the {self.what}"

    @property
    def diff_id(self) -> str:
        """The diff ID of a layer; the digest of the tree for the source."""
        job = self.job
        return job.diff_id if isinstance(job, Group | Marker) else "" if isinstance(job, HasBlob) else job.blob.sha256

    @property
    def missing(self) -> list[Future[Any]]:
        """The futures that have to finish before the task can run."""
        futures: list[Future[Any]] = [*self.part_futures.values(), *([self.tree_future] if self.tree_future else [])]
        return [future for future in futures if not future.done()]

    def finish(self, answer: JobResult) -> None:
        self.result = answer.packed
        self.sizes = answer.sizes or self.sizes


def layer_tasks(spec: Spec, directory: Path) -> Iterator[Task]:
    """Yield a task for every layer, lowest first. `directory` holds the spec and `blobs/`."""
    identity = spec.identity
    artifacts: list[Artifact] = [*identity.packages, *identity.distributions]
    by_label = {label(artifact): artifact for artifact in artifacts}
    trees = (identity.base, identity.unowned, identity.interpreter.tree, identity.overlay)
    blobs = {tree.sha256: tree for tree in trees if tree is not None}
    for layer in spec.expected.layers:
        if layer.kind in ("conda", "distributions"):
            chosen = sorted((by_label[name] for name in layer.holds), key=lambda artifact: artifact.key)
            parts = tuple(
                Part(artifact, identity.layout if isinstance(artifact, CondaPackage) else identity.layout_of(artifact))
                for artifact in chosen
            )
            size = sum(artifact.size for artifact in chosen)
            yield Task(layer.kind, list_briefly(layer.holds), Group(diff_id=layer.diff_id, parts=parts), size, parts)
        elif layer.kind == "marker":
            yield Task(layer.kind, "marker", Marker(diff_id=layer.diff_id, identity=identity), 0)
        else:
            blob = blobs[layer.diff_id]
            what = "unowned libraries" if layer.kind == "unowned" else layer.kind
            yield Task(layer.kind, what, Tree(blob=blob, directory=str(directory)), blob.size)
