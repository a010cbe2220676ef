"""The processes of a distributed run, through `torch.distributed` where the script has started it; else there is one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from repro_env.checkpoint.errors import CheckpointError


def _distributed() -> Any:
    module: Any = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def rank() -> int:
    distributed = _distributed()
    return int(distributed.get_rank()) if distributed else 0


def size() -> int:
    """World size."""
    distributed = _distributed()
    return int(distributed.get_world_size()) if distributed else 1


def backend() -> str:
    """Empty for a run of one process."""
    distributed = _distributed()
    return str(distributed.get_backend()) if distributed else ""


def gather(value: Any) -> list[Any]:
    """Everyone's value, by rank, on rank 0; elsewhere an empty list."""
    distributed = _distributed()
    if not distributed:
        return [value]
    if rank():
        distributed.gather_object(value, None, dst=0)
        return []
    found: list[Any] = [None] * size()
    distributed.gather_object(value, found, dst=0)
    return found


def share(value: Any) -> Any:
    """Rank 0's value, on all."""
    distributed = _distributed()
    if not distributed:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def by_first(work: Callable[[], Any]) -> Any:
    """Rank 0 does it, for all: its result, or its error, on each of them."""
    found: Any = None
    if not rank():
        try:
            found = _Done(work())
        except Exception as error:
            if size() == 1:
                raise
            # Others may not be able to go between processes.
            found = (
                error
                if isinstance(error, CheckpointError)
                else CheckpointError(f"{type(error).__name__}: {error}", where="rank 0")
            )
    found = share(found)
    if isinstance(found, CheckpointError):
        raise found
    return found.value


class _Done(NamedTuple):
    value: Any


class Agreement:
    """One number that all ranks agree on at each step: the largest that any of them asks for."""

    def __init__(self) -> None:
        self._group: Any = None

    def __call__(self, wanted: int) -> int:
        distributed = _distributed()
        if not distributed or size() == 1:
            return wanted
        import torch

        if self._group is None and backend() != "gloo":
            # On the CPU: the step that runs on the GPU is not waited for.
            self._group = distributed.new_group(backend="gloo")
        box = torch.tensor([wanted])
        distributed.all_reduce(box, op=distributed.ReduceOp.MAX, group=self._group)
        return int(box.item())
