"""The loader of keyed samples. It is a separate module because it imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


class KeyedLoader(DataLoader):  # type: ignore[misc]
    """Has `state_dict` and `load_state_dict`, which Lightning requires to resume within an epoch."""

    _done = 0
    """Number of batches that this epoch has returned."""
    _skip = 0
    """Number of batches to skip in the next epoch."""

    def __iter__(self) -> Any:
        if self._skip:
            self.sampler.begin(self.sampler.epoch, self._skip * self.batch_size)
        self._done, self._skip = self._skip, 0
        return _Counted(self, super().__iter__())

    def state_dict(self) -> dict[str, int]:
        """Return the position. After the last batch this is the beginning of the next epoch."""
        epoch = self.sampler.epoch
        return {"epoch": epoch + 1, "batch": 0} if self._done >= len(self) else {"epoch": epoch, "batch": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.sampler.begin(state["epoch"])
        self._skip = state["batch"]


class _Counted:
    """An iterator that counts the batches of its loader."""

    def __init__(self, loader: KeyedLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._loader._done += 1  # noqa: SLF001 - its own iterator
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
