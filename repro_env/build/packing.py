"""An image, straight into an output: spec -> layers as they are sent -> config and manifest. Nothing is unpacked.

What has to be sent is found first: a layer that was proven before, and that the output has, costs nothing. For the
others the whole wheels are needed, so installed files and caches of unpacked wheels are no places here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from repro_env.build import packed, proven, room
from repro_env.build.contradiction import check_groups, label
from repro_env.build.giver import Offer
from repro_env.build.interface import Item, Plan
from repro_env.build.packed import Answer, Group, Has, Job, Source, Tree
from repro_env.build.sources import Artifact, Finder, Place, Search
from repro_env.build.tasks import Task, found, parts, sizes, tasks, whole
from repro_env.build.trees import Trees
from repro_env.build.workers import Workers
from repro_env.image import config
from repro_env.image.manifest import Image
from repro_env.image.output import Output
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import ArtifactError, BuildError, NetworkError, ReproEnvError
from repro_env.model.image import Packed
from repro_env.model.spec import Spec
from repro_env.model.talk import Advance, Tell
from repro_env.store.carried import Carried
from repro_env.store.store import Store

Sent = proven.Sent
FETCHES = 6
"""Downloads at a time."""
ALONE = 16 << 20
"""Bytes of all artifacts below which starting worker processes costs more than it gives."""


def pack(
    spec: Spec,
    folder: Path,
    store: Store,
    output: Output,
    *,
    tell: Tell,
    source: bool = False,
    workers: int | None = None,
) -> Sent:
    """Send the image of a spec to an output. `folder` holds the spec, and `blobs/` beside it.

    `source`: the code too, as last layer at its captured path; the image ID is another one then, else it is the spec's.
    `workers`: processes, as many as cores when not given. Raises `ArtifactError`, `NetworkError`, `DiskError`,
    `BuildError`. Closes the output, whatever happens.
    """
    with closing(output):
        return Packing(spec, folder, store, output, source=source, workers=workers).run(tell)


class Packing:
    """Sends one image to one output."""

    def __init__(
        self,
        spec: Spec,
        folder: Path,
        store: Store,
        output: Output,
        *,
        source: bool = False,
        user: str = "",
        workers: int | None = None,
        local: bool = False,
    ) -> None:
        """`user`: `UID` or `UID:GID` that the image starts as. `local`: the output is files, so looking into it is quick and
        leaves no connection for a worker to inherit.

        Raises `BuildError` for a spec whose expected layers contradict its identity, or one without source when asked for it.
        """
        self._spec = spec
        self._folder = folder
        self._store = store
        self._output = output
        self._user = user
        self._finder = Finder(spec, folder, store)
        self._trees = Trees(spec, folder, store)
        self._searches: dict[str, Search] = {}
        self._tasks = tasks(spec, folder, store, source=source)
        artifacts: list[Artifact] = [*spec.identity.packages, *spec.identity.distributions]
        total = sum(one.size for one in artifacts) + sum(task.size for task in self._tasks)
        if local:
            self._look_here()
        alone = total < ALONE or all(task.found for task in self._tasks)
        self._workers = 0 if alone else workers or len(os.sched_getaffinity(0))

    def plan(self, *, ask: bool) -> Plan:
        """What `run` would do. `ask`: servers are asked too whether they have what they would have to give."""
        with closing(self._finder), closing(self._trees.givers), ThreadPoolExecutor(FETCHES) as pool:
            self._look_here()
            return self._plan(pool, ask=ask)

    def run(self, tell: Tell) -> Sent:
        serve = partial(packed.serve, self._store.root, self._output)
        # Workers before any thread is started, since a fork copies only the one that calls it.
        with (
            closing(self._finder),
            closing(self._trees.givers),
            self._store.temp.folder() as self._scratch,
            Workers[Job, Answer](self._workers, serve) as workers,
            ThreadPoolExecutor(FETCHES) as fetchers,
            ThreadPoolExecutor(max(self._workers, 1)) as lanes,
        ):
            try:
                self._look(workers, lanes)
                needed = [task for task in self._tasks if task.found is None]
                if needed:
                    self._send(needed, workers, lanes, fetchers, tell)
                check_groups(self._spec, sizes(self._tasks), whole(self._spec, self._tasks))
                layers = tuple(found(task) for task in self._tasks)
                image = Image(self._config(layers), tuple(one.blob for one in layers))
                where = self._output.finish(image)
                # That a layer which came whole follows from its wheels was not seen: nobody had them.
                if len(layers) == len(self._spec.expected.layers) and not any(task.whole for task in self._tasks):
                    proven.remember(self._spec.expected.image_id, layers, self._store)
            except BaseException:
                self._finder.stop()
                self._trees.givers.stop()
                fetchers.shutdown(wait=False, cancel_futures=True)
                lanes.shutdown(wait=False, cancel_futures=True)
                workers.stop()
                raise
            sent = workers.done
        return Sent(
            image=image,
            layers=layers,
            where=where,
            made=tuple(found(task).diff_id for task in needed),
            fetched=self._finder.fetched + self._trees.givers.fetched,
            sent=sent,
        )

    def _look_here(self) -> None:
        for task in self._tasks:
            if task.expected is not None and task.found is None and self._output.has(task.expected.blob):
                task.found = task.expected

    def _look(self, workers: Workers[Job, Answer], lanes: ThreadPoolExecutor) -> None:
        """Ask the output for every layer that is known."""
        asked = [
            (task, lanes.submit(workers.run, Has(blob=task.expected.blob)))
            for task in self._tasks
            if task.expected is not None and task.found is None
        ]
        for task, future in asked:
            if future.result().packed is not None:
                task.found = task.expected

    def _send(
        self,
        needed: Sequence[Task],
        workers: Workers[Job, Answer],
        lanes: ThreadPoolExecutor,
        fetchers: ThreadPoolExecutor,
        tell: Tell,
    ) -> None:
        plan = self._plan(fetchers, ask=False)
        room.enough(self._store.root, plan.fetch, plan.files)
        tell(f"packing: {len(needed)} of {len(self._tasks)} layers to send, {plan.fetch / 1e6:.1f} MB to fetch")
        with tell.progress(plan.fetch + plan.write, "packing") as advance:
            self._drive(needed, workers, lanes, fetchers, advance)
        for task in needed:
            if task.whole:
                tell.detail(f"{task.label} came whole from where it was pushed: not all that it is made of was to be had")
        hints = {one.diff_id: one.blob for one in self._spec.expected.packed}
        for task in needed:
            made = found(task)
            hint = hints.get(made.diff_id)
            if hint is not None and hint.digest != made.blob.digest:
                tell(
                    f"note: {task.label} was compressed to {made.blob.digest[:19]}… and not to the {hint.digest[:19]}… of the "
                    "capture: the image ID is the same, the manifest digest is another"
                )

    def _plan(self, pool: ThreadPoolExecutor, *, ask: bool) -> Plan:
        needed = [part.artifact for task in self._tasks if task.found is None for part in parts(task)]
        for one in needed:
            self._searches.setdefault(one.key, Search(self._finder, one, None))
        agree = self._finder.ask if ask else _believe
        peeked = pool.map(lambda one: self._peek(one, agree), needed)
        places = dict(zip((one.key for one in needed), peeked, strict=True))
        items: list[Item] = []
        fetch = files = 0
        for task in self._tasks:
            failed = next(
                (found for part in parts(task) if isinstance(found := places.get(part.artifact.key), ReproEnvError)), None
            )
            offer = self._offered(task, failed) if failed is not None else None
            for part in parts(task):
                one = part.artifact
                found = places.get(one.key)
                place = found if isinstance(found, Place) and offer is None else None
                origin = offer.origin if offer is not None else place.origin if place is not None else "output"
                where = offer.where if offer is not None else str(place or "")
                items.append(Item(what=label(one), origin=origin, where=where, size=one.size))
                if place is not None and place.remote:
                    fetch += one.size
                    files += 1
            if offer is not None:
                fetch += offer.size
                files += 1
            if isinstance(task.job, Tree | Source):
                items.append(self._tree_item(task, task.job.blob, ask=ask))
        write = sum(task.size for task in self._tasks if task.found is None)
        return Plan(items=tuple(items), fetch=fetch, write=write, files=files, exact=True)

    def _tree_item(self, task: Task, blob: TreeBlob, *, ask: bool) -> Item:
        """Here a blob comes before an unpacked layer: it is sent as it lies."""
        if task.found is not None:
            return Item(what=task.what, origin="output", where="", size=blob.size)
        carried = Carried(self._folder / "blobs")
        path = carried.path(blob.sha256)
        if path is None:
            return self._trees.item(task.what, blob, ask=ask)[0]
        if ask:
            for _ in carried.chunks(blob.sha256, blob.size):
                pass
        return Item(what=task.what, origin="bundled", where=str(path), size=blob.size)

    def _peek(self, one: Artifact, agree: Callable[[Place, Artifact], Place]) -> Place | ReproEnvError:
        try:
            return self._searches[one.key].peek(agree)
        except (ArtifactError, NetworkError) as error:
            return error

    def _offered(self, task: Task, failed: ReproEnvError) -> Offer:
        """Who has a layer as it was sent, when not all that it is made of is to be had. Raises `failed` when nobody has."""
        offer = self._trees.givers.offer(task.diff_id)
        if offer is None:
            raise self._trees.givers.explained(failed)
        task.whole = True
        return offer

    def _drive(
        self,
        needed: Sequence[Task],
        workers: Workers[Job, Answer],
        lanes: ThreadPoolExecutor,
        fetchers: ThreadPoolExecutor,
        advance: Advance,
    ) -> None:
        """Do all tasks, the largest first."""
        waiting = sorted(needed, key=lambda task: -task.size)
        for task in waiting:
            self._seek(task, fetchers)
        running: dict[Future[Answer], Task] = {}
        told = 0
        while waiting or running:
            for task in [task for task in waiting if task.ready][: max(self._workers, 1) - len(running)]:
                job = self._complete(task, fetchers)
                if job is not None:
                    waiting.remove(task)
                    running[lanes.submit(workers.run, job)] = task
            awaited: list[Future[Any]] = [*running]
            awaited += [future for task in waiting for future in task.needed.values() if not future.done()]
            wait(awaited, timeout=0.1, return_when=FIRST_COMPLETED)
            done = workers.done + self._finder.fetched
            advance(done - told)
            told = done
            for future in [future for future in running if future.done()]:
                task = running.pop(future)
                if not self._settled(task, future, fetchers):
                    waiting.insert(0, task)

    def _complete(self, task: Task, fetchers: ThreadPoolExecutor) -> Job | None:
        """The job of a task that is ready; None when its layer is to be taken whole, and not there yet."""
        try:
            return task.complete()
        except (ArtifactError, NetworkError) as error:
            if task.whole:
                raise
            self._offered(task, error)
            self._seek(task, fetchers)
            return None

    def _seek(self, task: Task, fetchers: ThreadPoolExecutor) -> None:
        """Bring what a task is made of to this machine; a fetcher's thread does."""
        if task.whole:
            task.needed = {}
            task.bringing = fetchers.submit(self._whole, task.diff_id)
        elif isinstance(task.job, Tree | Source):
            task.bringing = fetchers.submit(self._bring, task)
        else:
            for part in parts(task):
                search = self._searches[part.artifact.key]
                task.needed[part.artifact.key] = fetchers.submit(search.take, self._finder.take)

    def _whole(self, diff_id: str) -> Tree:
        """A layer as it was sent somewhere, on this machine for as long as this takes."""
        size = self._trees.givers.give(diff_id, Carried(self._scratch / "blobs"), size=None)
        return Tree(blob=TreeBlob(sha256=diff_id, size=size, files=0), folder=str(self._scratch))

    def _bring(self, task: Task, *, again: bool = False) -> Tree | Source:
        job = task.job
        if not isinstance(job, Tree | Source):
            raise BuildError("is no tree", where=task.label)
        if again or self._store.layers.path(job.blob.sha256) is None:
            self._trees.bring(task.what, job.blob, again=again)
        return job

    def _settled(self, task: Task, future: Future[Answer], fetchers: ThreadPoolExecutor) -> bool:
        """True when the layer is sent; False when it has to be tried again another way. Raises when it cannot be."""
        try:
            task.settle(future.result())
        except (ArtifactError, BuildError) as error:
            damaged = False
            for part in parts(task):
                place = task.needed[part.artifact.key].result()
                if self._finder.drop(place, part.artifact):
                    damaged = True
                    search = self._searches[part.artifact.key]
                    search.failed(ArtifactError("is damaged", where=str(place)))
                    task.needed[part.artifact.key] = fetchers.submit(search.take, self._finder.take)
            if not damaged and not self._otherwise(task, fetchers):
                raise type(error)(f"{task.label}: {error.what}", where=error.where, hint=error.hint) from None
            return False
        return True

    def _otherwise(self, task: Task, fetchers: ThreadPoolExecutor) -> bool:
        """Another way to make a layer that failed, once: the proof anew, the unpacked layer, another copy of the blob."""
        job = task.job
        if isinstance(job, Group) and job.known is not None:
            task.job = msgspec.structs.replace(job, known=None)
            return True
        if isinstance(job, Tree) and not job.unpacked and self._store.layers.path(job.blob.sha256) is not None:
            task.job, task.bringing = msgspec.structs.replace(job, unpacked=True), None
            return True
        if isinstance(job, Tree | Source) and not task.again and self._trees.givers.offer(job.blob.sha256) is not None:
            task.again = True
            task.bringing = fetchers.submit(self._bring, task, again=True)
            return True
        return False

    def _config(self, layers: Sequence[Packed]) -> bytes:
        more = len(layers) > len(self._spec.expected.layers)
        source = self._spec.observed.source if more else None
        return config.config(self._spec.identity, [one.diff_id for one in layers], source=source, user=self._user)


def _believe(place: Place, one: Artifact) -> Place:  # noqa: ARG001
    return place
