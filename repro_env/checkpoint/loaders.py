"""Save the position of a loader in its epoch, and restore it in a new process. There are three kinds of loaders:

- keyed: a loader of `checkpoint.loader`. The position is a number.
- stateful: a loader with `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader without workers.
- replayed: any other loader, and StatefulDataLoader with workers, whose generators it does not save. The generators are reset to their state at the beginning of the epoch, and the batches before
  the position are fetched again and discarded. This is exact even for random numbers in workers, but takes time.

In all cases the generators of the main process are restored afterwards, because `iter(loader)` draws from them.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Optional

from repro_env.checkpoint import rng
from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.keyed import Keyed, KeyedSampler


class TrackedLoader:
    """An iteration over a loader whose position can be saved."""

    def __init__(self, loader: Any, epoch: int) -> None:
        self.loader = loader
        self.epoch = epoch
        self.kind = _kind(loader)
        if (
            self.kind == "stateful"
            and getattr(loader, "num_workers", False)
            and not isinstance(getattr(loader, "dataset", None), Keyed)
        ):
            warnings.warn(
                "this loader saves its position, but not the random generators of its workers: if the dataset draws random "
                "numbers, a training that resumes in the middle of an epoch will differ; use checkpoint.loader() instead",
                CheckpointWarning,
                stacklevel=3,
            )
        self.iterator: Any = None
        """The loader's own iterator, which may have workers."""
        self._start: Any = None
        """The state of the generators at the beginning of the epoch; only for replayed loaders."""

    def facts(self) -> dict[str, Any]:
        """Return the properties of the loader that must be unchanged for a position to be valid."""
        loader, dataset = self.loader, getattr(self.loader, "dataset", None)
        try:
            length = len(dataset if dataset is not None else loader)
        except TypeError:
            length = None
        sampler = _keyed_sampler(loader) or getattr(loader, "sampler", None)
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
        """Start the iteration at the first batch."""
        self._prepare_sampler()
        if self.kind == "replayed":
            self._start = {"rng": rng.capture(), "generators": self._generators()}
        return self._iterate()

    def resume(self, state: Any, batch: int, generators: Any) -> Iterator[Any]:
        """Start the iteration after `batch` batches. `state` is the result of `state()`, `generators` the saved generators."""
        self._prepare_sampler()
        if self.kind == "keyed":
            iterator = self._skip(batch)
            # A generator starts at its first batch, and may draw from the global generators then, so that is fetched here.
            iterator = itertools.chain(list(itertools.islice(iterator, 1)), iterator)
        elif self.kind == "stateful":
            self.loader.load_state_dict(state["position"])
            iterator = self._iterate()
        else:
            self._start = state["start"]
            rng.restore(self._start["rng"])
            self._set_generators(self._start["generators"])
            iterator = self._iterate()
            skipped = sum(1 for _ in itertools.islice(iterator, batch))
            if skipped < batch:
                what = f"the loader has only {skipped} batches, but the checkpoint was written after batch {batch}"
                raise CheckpointError(what, where="batches()", hint="use the same loader as in the checkpoint")
        rng.restore(generators)
        self._set_generators(state["generators"])
        return iterator

    def state(self) -> dict[str, Any]:
        """Return the current position, between two batches."""
        state: dict[str, Any] = {"generators": self._generators()}
        if self.kind == "stateful":
            state["position"] = self.loader.state_dict()
        elif self.kind == "replayed":
            state["start"] = self._start
        return state

    def _skip(self, batch: int) -> Iterator[Any]:
        """Start the iteration of a keyed loader after `batch` batches."""
        name = f"{type(self.loader).__module__}.{type(self.loader).__name__}"
        if name == f"{__package__}.keyedloader.KeyedLoader":
            self.loader.load_state_dict({"epoch": self.epoch, "batch": batch})
        elif name == "accelerate.data_loader.DataLoaderShard":
            return self._iterate(sys.modules["accelerate"].skip_first_batches(self.loader, batch))
        else:  # these batches are fetched again: a batch sampler may make the last ones from the first
            return itertools.islice(self._iterate(), batch, None)
        return self._iterate()

    def _iterate(self, loader: Any = None) -> Iterator[Any]:
        """Start an iteration over the loader, or over a copy of it."""
        self.iterator = iter(self.loader if loader is None else loader)
        if self.iterator is self.loader:
            what = "this is an iterator, which can be iterated only once"
            raise CheckpointError(what, where="batches()", hint="pass a DataLoader or a list")
        iterator: Iterator[Any] = self.iterator
        return iterator

    def _prepare_sampler(self) -> None:
        """Set the epoch of the loader."""
        if hasattr(self.loader, "iteration") and type(self.loader).__module__.startswith("accelerate."):
            self.loader.iteration = self.epoch  # otherwise it calls set_epoch with its own count
        sampler = _keyed_sampler(self.loader)
        if sampler is not None:
            sampler.set_epoch(self.epoch)
            return
        dataset = getattr(self.loader, "dataset", None)
        if isinstance(dataset, Keyed):  # otherwise each epoch would draw the same numbers
            dataset.epoch = self.epoch
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(self.epoch)

    def _generators(self) -> list[Any]:
        return [generator.get_state() for generator in self._loader_generators()]

    def _set_generators(self, states: list[Any]) -> None:
        generators = self._loader_generators()
        if len(generators) != len(states):
            what = f"the loader has {len(generators)} generators, but had {len(states)} in the checkpoint"
            raise CheckpointError(what, where="batches()", hint="use the same loader as in the checkpoint")
        for generator, state in zip(generators, states):
            generator.set_state(state)

    def _loader_generators(self) -> list[Any]:
        """Return the generators that the script passed to the loader or its samplers."""
        loader, batches = self.loader, getattr(self.loader, "batch_sampler", None)
        owners = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
        generators = [getattr(owner, "generator", None) for owner in owners]
        unique = {id(generator): generator for generator in generators}
        return [generator for generator in unique.values() if hasattr(generator, "set_state")]


