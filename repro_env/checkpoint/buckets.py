"""The order in which DistributedDataParallel sums gradients, and how a resumed process comes to the same one.

It puts gradients into buckets: at first by the order of the parameters, and before the second forward by the order in which
gradients were ready in the first backward. With more than two ranks, where a number lies in its bucket decides in which
order it is summed, and so its last bits. A new process would begin with the first arrangement again. So the order is kept,
and played once to the reducer with gradients of zero, before anything is trained: then it arranges its buckets as they were.
Whether it did is looked at; where it did not, or where playing would touch something of the script's own, a warning says so.
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


def arrangements(given: Mapping[str, Any]) -> dict[str, Any]:
    """By part, for those that DistributedDataParallel is around."""
    return {name: _arrangement(one) for name, one in _around(given).items()}


def expected(given: Mapping[str, Any], kept: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """What `arrange` has to reach, by part. `kept`: what `arrangements` gave, None where nothing did."""
    return {name: (kept or {}).get(name) for name in sorted({*(kept or {}), *_around(given)} & set(given))}


def arrange(given: Mapping[str, Any], waiting: Mapping[str, Any], agree: Callable[[int], int], *, last: bool) -> dict[str, Any]:
    """Bring buckets to where they were, on all ranks at once. Those that are still to come; none with `last`.

    `agree`: a number of this rank -> the largest of all. Warns of buckets that are not where they were then.
    """
    around, rest = _around(given), {}
    for name, was in waiting.items():
        if name in around:
            _rearrange(name, around[name], was, agree)
        elif last:
            _warn(name, "it is not there when training goes on")
        else:
            rest[name] = was
    return rest


def _around(given: Mapping[str, Any]) -> dict[str, Any]:
    """A script may name its module alone: then the wrapper is looked for among all objects. Two ranks have but one sum."""
    kind: Any = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if kind is None or ranks.size() < 3:
        return {}
    found = {name: part for name, part in given.items() if isinstance(part, kind)}
    bare = {id(inner(part)): name for name, part in given.items() if name not in found and is_module(part)}
    if bare:
        for one in [one for one in gc.get_objects() if issubclass(type(one), kind)]:
            name = bare.get(id(inner(one)))
            if name is not None:
                found[name] = one
    return {name: found[name] for name in sorted(found)}


def _arrangement(one: Any) -> Optional[dict[str, Any]]:
    """`order`: indices of parameters as their gradients were ready. `buckets`: those of each, once they were arranged anew.

    Both are empty before the first backward, and for buckets that never move. None where torch does not tell.
    """
    try:
        if _steady(one):
            return {"order": [], "buckets": ""}
        one.logger.set_runtime_stats_and_log()
        told = one._get_ddp_logging_data()  # noqa: SLF001 - documented for users, with this name
    except (AttributeError, RuntimeError):
        return None
    buckets = str(told.get("rebuilt_per_bucket_param_indices", ""))
    order = [int(word) for word in re.findall(r"\d+", buckets or str(told.get("prev_iteration_grad_ready_order_indices", "")))]
    return {"order": order, "buckets": buckets} if order or not told.get("iteration") else None


def _rearrange(name: str, one: Any, was: Optional[Mapping[str, Any]], agree: Callable[[int], int]) -> None:
    why = _cannot(one, was)
    # All of them or none: each bucket is summed over the ranks.
    mine = _WARN if why else _PLAY if was is not None and was["order"] else _NOTHING
    everyone = agree(mine)
    if everyone == mine == _NOTHING:
        return
    if was is None or everyone != _PLAY:
        _warn(name, why or "another rank cannot")
        return
    parameters, _ = one._build_params_for_reducer()  # noqa: SLF001 - the order that the indices are of
    before = [parameter.grad for parameter in parameters]
    _play(one, parameters, was["order"])
    for parameter, gradient in zip(parameters, before):
        parameter.grad = gradient
    now = _arrangement(one)
    right = now is not None and now["order"] == was["order"] and now["buckets"] == (was["buckets"] or now["buckets"])
    if agree(_PLAY if right else _WARN) != _PLAY:
        _warn(name, "it has arranged them in another way")


_PLAY, _NOTHING, _WARN = 0, 1, 2


def _play(one: Any, parameters: list[Any], order: list[int]) -> None:
    """One backward of zeros, in this order, and the arranging that would come before the next forward."""
    import torch

    one.reducer.prepare_for_forward()
    one.reducer.prepare_for_backward([])
    for index in order:
        torch.autograd.backward(parameters[index], torch.zeros_like(parameters[index]))
    if one.reducer._rebuild_buckets():  # noqa: SLF001 - what its forward calls
        one._has_rebuilt_buckets = True  # noqa: SLF001 - as its forward has it


def _steady(one: Any) -> bool:
    """Measured on gloo with three ranks: buckets stay where unused parameters are looked for."""
    return bool(one.find_unused_parameters and not getattr(one, "static_graph", False))


def _cannot(one: Any, was: Optional[Mapping[str, Any]]) -> str:
    """Why zeros cannot be played: what else they would touch, or what is not known here. Empty where they can."""
    if was is None:
        return "their order was not kept"
    if not was["order"]:
        return ""
    try:
        if getattr(one, "static_graph", False):
            return "with static_graph it counts the first backward"
        if getattr(one, "_use_python_reducer", False) or getattr(one, "_delay_all_reduce_params", None):
            return "it reduces in another way"
        if getattr(one, "mixed_precision", None) is not None:
            return "its own mixed precision is on"
        if _hooked(one):
            return "its communication hook may have a state"
        parameters, sparse = one._build_params_for_reducer()  # noqa: SLF001
        if any(sparse):
            return "there are sparse gradients"
        if sorted(was["order"]) != list(range(len(parameters))):
            return "the order that was kept is of other parameters"
        for parameter in parameters:
            if getattr(parameter, "_post_accumulate_grad_hooks", None) or getattr(parameter, "_backward_hooks", None):
                return "parameters have hooks of the script's own"
            if hasattr(parameter, "_in_backward_optimizers"):
                return "optimizers step in its backward"
        if not callable(one.reducer._rebuild_buckets):  # noqa: SLF001
            return "this torch has no such call"
    except (AttributeError, TypeError) as error:
        return f"this torch is another: {error}"
    return ""


def _hooked(one: Any) -> bool:
    """Whether a communication hook is there that may remember what it saw. Torch 2.0 has no list of them, and logs that there is one."""
    hooks = getattr(one, "_comm_hooks", None)
    if hooks is None:
        return bool(one._get_ddp_logging_data().get("comm_hook"))  # noqa: SLF001
    return any(state is not None and type(state).__name__ != "ProcessGroup" for _, state in hooks)


def _warn(name: str, why: str) -> None:
    warnings.warn(
        f"{name}: the buckets of DistributedDataParallel are not arranged as they were ({why}); with more than two ranks the "
        "order of a sum changes with them, and a resumed training differs in the last bits; "
        "find_unused_parameters=True keeps buckets as they are",
        CheckpointWarning,
        stacklevel=6,
    )
