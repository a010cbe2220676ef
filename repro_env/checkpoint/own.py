"""What of a training one rank alone knows: one file of a checkpoint each."""

from __future__ import annotations

import io
from typing import Any, Optional

from repro_env.checkpoint import buckets, parts, ranks, rng, values
from repro_env.checkpoint.gradients import Gradients
from repro_env.checkpoint.loaders import Followed
from repro_env.checkpoint.manifest import Opened


def name(rank: int) -> str:
    return f"rank-{rank}.pt"


def pack(given: dict[str, Any], gradients: Gradients, followed: Optional[Followed]) -> bytes:
    """`given`: the parts as the script gave them. Raises `CheckpointError`."""
    import torch

    inside = {name: parts.inner(part) for name, part in given.items()}
    parts.check(inside)
    state = {
        "rng": rng.capture(),
        "loader": followed.state() if followed else None,
        "buffers": parts.buffers(inside) if ranks.size() > 1 else {},
        "gradients": gradients.waiting(),
        "buckets": buckets.arrangements(given),
    }
    box = io.BytesIO()
    torch.save(values.encode(state, f"the state of rank {ranks.rank()}"), box)
    return box.getvalue()


def unpack(opened: Opened) -> dict[str, Any]:
    """As it was packed by this rank; `buckets` is None where they were not kept. Raises `CheckpointError`."""
    state = values.load(opened, name(ranks.rank()), _KINDS)
    return {**state, "gradients": state.get("gradients") or {}, "buckets": state.get("buckets")}


_MAYBE = (dict, type(None))
_KINDS: dict[str, Any] = {"rng": dict, "loader": _MAYBE, "buffers": dict, "gradients": _MAYBE, "buckets": _MAYBE}
"""Gradients and buckets were not kept at first: None of them says so."""
