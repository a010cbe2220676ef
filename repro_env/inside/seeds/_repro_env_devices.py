"""Which devices PyTorch has, asked so that no driver is started for it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def built_in(torch: Any) -> bool:
    """Whether this PyTorch was built for GPUs."""
    version = getattr(torch, "version", None)
    return bool(getattr(version, "cuda", None) or getattr(version, "hip", None))


def in_use(torch: Any) -> bool:
    """Whether this process computes on a GPU. Asking for its name would else start the driver."""
    return built_in(torch) and bool(torch.cuda.is_initialized())


def named(torch: Any, index: int) -> str:
    return f"cuda:{index} {torch.cuda.get_device_name(index)}"
