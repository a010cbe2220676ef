"""The loader of keyed samples. It is a separate module because it imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, Optional

from torch.utils.data import DataLoader


class Position(NamedTuple):
    """An epoch, and the number of its batches that were returned."""

    epoch: int
    batch: int


class KeyedLoader(DataLoader):  # type: ignore[misc]
    """Has `state_dict` and `load_state_dict`, which Lightning requires to resume within an epoch.

    A position that was loaded belongs to one epoch: the next iteration starts there if it is of this epoch, and at the first
    batch of its own epoch if not. The length is always that of a complete epoch.
    """

    _loaded: Optional[Position] = None
    """Where the next iteration starts, if it is of this epoch."""
    _position = Position(0, 0)
    """The position of the iteration that began last."""

    def __iter__(self) -> Any:
        return _Iteration(self)

    @property
    def _index_sampler(self) -> Any:
        return _Remaining(self, super()._index_sampler)

    def _begin(self) -> Iterator[Any]:
        """Start the iteration of the epoch that is set now."""
        epoch, loaded = self.sampler.epoch, self._loaded
        self._position, self._loaded = Position(epoch, loaded.batch if loaded and loaded.epoch == epoch else 0), None
        batches: Iterator[Any] = super().__iter__()
        return batches

    def state_dict(self) -> dict[str, int]:
        """Return the position. After the last batch this is the beginning of the next epoch."""
        epoch, position = self.sampler.epoch, self._loaded or self._position
        if position.epoch != epoch:
            position = Position(epoch, 0)
        return (position if position.batch < len(self) else Position(epoch + 1, 0))._asdict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the epoch, and the batch at which its next iteration starts."""
        self._loaded = Position(state["epoch"], state["batch"])
        self.sampler.set_epoch(state["epoch"])


class _Remaining:
    """The indices of the batches that were not returned before a position was loaded."""

    def __init__(self, loader: KeyedLoader, batches: Any) -> None:
        self._loader = loader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._batches), self._loader._position.batch, None)  # noqa: SLF001 - its own loader

    def __len__(self) -> int:
        return len(self._batches)


class _Iteration:
    """An iteration, which begins with its first batch: frameworks may set the epoch after they call `iter`."""

    def __init__(self, loader: KeyedLoader) -> None:
        self._loader = loader
        self._batches: Any = None
        self._position = Position(0, 0)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self._batches is None:
            self._batches = loader._begin()  # noqa: SLF001 - its own loader
            self._position = loader._position  # noqa: SLF001
        batch = next(self._batches)
        self._position = loader._position = self._position._replace(batch=self._position.batch + 1)  # noqa: SLF001
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
