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
    if "python" in state:
        import random

        random.setstate(state["python"])
    if "numpy" in state:
        import numpy as np

        try:
            np.random.set_state(state["numpy"])
        except ValueError as error:
            raise CheckpointError(f"NumPy's global generator is of another kind now: {error}") from error
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


def state_of(part: Any, where: str) -> Any:
    """The state of anything that has one: a `state_dict`, or a generator's own. Raises `CheckpointError`."""
    if callable(getattr(part, "state_dict", None)):
        return part.state_dict()
    if callable(getattr(part, "getstate", None)):
        return part.getstate()
    if hasattr(part, "bit_generator"):
        return part.bit_generator.state
    if callable(getattr(part, "get_state", None)):
        return part.get_state()
    raise CheckpointError(
        f"a {type(part).__qualname__} has no state that could be kept",
        where=where,
        hint="give an object with state_dict() and load_state_dict(), or a random generator",
    )


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
