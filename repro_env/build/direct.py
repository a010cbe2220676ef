"""The direct builder: artifacts -> layers in the store, with no container engine.

What each layer is made of is known from the spec's identity and its wheels' own facts. `expected.layers` only
says in which order to work; that it follows from the identity is checked, not believed: the fixed layers by
`contradiction`, the groups once every wheel's facts are known, and each layer by its diff ID while it is
written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from repro_env.build import room
from repro_env.build.contradiction import check_groups, contradiction, label, several
from repro_env.build.giver import Offer
from repro_env.build.interface import Built, Item, Origin, Plan
from repro_env.build.known import Known
from repro_env.build.room import blocks
from repro_env.build.sources import Artifact, Finder, Place, Search
from repro_env.build.trees import Trees
from repro_env.build.unpacking import GroupJob, Job, MarkerJob, Part, PlaceFailed, TreeJob, serve
from repro_env.build.workers import Workers
from repro_env.model.artifact import CondaPackage, TreeBlob
from repro_env.model.errors import ArtifactError, BuildError, NetworkError, ReproEnvError
from repro_env.model.spec import Spec
from repro_env.model.talk import Advance, Tell
from repro_env.store.carried import Carried
from repro_env.store.store import Store

FETCHES = 6
"""Downloads at a time."""
ALONE = 64 << 20
"""Bytes to write below which starting worker processes costs more than it gives."""


class _Task:
    """A layer to be made, and the search for what it is made of. Used by the main thread only."""

    def __init__(self, job: Job, *, label: str, size: int) -> None:
        self.job = job
        self.label = label
        self.size = size
        """For the order of work: the largest first."""
        self.wheels: dict[str, Artifact] = {}
        self.needed: dict[str, Future[Part]] = {}
        self.fetched: Future[TreeJob] | None = None
        """Of a tree or a whole layer: its job, once the blob is there."""
        self.again = False
        """Its blob was fetched a second time."""

    @property
    def awaited(self) -> list[Future[Any]]:
        """What has to be there first and is not yet."""
        futures: list[Future[Any]] = [*self.needed.values(), *([self.fetched] if self.fetched else [])]
        return [future for future in futures if not future.done()]


class Direct:
    """Builds one spec into one store (`build.interface.Builder`)."""

    def __init__(self, spec: Spec, folder: Path, store: Store, *, workers: int | None = None) -> None:
        """`folder` holds the spec, and `blobs/` beside it. `workers`: processes, as many as cores when not given.

        Raises `BuildError` for a spec whose expected layers contradict its identity.
        """
        contradiction(spec)
        self._spec = spec
        self._folder = folder
        self._store = store
        self._workers = workers
        self._trees = Trees(spec, folder, store)
        self._givers = self._trees.givers
        self._finder = Finder(spec, folder, store, self._givers)
        self._whole: dict[str, Offer] = {}
        """Layers whose wheels are nowhere, by diff ID, and who has the layer."""
        self._artifacts: tuple[Artifact, ...] = (*spec.identity.packages, *spec.identity.distributions)
        by_label = {label(one): one for one in self._artifacts}
        self._wheels = {one.diff_id: tuple(by_label[held] for held in one.holds) for one in spec.expected.layers}
        self._known = Known(spec.identity, store, self._finder.facts)
        self._searches: dict[str, Search] = {}
        self._planned: Plan | None = None

    def plan(self, *, ask: bool) -> Plan:
        try:
            return self._plan(ask=ask)
        finally:
            self._finder.close()
            self._givers.close()

    def _plan(self, *, ask: bool) -> Plan:
        agree = self._finder.ask if ask else _believe
        needed = [
            wheel
            for one in self._spec.expected.layers
            for wheel in self._wheels[one.diff_id]
            if not self._there(one.diff_id) or not self._known.has(wheel)
        ]
        for wheel in needed:
            self._searches.setdefault(wheel.key, Search(self._finder, wheel, self._known.facts.get(wheel.key)))
        with ThreadPoolExecutor(FETCHES) as pool:
            peeked = list(pool.map(lambda wheel: self._peek(wheel, agree), needed))
        places = {wheel.key: place for wheel, place in zip(needed, peeked, strict=True) if isinstance(place, Place)}
        nowhere = {wheel.key: error for wheel, error in zip(needed, peeked, strict=True) if not isinstance(error, Place)}
        for wheel in needed:
            if wheel.key in places:
                self._known.weigh(wheel, places[wheel.key])
        items: list[Item] = []
        fetch = write = files = 0
        for one in self._spec.expected.layers:
            there = self._there(one.diff_id)
            failed = next((nowhere[wheel.key] for wheel in self._wheels[one.diff_id] if wheel.key in nowhere), None)
            if failed is not None:
                offer = self._taken_whole(one.diff_id, failed)
                fetch += 0 if there else offer.size
                write += 0 if there else blocks(offer.size)
            for wheel in self._wheels[one.diff_id]:
                place = places.get(wheel.key) if failed is None else None
                origin: Origin = place.origin if place is not None else "layer" if failed is None or there else "registry"
                where = self._whole[one.diff_id].where if origin == "registry" and failed is not None else str(place or "")
                items.append(Item(what=label(wheel), origin=origin, where=where, size=wheel.size))
                if place is not None and place.remote:
                    fetch += wheel.size
                    write += blocks(wheel.size)
                    files += 1
                if not there:
                    size, count = self._known.unpacked(wheel)
                    write += size
                    files += count
        for what, tree in self._trees.named():
            item, blob = self._trees.item(what, tree, ask=ask)
            items.append(item)
            if item.origin not in ("layer", "bundled", "nowhere"):
                fetch += item.size
                write += blocks(item.size)
                files += 1
            if blob:
                write += blocks(tree.size)
                files += tree.files
        exact = all(self._known.weighs(wheel) for wheel in needed)
        self._planned = Plan(items=tuple(items), fetch=fetch, write=write, files=files, exact=exact)
        return self._planned

    def _peek(self, wheel: Artifact, agree: Callable[[Place, Artifact], Place]) -> Place | ReproEnvError:
        try:
            return self._searches[wheel.key].peek(agree)
        except (ArtifactError, NetworkError) as error:
            return error

    def _taken_whole(self, diff_id: str, failed: ReproEnvError) -> Offer:
        """Who has a layer as it was sent, when a wheel of it is nowhere. Raises `failed` when nobody has."""
        offer = self._givers.offer(diff_id)
        if offer is None:
            raise self._givers.explained(failed)
        self._whole[diff_id] = offer
        return offer

    def build(self, tell: Tell) -> Built:
        plan = self._planned or self.plan(ask=False)
        count = 0 if plan.write < ALONE else self._workers or _cores()
        # Workers before any thread is started, since a fork copies only the one that calls it.
        with (
            contextlib.closing(self._finder),
            contextlib.closing(self._givers),
            self._store.temp.folder() as layers,
            Workers[Job, None](count, partial(serve, self._store.root)) as workers,
        ):
            self._layers = Carried(layers / "blobs")
            with (
                ThreadPoolExecutor(FETCHES) as fetchers,
                ThreadPoolExecutor(max(count, 1)) as lanes,
                tell.progress(plan.fetch + plan.write, "rebuilding") as advance,
            ):
                try:
                    told = self._drive(workers, lanes, fetchers, max(count, 1), advance, tell)
                    advance(max(plan.fetch + plan.write - told, 0))  # the plan counts whole blocks
                except BaseException:
                    self._finder.stop()
                    self._givers.stop()
                    fetchers.shutdown(wait=False, cancel_futures=True)
                    lanes.shutdown(wait=False, cancel_futures=True)
                    workers.stop()
                    raise
            written = workers.done
        return Built(
            diff_ids=tuple(one.diff_id for one in self._spec.expected.layers),
            fetched=self._finder.fetched + self._givers.fetched,
            written=written,
        )

    def _drive(
        self,
        workers: Workers[Job, None],
        lanes: ThreadPoolExecutor,
        fetchers: ThreadPoolExecutor,
        most: int,
        advance: Advance,
        tell: Tell,
    ) -> int:
        """Do all tasks, the largest first; returns the bytes that `advance` was told of."""
        waiting = sorted(self._tasks(fetchers, tell), key=lambda task: -task.size)
        running: dict[Future[None], _Task] = {}
        told = 0
        grouped = False
        while waiting or running:
            for task in [task for task in waiting if not task.awaited][: most - len(running)]:
                waiting.remove(task)
                job = self._ready(task)
                if job is None:
                    tell.detail(self._whole_instead(task, fetchers))
                    waiting.append(task)
                else:
                    running[lanes.submit(workers.run, job)] = task
            if not grouped and all(self._known.has(one) for one in self._artifacts):
                self._grouped()
                grouped = True
            awaited: list[Future[Any]] = [*running]
            awaited += [future for task in waiting for future in task.awaited]
            wait(awaited, timeout=0.1, return_when=FIRST_COMPLETED)
            done = workers.done + self._finder.fetched + self._givers.fetched
            advance(done - told)
            told = done
            for future in [future for future in running if future.done()]:
                task = running.pop(future)
                if not self._settled(task, future, fetchers):
                    waiting.insert(0, task)
        if not grouped:
            self._known.learn_packages()  # what they become was found out while they were unpacked
            self._grouped()
        return told

    def _tasks(self, fetchers: ThreadPoolExecutor, tell: Tell) -> list[_Task]:
        identity = self._spec.identity
        tasks = []
        for one in self._spec.expected.layers:
            wheels = self._wheels[one.diff_id]
            if one.kind in ("conda", "distributions"):
                task = _Task(
                    GroupJob(one.diff_id, ()),
                    label=f"the layer of {several(one.holds)}",
                    size=sum(self._known.unpacked(wheel)[0] for wheel in wheels),
                )
                if one.diff_id in self._whole:
                    if not self._there(one.diff_id):
                        tell.detail(self._whole_instead(task, fetchers))
                        tasks.append(task)
                    continue
                task.wheels = {wheel.key: wheel for wheel in wheels}
                task.needed = {wheel.key: fetchers.submit(self._part, wheel, self._there(one.diff_id)) for wheel in wheels}
                tasks.append(task)
            elif one.kind == "marker":
                tasks.append(_Task(MarkerJob(one.diff_id, identity), label="the marker layer", size=0))
        for what, tree in self._trees.named():
            item, wanted = self._trees.item(what, tree)
            if wanted:
                if item.origin != "bundled":
                    tell.detail(f"fetching the {what} from {item.where}")
                task = _Task(TreeJob(tree, str(self._folder)), label=f"the {what}", size=tree.size)
                task.fetched = fetchers.submit(self._brought, what, tree)
                tasks.append(task)
        return tasks

    def _brought(self, what: str, tree: TreeBlob, *, again: bool = False) -> TreeJob:
        """The job of a tree whose blob is beside the spec by then; runs in a fetcher's thread."""
        self._trees.bring(what, tree, again=again)
        return TreeJob(tree, str(self._folder))

    def _whole_instead(self, task: _Task, fetchers: ThreadPoolExecutor) -> str:
        """Let a task take its layer as it was sent; returns a line about it."""
        diff_id = task.job.diff_id if isinstance(task.job, GroupJob) else ""
        task.needed = {}
        task.fetched = fetchers.submit(self._fetched, diff_id)
        return f"{task.label} comes whole from {self._whole[diff_id].where}: not all that it is made of was to be had"

    def _fetched(self, diff_id: str) -> TreeJob:
        """The job of a layer as it was sent, whose diff ID is proven; runs in a fetcher's thread."""
        size = self._givers.give(diff_id, self._layers, size=None)
        room.enough(self._store.root, size, 0)
        return TreeJob(TreeBlob(sha256=diff_id, size=size, files=0), str(self._layers.folder.parent))

    def _part(self, wheel: Artifact, there: bool) -> Part:
        """Find one wheel or package; runs in a fetcher's thread."""
        if isinstance(wheel, CondaPackage):
            if there and self._known.has(wheel):
                return Part(wheel, self._spec.identity.layout, None, None)
            search = self._searches.setdefault(wheel.key, Search(self._finder, wheel, None))
            return Part(wheel, self._spec.identity.layout, None, search.take(self._finder.take))
        facts = self._known.facts.get(wheel.key)
        if there and facts is not None:
            return Part(wheel, self._spec.identity.layout_of(wheel), facts, None)
        search = self._searches.setdefault(wheel.key, Search(self._finder, wheel, facts))
        while True:
            place = search.take(self._finder.take)
            if facts is not None:
                return Part(wheel, self._spec.identity.layout_of(wheel), facts, place)
            try:
                # Only whole wheels are offered while the facts are not known.
                facts = self._known.facts[wheel.key] = self._finder.learn(place, wheel)
            except ArtifactError as error:
                if not self._finder.drop(place, wheel):
                    raise
                search.failed(error)
            else:
                return Part(wheel, self._spec.identity.layout_of(wheel), facts, place)

    def _ready(self, task: _Task) -> Job | None:
        """The job of a task whose parts are all found; None when its layer is to be taken whole.

        Raises what finding a part raised, or `DiskError`.
        """
        if task.fetched is not None:
            task.job = task.fetched.result()
        if not isinstance(task.job, GroupJob):
            return task.job
        try:
            parts = tuple(task.needed[name].result() for name in sorted(task.needed))
        except (ArtifactError, NetworkError) as error:
            if self._there(task.job.diff_id):
                raise
            self._taken_whole(task.job.diff_id, error)
            return None
        if not self._there(task.job.diff_id):
            sizes = [self._known.unpacked(part.wheel) for part in parts]
            room.enough(self._store.root, sum(size for size, _ in sizes), sum(count for _, count in sizes))
        return msgspec.structs.replace(task.job, parts=parts)

    def _settled(self, task: _Task, future: Future[None], fetchers: ThreadPoolExecutor) -> bool:
        """True when the layer is made; False when it has to be tried again from other places. Raises when it cannot be."""
        try:
            future.result()
        except PlaceFailed as failed:
            part = task.needed[failed.name].result()
            if part.place is None or (part.place.whole and not self._finder.drop(part.place, part.wheel)):
                raise failed.error from None
            self._again(task, part, failed.error, fetchers)
            return False
        except BuildError as error:
            damaged = [
                part
                for part in (needed.result() for needed in task.needed.values())
                if part.place is not None and part.place.whole and self._finder.drop(part.place, part.wheel)
            ]
            for part in damaged:
                self._again(task, part, ArtifactError("is damaged", where=str(part.place)), fetchers)
            if damaged:
                return False
            raise BuildError(error.what, where=error.where or task.label, hint=error.hint) from None
        except ArtifactError as error:
            if self._fetched_again(task, fetchers):
                return False
            raise ArtifactError(f"{task.label} cannot be unpacked: {error.what}", where=error.where, hint=error.hint) from None
        return True

    def _fetched_again(self, task: _Task, fetchers: ThreadPoolExecutor) -> bool:
        """Fetch the blob of a tree that is damaged beside the spec, once. False when nobody has it."""
        if not isinstance(task.job, TreeJob) or task.again:
            return False
        digest = task.job.blob.sha256
        named = next((one for one in self._trees.named() if one[1].sha256 == digest), None)
        if named is None or self._givers.offer(digest) is None:
            return False
        task.again = True
        task.fetched = fetchers.submit(self._brought, *named, again=True)
        return True

    def _again(self, task: _Task, part: Part, error: ReproEnvError, fetchers: ThreadPoolExecutor) -> None:
        self._searches[part.wheel.key].failed(error)
        task.needed[part.wheel.key] = fetchers.submit(self._part, part.wheel, False)

    def _grouped(self) -> None:
        """The expected groups are those that the grouping rule makes of these artifacts. Raises `BuildError`."""
        whole = {one.kind for one in self._spec.expected.layers if one.diff_id in self._whole}
        check_groups(self._spec, self._known.sizes(), whole)

    def _there(self, diff_id: str) -> bool:
        return self._store.layers.path(diff_id) is not None


def _believe(place: Place, wheel: Artifact) -> Place:  # noqa: ARG001
    return place


def _cores() -> int:
    return len(os.sched_getaffinity(0))
