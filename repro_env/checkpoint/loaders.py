"""Where a loader is in its epoch, and how it gets there again in a new process. Three ways:

- keyed: the loader of `checkpoint.loader`. A number is enough.
- stateful: it has `state_dict` and `load_state_dict`, as torchdata's StatefulDataLoader, whose workers are helped to
  remember what they drew (`workers.py`).
- replayed: anything else. The generators go back to where they were when the epoch began, the batches before the
  position are fetched again and thrown away. Exact also for random numbers in workers, and costs that fetching.

In each way the main process' generators are put back afterwards: `iter(loader)` itself draws from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Optional

from repro_env.checkpoint import rng, workers
from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.keyed import Keyed, KeyedSampler


class Followed:
    """One pass over a loader, of which the position can be kept."""

    def __init__(self, loader: Any, epoch: int) -> None:
        self.loader = loader
        self.epoch = epoch
        self.kind = _kind(loader)
        if self.kind == "stateful" and _forgets(loader):
            if workers.can_remember(loader):
                workers.remember(loader)
            else:
                warnings.warn(
                    "this loader keeps its position, and not the random numbers of its workers: if the dataset draws any, a "
                    "training that goes on in the middle of an epoch differs; checkpoint.loader() has no such gap",
                    CheckpointWarning,
                    stacklevel=3,
                )
        self._start: Any = None
        """The generators when the epoch began; only where it may be replayed."""

    def facts(self) -> dict[str, Any]:
        """What has to be as it was for the position to mean the same."""
        loader, dataset = self.loader, getattr(self.loader, "dataset", None)
        try:
            length = len(dataset if dataset is not None else loader)
        except TypeError:
            length = None
        sampler = _keyed(loader) or getattr(loader, "sampler", None)
        facts = {
            "kind": self.kind,
            "workers": int(getattr(loader, "num_workers", 0)),
            "batch_size": getattr(loader, "batch_size", None)
            or getattr(getattr(loader, "batch_sampler", None), "batch_size", None),
            "length": length,
            "sampler": type(sampler).__name__ if sampler is not None else None,
        }
        if self.kind == "keyed":
            facts["seed"] = getattr(sampler, "seed", None)
        return facts

    def begin(self) -> Iterator[Any]:
        """From the first batch."""
        self._sampler(0)
        if self.kind == "replayed":
            self._start = {"rng": rng.capture(), "generators": self._generators()}
        return self._iterate()

    def go_on(self, state: Any, batch: int, now: Any) -> Iterator[Any]:
        """From after `batch` batches. `state` is what `state()` gave, `now` the generators at that moment."""
        if self.kind == "keyed":
            self._sampler(batch)
            iterator = self._iterate()
            # An iterator that is a generator has not begun before its first batch; keyed samples draw from nothing of ours.
            first = next(iterator, _NOTHING)
            iterator = _Ahead(iterator, first)
        elif self.kind == "stateful":
            self._sampler(0)
            self.loader.load_state_dict(state["position"])
            iterator = self._iterate()
        else:
            self._sampler(0)
            self._start = state["start"]
            rng.restore(self._start["rng"])
            self._set_generators(self._start["generators"])
            iterator = self._iterate()
            for skipped in range(batch):
                if next(iterator, _NOTHING) is _NOTHING:
                    raise CheckpointError(f"has {skipped} batches now, and {batch} were done", where="the loader")
        rng.restore(now)
        self._set_generators(state["generators"])
        return iterator

    def state(self) -> dict[str, Any]:
        """The position now, between two batches."""
        state: dict[str, Any] = {"generators": self._generators()}
        if self.kind == "stateful":
            state["position"] = self.loader.state_dict()
        elif self.kind == "replayed":
            state["start"] = self._start
        return state

    def _iterate(self) -> Iterator[Any]:
        iterator: Iterator[Any] = iter(self.loader)
        if iterator is self.loader:
            raise CheckpointError(
                "it can be gone through only once", where="the loader", hint="give batches() a DataLoader, or a list"
            )
        return iterator

    def _sampler(self, skip: int) -> None:
        """`skip`: batches of this rank."""
        if hasattr(self.loader, "iteration") and type(self.loader).__module__.startswith("accelerate."):
            self.loader.iteration = self.epoch  # it would call set_epoch with its own count
        sampler, batches = _keyed(self.loader), getattr(self.loader, "batch_sampler", None)
        if sampler is not None:
            # What accelerate has shared out over ranks goes through all of the sampler on each of them.
            shared = getattr(batches, "num_processes", 1)
            size = getattr(batches, "batch_size", None) or 1
            sampler.begin(self.epoch, skip * size * shared if self.kind == "keyed" else 0)
            return
        dataset = getattr(self.loader, "dataset", None)
        if isinstance(dataset, Keyed):  # else each epoch would draw the same
            dataset.epoch = self.epoch
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(self.epoch)

    def _generators(self) -> list[Any]:
        return [one.get_state() for one in self._own()]

    def _set_generators(self, states: list[Any]) -> None:
        own = self._own()
        if len(own) != len(states):
            raise CheckpointError(f"has {len(own)} generators of its own now, and had {len(states)}", where="the loader")
        for index, one in enumerate(own):
            one.set_state(states[index])

    def _own(self) -> list[Any]:
        """Generators that the script gave the loader or its samplers."""
        loader, batches = self.loader, getattr(self.loader, "batch_sampler", None)
        holders = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
        found = {id(one): one for one in (getattr(holder, "generator", None) for holder in holders) if one is not None}
        return [one for one in found.values() if hasattr(one, "set_state")]


_NOTHING = object()


class _Ahead:
    """An iterator of which the first is there already."""

    def __init__(self, rest: Iterator[Any], first: Any) -> None:
        self._rest = rest
        self._first = first

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        first, self._first = self._first, _NOTHING
        return next(self._rest) if first is _NOTHING else first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)


def _keyed(loader: Any) -> Optional[KeyedSampler]:
    """The sampler at the bottom, when it is ours: accelerate puts its own samplers of batches on top."""
    batches = getattr(loader, "batch_sampler", None)
    batches = getattr(batches, "batch_sampler", batches)
    for one in (getattr(loader, "sampler", None), getattr(batches, "sampler", None)):
        if isinstance(one, KeyedSampler):
            return one
    return None


def _kind(loader: Any) -> str:
    dataset = getattr(loader, "dataset", None)
    if _keyed(loader) is not None and isinstance(dataset, Keyed):
        return "keyed"
    if type(loader).__module__.startswith("accelerate."):
        raise CheckpointError(
            "accelerate's loaders are a batch ahead, and random numbers with them",
            where="the loader",
            hint="prepare a loader of repro_env.checkpoint.accelerate.loader()",
        )
    if getattr(loader, "persistent_workers", False) and getattr(loader, "num_workers", 0):
        raise CheckpointError(
            "persistent workers carry random numbers from epoch to epoch, where no checkpoint reaches them",
            where="the loader",
            hint="use persistent_workers=False, or checkpoint.loader(), where they do no harm",
        )
    if callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None)):
        return "stateful"
    return "replayed"


def _forgets(loader: Any) -> bool:
    """Whether random numbers in workers are no part of a stateful loader's state."""
    return bool(getattr(loader, "num_workers", 0)) and not isinstance(getattr(loader, "dataset", None), Keyed)


def differing(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What of the facts keeps a position from meaning the same, one sentence each."""
    free = {"workers"} if was.get("kind") == "keyed" else set()
    if was.get("kind") == "stateful" and not was.get("workers") and not now.get("workers"):
        free = {"workers"}
    return [
        f"{name} is {now.get(name)!r} and was {was.get(name)!r}"
        for name in sorted({*was, *now} - free)
        if was.get(name) != now.get(name)
    ]
