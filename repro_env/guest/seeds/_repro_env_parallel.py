"""How a distributed training splits its work: the strategy, the number of nodes, and the backward passes per optimizer step.

The classes of PyTorch report it, also if a library uses them. Installed when a process joins a process group.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

_STRATEGIES = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "DDP"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "FSDP"),
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup", "FSDP2"),
    ("torch.distributed._composable.fsdp._fsdp_param_group", "FSDPParamGroup", "FSDP2"),  # before torch 2.6
    ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer", "ZeRO"),
)
"""(module, class, name of the strategy): a program uses the strategy if it makes an object of the class."""
_NODES = ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES")
"""The variables with the number of nodes: of torchrun, which starts one agent on each, and of srun."""


class _State:
    is_installed = False
    in_backward = False
    backward = 0
    steps = 0
    strategies: dict[str, None] = {}  # noqa: RUF012


def install(torch: Any) -> None:
    """Watch the classes, and count. Call it again after a fork."""
    _State.strategies, _State.backward, _State.steps = {}, 0, 0
    if _State.is_installed:
        return
    _State.is_installed = True
    for module, name, strategy in _STRATEGIES:
        seeds.when_imported(module, _watch(name, strategy))
    optimizer = sys.modules.get("torch.optim.optimizer")
    if hasattr(optimizer, "register_optimizer_step_post_hook"):  # torch 2.0
        _count(torch, optimizer)


def facts() -> dict[str, Any]:
    """What is known now, for the report of the rank."""
    found: dict[str, Any] = {}
    for name in _NODES:
        if os.environ.get(name, "").isdigit():
            found.setdefault("nodes", int(os.environ[name]))
    if _State.strategies:
        found["strategy"] = ", ".join(sorted(_State.strategies))
    if _State.steps and _State.backward:
        found["accumulation"] = "%.4g" % (_State.backward / _State.steps)
    return found


def _watch(name: str, strategy: str) -> Any:
    from functools import wraps

    def hook(module: Any) -> None:
        kind = getattr(module, name, None)
        if kind is None:
            return
        plain = kind.__init__

        @wraps(plain)
        def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            _State.strategies[strategy] = None

        kind.__init__ = initialize

    return hook


def _count(torch: Any, optimizer: Any) -> None:
    """Count the calls of `backward` and of optimizers. In a compilation, the hooks do nothing, so the compiled code stays the same."""
    from functools import wraps

    compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or torch._utils.is_compiling
    plain = torch.autograd.backward

    @wraps(plain)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if compiling() or _State.in_backward:  # checkpointed activations call it again inside
            return plain(*args, **kwargs)
        _State.backward += 1
        _State.in_backward = True
        try:
            return plain(*args, **kwargs)
        finally:
            _State.in_backward = False

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        if not compiling():
            _State.steps += 1

    torch.autograd.backward = backward
    optimizer.register_optimizer_step_post_hook(after)
