"""Make the layers of an image in worker processes. What unpacking them and sending them have in common is here.

The largest layers are made first, while what the others need is still being fetched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from repro_env.delivery.builder.consistency import check_expected, check_groups, label
from repro_env.delivery.builder.job import Group, Job, JobResult, Part, Source, Tree, open_part
from repro_env.delivery.builder.locations import Artifact, Finder, Location, Search, accept_any
from repro_env.delivery.builder.plan import Item, Origin, Plan
from repro_env.delivery.builder.task import Task
from repro_env.delivery.builder.trees import Trees
from repro_env.delivery.builder.workers import Workers
from repro_env.oci import wheel as rule
from repro_env.schema.artifact import CondaPackage, TreeBlob, Wheel
from repro_env.schema.errors import ArtifactError, BuildError, NetworkError, ReproEnvError
from repro_env.schema.progress import Advance, Tell
from repro_env.schema.spec import Spec
from repro_env.store.packages.wheelfile import recall_facts
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

FETCHES = 6
"""Most downloads at the same time."""


class Build:
    """Makes the layers of one spec: finds the parts of each, fetches them, and gives the layers to worker processes."""

    destination: Origin
    """The origin, in a plan, of layers that are there already."""
    complete_wheels: bool
    """Whether only complete wheels can be used, not installed files."""

    def __init__(self, spec: Spec, directory: Path, store: Store) -> None:
        """`directory` holds the spec and `blobs/`. Raises `BuildError` if the expected layers contradict the identity."""
        check_expected(spec)
        self._spec = spec
        self._directory = directory
        self._store = store
        self._trees = Trees(spec, directory, store)
        self._finder = Finder(spec, directory, store, self._trees.blob_sources)
        self._searches: dict[str, Search] = {}
        self._wheel_facts: dict[str, rule.Facts] = {}
        """By key. The threads that fetch wheels add to it."""
        self._tasks: list[Task] = []

    def _is_done(self, task: Task) -> bool:
        """Return whether the destination has the layer."""
        raise NotImplementedError

    def _needs(self, task: Task, artifact: Artifact) -> bool:
        """Return whether the bytes of an artifact are needed for its layer."""
        raise NotImplementedError

    def _plan_of(self, items: Iterable[Item], downloads: list[int]) -> Plan:
        """Return the plan. `downloads`: the size of each file to download."""
        raise NotImplementedError

    def plan(self, *, ask: bool) -> Plan:
        """Find every artifact. `ask`: also ask the servers whether they have it. Raises `ArtifactError` if one is not found."""
        with contextlib.closing(self), ThreadPoolExecutor(FETCHES) as pool:
            return self._plan(pool, ask=ask)

    def close(self) -> None:
        """Close connections; the next request opens new ones."""
        self._finder.close()
        self._trees.blob_sources.close()

    @property
    def _fetched(self) -> int:
        """Bytes downloaded so far."""
        return self._finder.fetched + self._trees.blob_sources.fetched

    def _plan(self, pool: ThreadPoolExecutor, *, ask: bool) -> Plan:
        accept = self._finder.probe if ask else accept_any
        needed = [part.artifact for task in self._tasks for part in task.parts if self._needs(task, part.artifact)]
        nearest = dict(
            zip(
                (artifact.key for artifact in needed),
                pool.map(lambda artifact: self._peek(artifact, accept), needed),
                strict=True,
            )
        )
        items: list[Item] = []
        downloads: list[int] = []
        for task in self._tasks:
            locations = [nearest[part.artifact.key] for part in task.parts if part.artifact.key in nearest]
            error = next((location for location in locations if isinstance(location, ReproEnvError)), None)
            if error is not None:
                self._use_complete_layer(task, error)
            if task.offer is not None and not self._is_done(task):
                downloads.append(task.offer.size)
            for part in task.parts:
                location = None if task.offer else nearest.get(part.artifact.key)
                origin, where = self.destination, ""
                if isinstance(location, Location):
                    origin, where = location.origin, str(location)
                    downloads += [part.artifact.size] if location.is_remote else []
                elif task.offer is not None and not self._is_done(task):
                    origin, where = task.offer.origin, task.offer.where
                items.append(Item(what=label(part.artifact), origin=origin, where=where, size=part.artifact.size))
            if isinstance(task.job, Tree | Source):
                task.item = self._tree_item(task, task.job.blob, ask=ask)
                items.append(task.item)
                if task.item.origin not in (self.destination, "layer", "bundled", "nowhere"):
                    downloads.append(task.item.size)
        return self._plan_of(items, downloads)

    def _tree_item(self, task: Task, blob: TreeBlob, *, ask: bool) -> Item:
        """Return the location of a tree. Raises `ArtifactError` if it is not found."""
        if self._is_done(task):
            return Item(what=task.what, origin=self.destination, where="", size=blob.size)
        return self._trees.item(task.what, blob, ask=ask)

    def _search(self, artifact: Artifact) -> Search:
        """Return the search for an artifact. It continues after the locations that were tried before."""
        if artifact.key not in self._searches:
            facts = self._facts_of(artifact) if isinstance(artifact, Wheel) and not self.complete_wheels else None
            self._searches[artifact.key] = Search(self._finder, artifact, facts)
        return self._searches[artifact.key]

    def _peek(self, artifact: Artifact, accept: Callable[[Location, Artifact], Location]) -> Location | ReproEnvError:
        """Return the nearest location of an artifact that `accept` accepts, or the error if it is not found."""
        try:
            return self._search(artifact).peek(accept)
        except (ArtifactError, NetworkError) as error:
            return error

    def _facts_of(self, wheel: Wheel) -> rule.Facts | None:
        """Return the facts of a wheel if they are known."""
        if wheel.key not in self._wheel_facts:
            facts = recall_facts(wheel.filename, wheel.sha256, self._store.facts)
            if facts is None:
                return None
            self._wheel_facts[wheel.key] = facts
        return self._wheel_facts[wheel.key]

    @contextlib.contextmanager
    def _workers(self, count: int, serve: Callable[[Job, Advance], JobResult], tell: Tell) -> Iterator[Workers[Job, JobResult]]:
        """Start worker processes and threads. If the block raises, downloads and jobs end soon."""
        # Workers start before any thread, since a fork copies only the thread that calls it.
        with (
            contextlib.closing(self),
            self._store.temp.directory() as self._scratch,
            Workers[Job, JobResult](count, serve) as workers,
            ThreadPoolExecutor(FETCHES) as self._fetchers,
            ThreadPoolExecutor(max(count, 1)) as self._lanes,
        ):
            self._tell = tell
            try:
                yield workers
            except BaseException:
                self._finder.stop()
                self._trees.blob_sources.stop()
                for pool in (self._fetchers, self._lanes):
                    pool.shutdown(wait=False, cancel_futures=True)
                workers.stop()
                raise

    def _make(self, tasks: Iterable[Task], workers: Workers[Job, JobResult], limit: int, advance: Advance) -> int:
        """Do all tasks, at most `limit` at the same time. Returns the bytes that were reported to `advance`."""
        pending = sorted(tasks, key=lambda task: -task.size)
        for task in pending:
            self._start_fetching(task)
        running: dict[Future[JobResult], Task] = {}
        reported = 0
        while pending or running:
            for task in [task for task in pending if not task.missing][: limit - len(running)]:
                job = self._job_of(task)
                if job is not None:
                    pending.remove(task)
                    running[self._lanes.submit(workers.run, job)] = task
            awaited: list[Future[Any]] = [*running, *(future for task in pending for future in task.missing)]
            wait(awaited, timeout=0.1, return_when=FIRST_COMPLETED)
            total = workers.done + self._fetched
            advance(total - reported)
            reported = total
            for future in [future for future in running if future.done()]:
                task = running.pop(future)
                if not self._settle(task, future):
                    pending.insert(0, task)
        return reported

    def _start_fetching(self, task: Task) -> None:
        """Start fetching what a task needs, in fetcher threads."""
        if task.offer is not None:
            self._tell.detail(f"{task.label} is fetched complete from {task.offer.where}: not all of its packages were found")
            task.part_futures = {}
            task.tree_future = self._fetchers.submit(self._fetch_complete_layer, task.diff_id)
        elif isinstance(task.job, Tree | Source):
            if task.item is not None and task.item.origin != "bundled":
                self._tell.detail(f"fetching the {task.what} from {task.item.where}")
            task.tree_future = self._fetchers.submit(self._bring_tree, task.what, task.job)
        else:
            for part in task.parts:
                is_needed = self._needs(task, part.artifact)
                task.part_futures[part.artifact.key] = self._fetchers.submit(self._find_part, part, is_needed)

    def _use_complete_layer(self, task: Task, error: ReproEnvError) -> None:
        """Let a task fetch its layer complete, because a part was not found. Raises `error` if no source has the layer."""
        task.offer = self._trees.blob_sources.offer(task.diff_id)
        if task.offer is None:
            raise self._trees.blob_sources.explain(error)

    def _fetch_complete_layer(self, diff_id: str) -> Job:
        """Fetch a complete layer into a temporary directory, and check its diff ID. Runs in a fetcher thread."""
        size = self._trees.blob_sources.fetch(diff_id, SpecBlobs(self._scratch / "blobs"), size=None)
        return Tree(blob=TreeBlob(sha256=diff_id, size=size, files=0), directory=str(self._scratch))

    def _bring_tree(self, what: str, job: Tree | Source, *, again: bool = False) -> Job:
        """Bring the blob of a tree next to the spec, unless the store has the tree. Runs in a fetcher thread."""
        if again or self._store.layers.path(job.blob.sha256) is None:
            self._trees.bring(what, job.blob, again=again)
        return job

    def _find_part(self, part: Part, is_needed: bool) -> Part:
        """Return a part with its facts and its location. Runs in a fetcher thread."""
        artifact = part.artifact
        facts = self._facts_of(artifact) if isinstance(artifact, Wheel) else None
        if not is_needed:
            return Part(artifact, part.layout, facts)
        search = self._search(artifact)
        while True:
            location = search.take(self._finder.fetch)
            if isinstance(artifact, CondaPackage) or facts is not None:
                return Part(artifact, part.layout, facts, location)
            try:
                # As long as the facts are unknown, only complete wheels are found.
                facts = self._wheel_facts[artifact.key] = self._finder.read_facts(location, artifact)
            except ArtifactError as error:
                if not self._finder.discard_damaged(location, artifact):
                    raise
                search.add_failure(error)
            else:
                return Part(artifact, part.layout, facts, location)

    def _job_of(self, task: Task) -> Job | None:
        """Return the job of a task that misses nothing; None if its layer has to be fetched complete first."""
        if task.tree_future is not None:
            task.job = task.tree_future.result()
        if not isinstance(task.job, Group):
            return task.job
        try:
            parts = tuple(task.part_futures[part.artifact.key].result() for part in task.parts)
        except (ArtifactError, NetworkError) as error:
            if self._is_done(task):
                raise
            self._use_complete_layer(task, error)
            self._start_fetching(task)
            return None
        return msgspec.structs.replace(task.job, parts=parts)

    def _settle(self, task: Task, future: Future[JobResult]) -> bool:
        """Return True if the layer is made, False if the task must run again in another way. Raises its errors."""
        try:
            task.finish(future.result())
        except (ArtifactError, BuildError) as error:
            damaged = [part for part in (needed.result() for needed in task.part_futures.values()) if self._is_damaged(part)]
            for part in damaged:
                self._search(part.artifact).add_failure(error)
                task.part_futures[part.artifact.key] = self._fetchers.submit(self._find_part, part, True)
            if not damaged and not self._retry_differently(task):
                raise type(error)(f"{task.label}: {error.what}", where=error.where, hint=error.hint) from None
            return False
        return True

    def _is_damaged(self, part: Part) -> bool:
        """Return whether a part has wrong bytes at its location. A damaged blob in the store is deleted."""
        if part.location is None or part.location.is_file:
            return part.location is not None and self._finder.discard_damaged(part.location, part.artifact)
        try:
            with ExitStack() as exits:
                installed, source = open_part(self._store, part, exits)
                for entry in installed.entries:
                    for _ in source.chunks(entry) if source is not None else ():
                        pass
        except ArtifactError:
            return True
        return False

    def _retry_differently(self, task: Task) -> bool:
        """Change a failed task, once: prove the blob again, use the unpacked layer, or fetch the blob again."""
        job = task.job
        if isinstance(job, Group) and job.known is not None:
            task.job = msgspec.structs.replace(job, known=None)
            return True
        if isinstance(job, Tree) and not job.unpacked and self._store.layers.path(job.blob.sha256) is not None:
            task.job, task.tree_future = msgspec.structs.replace(job, unpacked=True), None
            return True
        if not isinstance(job, Tree | Source) or task.offer is not None or task.refetched:
            return False
        if self._trees.blob_sources.offer(job.blob.sha256) is None:
            return False
        task.refetched = True
        task.tree_future = self._fetchers.submit(self._bring_tree, task.what, job, again=True)
        return True

    def _check_groups(self) -> None:
        """Check the expected groups against the grouping rule. Raises `BuildError`."""
        sizes = {key: size for task in self._tasks for key, size in task.sizes.items()}
        check_groups(self._spec, sizes, {task.kind for task in self._tasks if task.kind is not None and task.offer is not None})
