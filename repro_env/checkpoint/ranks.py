"""Communicate with the other ranks if the script has initialized `torch.distributed`; otherwise there is a single rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from repro_env.checkpoint.errors import CheckpointError


def _distributed() -> Any:
    module: Any = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def rank() -> int:
    distributed = _distributed()
    return int(distributed.get_rank()) if distributed else 0


def size() -> int:
    """Return the world size."""
    distributed = _distributed()
    return int(distributed.get_world_size()) if distributed else 1


def backend() -> str:
    """Return the name of the backend, or an empty string if the run is not distributed."""
    distributed = _distributed()
    return str(distributed.get_backend()) if distributed else ""


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks on rank 0, and an empty list on other ranks."""
    distributed = _distributed()
    if not distributed:
        return [value]
    if rank():
        distributed.gather_object(value, None, dst=0)
        return []
    values: list[Any] = [None] * size()
    distributed.gather_object(value, values, dst=0)
    return values


def run_on_first(work: Callable[[], Any]) -> Any:
    """Call `work` on rank 0, and return its result or raise its error on all ranks."""
    result: Any = None
    if not rank():
        try:
            result = (work(),)
        except Exception as error:
            if size() == 1:
                raise
            # Other exceptions may not be picklable.
            result = (
                error
                if isinstance(error, CheckpointError)
                else CheckpointError(f"{type(error).__name__}: {error}", where="rank 0")
            )
    distributed = _distributed()
    if distributed:
        results = [result]
        distributed.broadcast_object_list(results, src=0)
        result = results[0]
    if isinstance(result, CheckpointError):
        raise result
    return result[0]


class Agreement:
    """Returns the largest of the numbers that the ranks pass to it in a step."""

    def __init__(self) -> None:
        self._group: Any = None

    def __call__(self, number: int) -> int:
        distributed = _distributed()
        if not distributed or size() == 1:
            return number
        import torch

        if self._group is None and backend() != "gloo":
            # gloo runs on the CPU, so that this does not wait for the step on the GPU.
            self._group = distributed.new_group(backend="gloo")
        tensor = torch.tensor([number])
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=self._group)
        return int(tensor.item())
