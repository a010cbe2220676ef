"""Random generators: the global ones of this process, and those that a script holds itself."""

from __future__ import annotations

import sys
from typing import Any

from repro_env.checkpoint.errors import CheckpointError


def capture() -> dict[str, Any]:
    """The state of Python's, NumPy's, torch's and CUDA's own generators, as far as they were imported and started."""
    found: dict[str, Any] = {}
    random, numpy, torch = (_imported(name) for name in ("random", "numpy.random", "torch"))
    if random is not None:
        found["python"] = random.getstate()
    if numpy is not None:
        found["numpy"] = numpy.get_state(legacy=False)
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def restore(state: dict[str, Any]) -> None:
    """Put them back. Raises `CheckpointError` where the machine or the script has other generators now."""
    try:
        _restore(state)
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
        raise CheckpointError(
            f"are of another kind now: {error}",
            where="the random generators",
            hint="go on with the libraries that it was written with",
        ) from error


def _restore(state: dict[str, Any]) -> None:
    if "python" in state:
        import random

        random.setstate(state["python"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
        if "cuda" in state:
            here = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if here != len(state["cuda"]):
                raise CheckpointError(
                    f"was written with {len(state['cuda'])} CUDA devices, and here are {here}",
                    hint="CUDA_VISIBLE_DEVICES decides how many a process sees",
                )
            torch.cuda.set_rng_state_all(state["cuda"])


def pack(state: dict[str, Any]) -> dict[str, Any]:
    """What `capture` gave, with bytes for torch's tensor: between processes, tensors go through shared memory, a file each."""
    import ctypes

    if "torch" not in state:
        return state
    tensor = state["torch"].contiguous()
    return {**state, "torch": ctypes.string_at(tensor.data_ptr(), tensor.numel())}


def unpack(state: dict[str, Any]) -> dict[str, Any]:
    """What `pack` was given."""
    import torch

    return {**state, "torch": torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8)} if "torch" in state else state


def has_state(part: Any) -> bool:
    """Whether `state_of` gives something."""
    return hasattr(part, "bit_generator") or any(
        callable(getattr(part, name, None)) for name in ("state_dict", "getstate", "get_state")
    )


def state_of(part: Any) -> Any:
    """The state of anything that has one: a `state_dict`, or a generator's own."""
    if callable(getattr(part, "state_dict", None)):
        return part.state_dict()
    if callable(getattr(part, "getstate", None)):
        return part.getstate()
    if hasattr(part, "bit_generator"):
        return part.bit_generator.state
    return part.get_state()


def put_back(part: Any, state: Any) -> None:
    """What `state_of` gave, into the part."""
    if callable(getattr(part, "load_state_dict", None)):
        part.load_state_dict(state)
    elif callable(getattr(part, "setstate", None)):
        part.setstate(state)
    elif hasattr(part, "bit_generator"):
        part.bit_generator.state = state
    else:
        part.set_state(state)


def _imported(name: str) -> Any:
    return sys.modules.get(name)
