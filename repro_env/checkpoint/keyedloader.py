"""The loader of keyed samples. Apart from `keyed`, since it is of torch's own type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


class KeyedLoader(DataLoader):  # type: ignore[misc]
    """Has `state_dict` and `load_state_dict`, as Lightning wants it of a loader that can be resumed in an epoch."""

    _done = 0
    """Batches that were handed out in this epoch."""
    _skip = 0
    """Batches that the next epoch leaves out."""

    def __iter__(self) -> Any:
        if self._skip:
            self.sampler.begin(self.sampler.epoch, self._skip * self.batch_size)
        self._done, self._skip = self._skip, 0
        return _Counted(self, super().__iter__())

    def state_dict(self) -> dict[str, int]:
        """An epoch of which all was handed out is over: then it is the next one's beginning."""
        epoch = self.sampler.epoch
        return {"epoch": epoch + 1, "batch": 0} if self._done >= len(self) else {"epoch": epoch, "batch": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.sampler.begin(state["epoch"])
        self._skip = state["batch"]


class _Counted:
    def __init__(self, loader: KeyedLoader, rest: Iterator[Any]) -> None:
        self._loader = loader
        self._rest = rest

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._rest)
        self._loader._done += 1  # noqa: SLF001 - its own iterator
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)