def _keyed_sampler(loader: Any) -> Optional[KeyedSampler]:
    """Return the `KeyedSampler` of a loader, which accelerate wraps in its own batch samplers; None for other samplers."""
    batches = getattr(loader, "batch_sampler", None)
    batches = getattr(batches, "batch_sampler", batches)
    for sampler in (getattr(loader, "sampler", None), getattr(batches, "sampler", None)):
        if isinstance(sampler, KeyedSampler):
            return sampler
    return None


def _kind(loader: Any) -> str:
    dataset = getattr(loader, "dataset", None)
    if _keyed_sampler(loader) is not None and isinstance(dataset, Keyed):
        return "keyed"
    if type(loader).__module__.startswith("accelerate."):
        raise CheckpointError(
            "loaders of accelerate cannot be resumed exactly, because they fetch a batch in advance",
            where="batches()",
            hint="create the loader with repro_env.checkpoint.accelerate.loader()",
        )
    if getattr(loader, "persistent_workers", False) and getattr(loader, "num_workers", 0):
        raise CheckpointError(
            "a loader with persistent workers cannot be resumed exactly, because their random generators cannot be saved",
            where="batches()",
            hint="use persistent_workers=False, or checkpoint.loader(), which supports them",
        )
    is_stateful = callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))
    is_torchdata = any(kind.__module__.startswith("torchdata.stateful_dataloader") for kind in type(loader).__mro__)
    loses_workers = is_torchdata and getattr(loader, "num_workers", False)
    return "stateful" if is_stateful and not loses_workers else "replayed"


def differences(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Return, as sentences, the changes of a loader's facts that make a saved position invalid."""
    ignored = {"workers"} if saved.get("kind") == "keyed" else set()
    return [
        f"{name} is {current.get(name)!r} but was {saved.get(name)!r}"
        for name in sorted({*saved, *current} - ignored)
        if saved.get(name) != current.get(name)
    ]
