"""Gradients that no optimizer has used yet: those of an accumulation that a checkpoint falls into.

Kept only then, since most loops leave used ones behind, as large as the weights. Used is a gradient that was there when its
optimizer stepped, and has not changed since: the same tensor in the same version. What cannot be known to be used is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from repro_env.checkpoint import parts as of_parts
from repro_env.checkpoint.errors import CheckpointError


class Gradients:
    """Of the parameters of modules and optimizers among some parts."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        self._used: dict[int, tuple[Any, int]] = {}
        """Parameter's id -> the gradient, weakly held, and its version."""
        for part in parts.values():
            # accelerate wraps optimizers, and its wrapper steps only when it is time.
            optimizer = getattr(part, "optimizer", part)
            listen = getattr(optimizer, "register_step_post_hook", None)
            if hasattr(optimizer, "param_groups") and callable(listen):
                with contextlib.suppress(AttributeError):  # a subclass that has left out its parent's beginning
                    listen(self._stepped)

    def waiting(self) -> dict[str, Any]:
        """By the name of the parameter."""
        return {name: one.grad for name, one in self._parameters() if one.grad is not None and not self._is_used(one)}

    def put_back(self, state: Mapping[str, Any]) -> None:
        """What `waiting` gave; every other parameter has none then. Raises `CheckpointError` where one is gone."""
        there = dict(self._parameters())
        gone = sorted(set(state) - set(there))
        if gone:
            raise CheckpointError(f"a gradient of {gone[0]} was kept, and there is no such parameter now", where="resume")
        for name, parameter in there.items():
            parameter.grad = state[name].to(parameter.device) if name in state else None

    def _stepped(self, optimizer: Any, *_: Any) -> None:
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
        """Each once: under its name in a module, else under its place in an optimizer."""
        seen: set[int] = set()
        for name, part in self._parts.items():
            for own, parameter in part.named_parameters() if of_parts.is_module(part) else ():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{name}.{own}", parameter
        for name, part in self._parts.items():
            groups = getattr(part, "param_groups", None) if not of_parts.is_module(part) else None
            flat = [one for group in groups or () if isinstance(group, dict) for one in group.get("params", ())]
            for index, parameter in enumerate(flat):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{name}[{index}]", parameter
