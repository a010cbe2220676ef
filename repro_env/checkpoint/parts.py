"""Save and load the parts of a training, such as models and optimizers, which the script passes by name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from repro_env.checkpoint import files, rng, values, weights
from repro_env.checkpoint.errors import CheckpointError
from repro_env.checkpoint.manifest import Opened

STATE = "state.pt"
"""File for everything that cannot be stored as safetensors, and for the script's own values."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHARDED = {
    "FullyShardedDataParallel": "FSDP",
    "DTensor": "FSDP or tensor parallelism",
    "DeepSpeedEngine": "DeepSpeed",
    "ZeroRedundancyOptimizer": "ZeRO",
}
"""By class name, so that these libraries need not be imported."""


def inner(part: Any) -> Any:
    """Return the module in the wrappers of DistributedDataParallel and torch.compile, whose names are those of the script."""
    while True:
        kind = type(part).__name__
        if kind in ("DistributedDataParallel", "DataParallel"):
            part = part.module
        elif kind == "OptimizedModule":
            part = part._orig_mod  # noqa: SLF001 - it has only this private name
        else:
            return part


def is_module(part: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.nn.Module)


def check(parts: Mapping[str, Any]) -> None:
    """Check that all parts can be saved. Raises `CheckpointError`.

    Sharded parts are not supported: the `state_dict` of a rank is incomplete, or waits for all ranks.
    """
    for name, part in parts.items():
        if not _NAME.fullmatch(name):
            hint = "use only letters, digits and _, and do not start with a digit"
            raise CheckpointError("this name of a part is invalid", where=name, hint=hint)
        if not rng.has_state(part):
            raise CheckpointError(
                f"a {type(part).__qualname__} has no state that can be saved",
                where=name,
                hint="pass an object with state_dict() and load_state_dict(), or a random generator",
            )
        for component in _components(part):
            method = _sharding(component)
            if method:
                raise CheckpointError(
                    f"this part is sharded over the ranks ({method}), but only complete states can be saved",
                    where=name,
                    hint="save it with torch.distributed.checkpoint, or train with DistributedDataParallel; checkpoint.load() "
                    "can load a model before it is sharded",
                )


def _components(part: Any) -> Iterator[Any]:
    """Yield the part and everything in it that may be sharded: modules, parameters, and the parameters of optimizers."""
    yield part
    if is_module(part):
        yield from part.modules()
        yield from part.parameters()
    for group in getattr(part, "param_groups", None) or ():
        if isinstance(group, dict):
            yield from group.get("params", ())


def _sharding(component: Any) -> str:
    """Return the method by which a component is sharded, or an empty string."""
    if getattr(component, "_is_flat_param", False):  # torch marks flat parameters with an attribute, not with a class
        return "FSDP"
    return next((_SHARDED[kind.__name__] for kind in type(component).__mro__ if kind.__name__ in _SHARDED), "")


def write(
    parts: Mapping[str, Any], own: Mapping[str, Any], directory: str, *, step: int
) -> tuple[dict[str, str], dict[str, files.File]]:
    """Write the files of all parts and of the script's `own` values to a directory. Raises `CheckpointError` or `OSError`.

    Returns the file of each part, and the content of each file.
    """
    import torch

    written: dict[str, files.File] = {}
    names: dict[str, str] = {}
    states: dict[str, Any] = {}
    for name, part in parts.items():
        state = rng.get_state(part)
        if is_module(part):
            tensors = {key: value for key, value in state.items() if weights.is_storable(value)}
            other_values = {key: value for key, value in state.items() if key not in tensors}
            names[name] = f"{name}.safetensors"
            written[names[name]] = files.write(os.path.join(directory, names[name]), weights.chunks(tensors, step=step))
            if other_values:
                states[name] = values.encode(other_values, name)
        else:
            names[name] = STATE
            states[name] = values.encode(state, name)
    with files.Writer(os.path.join(directory, STATE)) as file:
        torch.save({"parts": states, "values": values.encode(dict(own), "values")}, file)
    written[STATE] = file.content()
    return names, written


def load(opened: Opened, parts: Mapping[str, Any]) -> None:
    """Load the states of these parts from a checkpoint. Raises `CheckpointError` if a state is missing or does not fit."""
    check(parts)
    names = opened.facts["parts"]
    for name in parts:
        if name not in names:
            raise CheckpointError(
                f"this checkpoint has no part {name!r}; its parts are: {', '.join(sorted(names)) or 'none'}",
                where=opened.path,
                hint="use the same names; checkpoint.load() can load a subset of the parts",
            )
    states = values.load(opened, STATE, {"parts": dict})["parts"]
    # Weights first, because optimizers and schedulers may use them.
    for name in sorted(parts, key=lambda name: not is_module(parts[name])):
        part, file = parts[name], names[name]
        if is_module(part) != (file != STATE):
            is_now, was = ("a", "not a") if is_module(part) else ("not a", "a")
            raise CheckpointError(
                f"{name} is {is_now} module, but was {was} module in the checkpoint",
                where=opened.path,
                hint="pass the same parts as in the checkpoint",
            )
        try:
            if file == STATE:
                rng.set_state(part, states[name])
            else:
                tensors = weights.parse(opened.read(file), os.path.join(opened.path, file))
                part.load_state_dict({**tensors, **states.get(name, {})})
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"the state of {name} in this checkpoint does not fit: {error}",
                where=opened.path,
                hint="create this part as in the checkpoint, or start in another directory",
            ) from error


def buffers(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the buffers of each module, such as the running means of BatchNorm, which differ between ranks."""
    return {name: _buffers(part) for name, part in parts.items() if is_module(part)}


def _buffers(part: Any) -> dict[str, Any]:
    parameters = {name for name, _ in part.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in part.state_dict().items() if name not in parameters}
