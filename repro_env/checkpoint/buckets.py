"""Save and restore the gradient buckets of DistributedDataParallel, which determine the order of its sums.

DistributedDataParallel first fills its buckets in the order of the parameters. Before the second forward pass it rebuilds
them in the order in which gradients became ready in the first backward pass. With more than two ranks, the position of a
number in its bucket determines the order of summation, and so its last bits. A resumed process would start with the first
arrangement again. For this reason a checkpoint contains the order, and a resumed process replays it: a backward pass with
zero gradients makes the reducer rebuild its buckets. A warning is issued if the buckets still differ, or if the replay would
have side effects on the script.
"""

from __future__ import annotations

import gc
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Optional

from repro_env.checkpoint import ranks
from repro_env.checkpoint.errors import CheckpointWarning
from repro_env.checkpoint.parts import inner, is_module


def arrangements(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrangement of buckets for each part that DistributedDataParallel wraps."""
    return {name: _arrangement(wrapper) for name, wrapper in _wrappers(parts).items()}


def expected(parts: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrangements to restore, by part: those `saved` in the checkpoint, or None for a part without one."""
    return {name: saved.get(name) for name in sorted({*saved, *_wrappers(parts)} & set(parts))}


def arrange(parts: Mapping[str, Any], pending: Mapping[str, Any], agree: Callable[[int], int], *, last: bool) -> dict[str, Any]:
    """Restore arrangements, on all ranks together, and return those of parts that are not wrapped yet.

    `agree` returns the largest of the numbers of all ranks. With `last`, the function does not wait for unwrapped parts. Warns
    about each arrangement that cannot be restored.
    """
    wrappers, unwrapped = _wrappers(parts), {}
    for name, saved in pending.items():
        if name in wrappers:
            _restore(name, wrappers[name], saved, agree)
        elif last:
            _warn(name, "DistributedDataParallel does not wrap this part when training resumes")
        else:
            unwrapped[name] = saved
    return unwrapped


def _wrappers(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the DistributedDataParallel of each part. If a part is the module itself, its wrapper is searched in all objects.

    With two ranks or fewer the result is empty, because the order of two summands does not matter.
    """
    kind: Any = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if kind is None or ranks.size() < 3:
        return {}
    wrappers = {name: part for name, part in parts.items() if isinstance(part, kind)}
    modules = {id(inner(part)): name for name, part in parts.items() if name not in wrappers and is_module(part)}
    if modules:
        for wrapper in [value for value in gc.get_objects() if issubclass(type(value), kind)]:
            name = modules.get(id(inner(wrapper)))
            if name is not None:
                wrappers[name] = wrapper
    return {name: wrappers[name] for name in sorted(wrappers)}


def _arrangement(wrapper: Any) -> Optional[dict[str, Any]]:
    """Return `order`, the parameter indices in the order of their gradients, and `buckets`, the indices in each rebuilt bucket.

    Both are empty before the first backward pass, and for buckets that are never rebuilt. None if torch does not report them.
    """
    try:
        if _is_fixed(wrapper):
            return {"order": [], "buckets": ""}
        wrapper.logger.set_runtime_stats_and_log()
        data = wrapper._get_ddp_logging_data()  # noqa: SLF001 - documented for users under this name
    except (AttributeError, RuntimeError):
        return None
    buckets = str(data.get("rebuilt_per_bucket_param_indices", ""))
    order = [int(word) for word in re.findall(r"\d+", buckets or str(data.get("prev_iteration_grad_ready_order_indices", "")))]
    return {"order": order, "buckets": buckets} if order or not data.get("iteration") else None


def _restore(name: str, wrapper: Any, saved: Optional[Mapping[str, Any]], agree: Callable[[int], int]) -> None:
    problem = _problem(wrapper, saved)
    # All ranks must do the same, because each bucket is summed over the ranks.
    own = _WARN if problem else _REPLAY if saved is not None and saved["order"] else _NOTHING
    agreed = agree(own)
    if agreed == own == _NOTHING:
        return
    if saved is None or agreed != _REPLAY:
        _warn(name, problem or "another rank cannot restore them")
        return
    parameters, _ = wrapper._build_params_for_reducer()  # noqa: SLF001 - the indices refer to this order
    gradients = [parameter.grad for parameter in parameters]
    _replay(wrapper, parameters, saved["order"])
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    current = _arrangement(wrapper)
    is_restored = (
        current is not None
        and current["order"] == saved["order"]
        and current["buckets"] == (saved["buckets"] or current["buckets"])
    )
    if agree(_REPLAY if is_restored else _WARN) != _REPLAY:
        _warn(name, "it rebuilt them differently")


_REPLAY, _NOTHING, _WARN = 0, 1, 2


def _replay(wrapper: Any, parameters: list[Any], order: list[int]) -> None:
    """Run a backward pass with zero gradients in this order, and rebuild the buckets as before the next forward pass."""
    import torch

    wrapper.reducer.prepare_for_forward()
    wrapper.reducer.prepare_for_backward([])
    for index in order:
        torch.autograd.backward(parameters[index], torch.zeros_like(parameters[index]))
    if wrapper.reducer._rebuild_buckets():  # noqa: SLF001 - called by its forward
        wrapper._has_rebuilt_buckets = True  # noqa: SLF001 - set by its forward


def _is_fixed(wrapper: Any) -> bool:
    """Whether the buckets are never rebuilt. Measured with gloo and three ranks: this depends on find_unused_parameters."""
    return bool(wrapper.find_unused_parameters and not getattr(wrapper, "static_graph", False))


def _problem(wrapper: Any, saved: Optional[Mapping[str, Any]]) -> str:
    """Return why the order cannot be replayed: side effects, or an unsupported configuration. Empty if it can be."""
    if saved is None:
        return "their order was not saved"
    if not saved["order"]:
        return ""
    try:
        if getattr(wrapper, "static_graph", False):
            return "with static_graph it counts backward passes"
        if getattr(wrapper, "_use_python_reducer", False) or getattr(wrapper, "_delay_all_reduce_params", None):
            return "it uses an unsupported method of reduction"
        if getattr(wrapper, "mixed_precision", None) is not None:
            return "its own mixed precision is enabled"
        if _has_stateful_hook(wrapper):
            return "its communication hook may have a state"
        parameters, sparse = wrapper._build_params_for_reducer()  # noqa: SLF001
        if any(sparse):
            return "it has sparse gradients"
        if sorted(saved["order"]) != list(range(len(parameters))):
            return "the saved order is for different parameters"
        for parameter in parameters:
            if getattr(parameter, "_post_accumulate_grad_hooks", None) or getattr(parameter, "_backward_hooks", None):
                return "the script registered hooks on parameters"
            if hasattr(parameter, "_in_backward_optimizers"):
                return "optimizers step during its backward pass"
        if not callable(wrapper.reducer._rebuild_buckets):  # noqa: SLF001
            return "this version of torch cannot rebuild them on request"
    except (AttributeError, TypeError) as error:
        return f"this version of torch is not supported: {error}"
    return ""


def _has_stateful_hook(wrapper: Any) -> bool:
    """Whether there is a communication hook that may have a state. Torch 2.0 reports only whether there is any hook."""
    hooks = getattr(wrapper, "_comm_hooks", None)
    if hooks is None:
        return bool(wrapper._get_ddp_logging_data().get("comm_hook"))  # noqa: SLF001
    return any(state is not None and type(state).__name__ != "ProcessGroup" for _, state in hooks)


def _warn(name: str, why: str) -> None:
    warnings.warn(
        f"{name}: the gradient buckets of DistributedDataParallel cannot be restored ({why}); with more than two ranks they "
        "affect the order of sums, so the resumed training will differ in the last bits; "
        "use find_unused_parameters=True to keep buckets fixed",
        CheckpointWarning,
        stacklevel=6,
    )
