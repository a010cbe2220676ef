"""Unpack the layers of a spec's image into the store, without a container engine.

The content of each layer follows from the spec's identity and the facts of its wheels. `expected.layers` only gives the
order of work, and it is checked against the identity: the fixed layers by `check_expected`, each layer by its diff ID while
it is written, and the groups at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec

from repro_env.delivery.builder import condapackages, diskspace, storejob
from repro_env.delivery.builder.build import Build
from repro_env.delivery.builder.diskspace import BLOCK, round_up_to_blocks
from repro_env.delivery.builder.job import Group, Job, Tree
from repro_env.delivery.builder.locations import Artifact
from repro_env.delivery.builder.plan import Item, Plan
from repro_env.delivery.builder.task import Task, layer_tasks
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

ALONE = 64 << 20
"""A build that writes fewer bytes runs without worker processes, because starting them takes longer."""


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes a build downloaded and wrote."""

    fetched: int
    written: int


class StoreBuild(Build):
    """Unpacks the layers of one spec into one store."""

    destination = "layer"
    complete_wheels = False

    def __init__(self, spec: Spec, directory: Path, store: Store) -> None:
        """`directory` holds the spec and `blobs/`. Raises `BuildError` if the expected layers contradict the identity."""
        super().__init__(spec, directory, store)
        self._tasks = list(layer_tasks(spec, directory))
        if spec.observed.source is not None:
            tree = spec.observed.source.tree
            self._tasks.append(Task(None, "source", Tree(blob=tree, directory=str(directory)), tree.size))
        self._sizes: dict[str, tuple[int, int]] = {}
        """Installed bytes (in complete blocks) and files of each artifact, by key, if its facts are known."""
        self._planned: Plan | None = None

    def _is_done(self, task: Task) -> bool:
        return self._store.layers.path(task.diff_id) is not None

    def _needs(self, task: Task, artifact: Artifact) -> bool:
        return not self._is_done(task) or self._size_of(artifact) is None

    def _size_of(self, artifact: Artifact) -> tuple[int, int] | None:
        """Return the installed bytes and files of an artifact; None if its facts are not known."""
        if artifact.key not in self._sizes:
            directories: set[str] = set()
            if isinstance(artifact, CondaPackage):
                linked = condapackages.recall_facts(artifact, self._spec.identity.layout, self._store)
                sizes = [path.size for path in linked.linked] if linked is not None else None
            else:
                facts = self._facts_of(artifact)
                sizes = [file.size for file in facts.files] if facts is not None else None
                directories = {file.name.rpartition("/")[0] for file in facts.files} if facts is not None else directories
            if sizes is None:
                return None
            size = sum(map(round_up_to_blocks, sizes)) + BLOCK * len(directories)
            self._sizes[artifact.key] = size, len(sizes) + len(directories)
        return self._sizes[artifact.key]

    def _plan_of(self, items: Iterable[Item], downloads: list[int]) -> Plan:
        write, files = sum(map(round_up_to_blocks, downloads)), len(downloads)
        exact = True
        for task in self._tasks:
            if self._is_done(task):
                continue
            if task.offer is not None:
                write += round_up_to_blocks(task.offer.size)
            elif isinstance(task.job, Tree) and task.item is not None and task.item.origin != "nowhere":
                write += round_up_to_blocks(task.job.blob.size)
                files += task.job.blob.files
            for part in task.parts if task.offer is None else ():
                known = self._size_of(part.artifact)
                exact = exact and known is not None
                size, count = known or (part.artifact.size, 1)
                write += size
                files += count
        self._planned = Plan(items=tuple(items), fetch=sum(downloads), write=write, files=files, exact=exact)
        return self._planned

    def build(self, tell: Tell) -> BuildResult:
        """Unpack every expected layer and check its diff ID. Layers of an interrupted build are kept."""
        plan = self._planned or self.plan(ask=False)
        count = 0 if plan.write < ALONE else len(os.sched_getaffinity(0))
        # An unpacked layer of packages is checked against its packages, unless one of these was not found.
        needed = [
            task
            for task in self._tasks
            if not self._is_done(task) or (isinstance(task.job, Group) and task.offer is None)
            if task.item is None or task.item.origin != "nowhere"
        ]
        with self._workers(count, partial(storejob.serve, self._store.root), tell) as workers:
            with tell.progress(plan.fetch + plan.write, "rebuilding") as advance:
                reported = self._make(needed, workers, max(count, 1), advance)
                self._check_groups()
                advance(max(plan.fetch + plan.write - reported, 0))  # the plan counts complete blocks
            written = workers.done
        return BuildResult(fetched=self._fetched, written=written)

    def _job_of(self, task: Task) -> Job | None:
        """Return the job as `Build` does, after a check of the free disk space. Raises `DiskError`."""
        job = super()._job_of(task)
        if task.offer is not None and isinstance(job, Tree):
            diskspace.check_free_space(self._store.root, job.blob.size, 0)
        elif isinstance(job, Group) and not self._is_done(task):
            sizes = [self._size_of(part.artifact) or (part.artifact.size, 1) for part in job.parts]
            diskspace.check_free_space(self._store.root, sum(size for size, _ in sizes), sum(count for _, count in sizes))
        return job
