"""Save the gradients that no optimizer has used yet, for checkpoints within a gradient accumulation.

Used gradients are not saved, because they are as large as the weights. A gradient counts as used if it existed when its
optimizer stepped and has not changed since: it is still the same tensor in the same version. All others are saved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from repro_env.checkpoint import parts as of_parts
from repro_env.checkpoint.errors import CheckpointError


class Gradients:
    """The gradients of the modules and optimizers in the parts of a training."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        self._used: dict[int, tuple[Any, int]] = {}
        """Parameter id -> a weak reference to the used gradient, and its version."""
        for part in parts.values():
            # accelerate wraps optimizers, and its wrapper does not step after each micro-batch.
            optimizer = getattr(part, "optimizer", part)
            register = getattr(optimizer, "register_step_post_hook", None)
            if hasattr(optimizer, "param_groups") and callable(register):
                with contextlib.suppress(AttributeError):  # a subclass that does not call its parent's __init__
                    register(self._record_step)

    def unused(self) -> dict[str, Any]:
        """Return the gradients that no optimizer has used, by the name of the parameter."""
        return {
            name: parameter.grad
            for name, parameter in self._parameters()
            if parameter.grad is not None and not self._is_used(parameter)
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `unused`, and remove all other gradients. Raises `CheckpointError` for a missing parameter."""
        parameters = dict(self._parameters())
        missing = sorted(set(state) - set(parameters))
        if missing:
            what = f"the checkpoint contains a gradient of {missing[0]}, which is not a parameter of the model"
            raise CheckpointError(what, where="resume", hint="use the same model and optimizer as in the checkpoint")
        for name, parameter in parameters.items():
            parameter.grad = state[name].to(parameter.device) if name in state else None

    def _record_step(self, optimizer: Any, *_: Any) -> None:
        try:
            from torch.utils.weak import TensorWeakRef
        except ImportError:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None:
                    self._used[id(parameter)] = (TensorWeakRef(gradient), gradient._version)  # noqa: SLF001 - autograd's own

    def _is_used(self, parameter: Any) -> bool:
        mark = self._used.get(id(parameter))
        return mark is not None and mark[0]() is parameter.grad and mark[1] == parameter.grad._version  # noqa: SLF001

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield each parameter once, with its name in a module, or otherwise with its index in an optimizer."""
        yielded: set[int] = set()
        for name, part in self._parts.items():
            for parameter_name, parameter in part.named_parameters() if of_parts.is_module(part) else ():
                if id(parameter) not in yielded:
                    yielded.add(id(parameter))
                    yield f"{name}.{parameter_name}", parameter
        for name, part in self._parts.items():
            groups = getattr(part, "param_groups", None) if not of_parts.is_module(part) else None
            parameters = [item for group in groups or () if isinstance(group, dict) for item in group.get("params", ())]
            for index, parameter in enumerate(parameters):
                if id(parameter) not in yielded:
                    yielded.add(id(parameter))
                    yield f"{name}[{index}]", parameter
