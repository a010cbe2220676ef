"""Save and restore random generators: the global ones of this process, and those of the script."""

from __future__ import annotations

import sys
from typing import Any

from repro_env.checkpoint.errors import CheckpointError


def capture(*, cuda: bool = True) -> dict[str, Any]:
    """Return the state of the global generators of Python, NumPy, torch and CUDA, if they are imported and initialized."""
    state: dict[str, Any] = {}
    random, numpy, torch = (sys.modules.get(name) for name in ("random", "numpy.random", "torch"))
    if random is not None:
        state["python"] = random.getstate()
    if numpy is not None:
        state["numpy"] = numpy.get_state(legacy=False)
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if cuda and torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore the result of `capture`. Raises `CheckpointError` if the generators of this process are different."""
    try:
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
                devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
                if devices != len(state["cuda"]):
                    raise CheckpointError(
                        f"the checkpoint was written with {len(state['cuda'])} CUDA devices, but {devices} are visible",
                        where="resume",
                        hint="set CUDA_VISIBLE_DEVICES to the same number of devices",
                    )
                torch.cuda.set_rng_state_all(state["cuda"])
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
        raise CheckpointError(
            f"the state of the random generators does not fit: {error}",
            where="resume",
            hint="use the same versions of Python, NumPy and torch as in the checkpoint",
        ) from error


def has_state(part: Any) -> bool:
    """Whether `get_state` supports this part."""
    return hasattr(part, "bit_generator") or any(
        callable(getattr(part, name, None)) for name in ("state_dict", "getstate", "get_state")
    )


def get_state(part: Any) -> Any:
    """Return the state of a part: its `state_dict`, or the state of a random generator."""
    if callable(getattr(part, "state_dict", None)):
        return part.state_dict()
    if callable(getattr(part, "getstate", None)):
        return part.getstate()
    if hasattr(part, "bit_generator"):
        return part.bit_generator.state
    return part.get_state()


def set_state(part: Any, state: Any) -> None:
    """Restore the result of `get_state`."""
    if callable(getattr(part, "load_state_dict", None)):
        part.load_state_dict(state)
    elif callable(getattr(part, "setstate", None)):
        part.setstate(state)
    elif hasattr(part, "bit_generator"):
        part.bit_generator.state = state
    else:
        part.set_state(state)
