"""The parts of a training: what a script has named, what of it goes into a checkpoint, and how it comes back."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from repro_env.checkpoint import files, rng, values, weights
from repro_env.checkpoint.errors import CheckpointError
from repro_env.checkpoint.manifest import Opened

STATE = "state.pt"
"""What is no plain weight, and the script's own values."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHARDED = {
    "FullyShardedDataParallel": "FSDP",
    "DTensor": "FSDP or tensor parallelism",
    "DeepSpeedEngine": "DeepSpeed",
    "ZeroRedundancyOptimizer": "ZeRO",
}
"""By name: none of them is imported where it is not used."""


class Written(NamedTuple):
    holds: dict[str, str]
    """Part -> the file that it is in."""
    files: dict[str, files.File]

    def facts(self) -> dict[str, Any]:
        """Of the manifest."""
        return {
            "parts": self.holds,
            "files": {name: {"sha256": file.sha256, "size": file.size} for name, file in self.files.items()},
        }


def inner(part: Any) -> Any:
    """The module in what DistributedDataParallel or torch.compile made of it: its names are those of the script's own."""
    while True:
        kind = type(part).__name__
        if kind in ("DistributedDataParallel", "DataParallel"):
            part = part.module
        elif kind == "OptimizedModule":
            part = part._orig_mod  # noqa: SLF001 - it has no other name
        else:
            return part


def is_module(part: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.nn.Module)


def check(parts: Mapping[str, Any]) -> None:
    """Say at once what cannot be kept. Raises `CheckpointError`.

    Of a sharded part a rank's `state_dict` is a piece, or a call that waits for all ranks: neither makes a checkpoint.
    """
    for name, part in parts.items():
        if not _NAME.fullmatch(name):
            raise CheckpointError("is no name for a part", where=name, hint="letters, digits and _")
        if not rng.has_state(part):
            raise CheckpointError(
                f"a {type(part).__qualname__} has no state that could be kept",
                where=name,
                hint="give an object with state_dict() and load_state_dict(), or a random generator",
            )
        for one in _looked_at(part):
            by = _sharded(one)
            if by:
                raise CheckpointError(
                    f"is sharded over the ranks ({by}), and a checkpoint here holds whole states only",
                    where=name,
                    hint="keep it with torch.distributed.checkpoint, or train with DistributedDataParallel; checkpoint.load() "
                    "fills a model before it is sharded",
                )


def _looked_at(part: Any) -> Iterator[Any]:
    """The part itself, and what in it may be a shard: modules, parameters, what an optimizer steps."""
    yield part
    if is_module(part):
        yield from part.modules()
        yield from part.parameters()
    for group in getattr(part, "param_groups", None) or ():
        if isinstance(group, dict):
            yield from group.get("params", ())


def _sharded(one: Any) -> str:
    """By what; empty for what is whole."""
    if getattr(one, "_is_flat_param", False):  # torch marks these by an attribute: their type is a plain Parameter's
        return "FSDP"
    return next((_SHARDED[kind.__name__] for kind in type(one).__mro__ if kind.__name__ in _SHARDED), "")


def write(parts: Mapping[str, Any], own: Mapping[str, Any], folder: str, *, step: int) -> Written:
    """Files of all parts and of the script's `own` values, into a folder. Raises `CheckpointError`, `OSError`."""
    import torch

    written: dict[str, files.File] = {}
    holds: dict[str, str] = {}
    rest: dict[str, Any] = {}
    for name, part in parts.items():
        state = rng.state_of(part)
        if is_module(part):
            plain = {key: value for key, value in state.items() if weights.storable(value)}
            odd = {key: value for key, value in state.items() if key not in plain}
            holds[name] = f"{name}.safetensors"
            written[holds[name]] = files.write(os.path.join(folder, holds[name]), weights.chunks(plain, step=step))
            if odd:
                rest[name] = values.encode(odd, name)
        else:
            holds[name] = STATE
            rest[name] = values.encode(state, name)
    file = files.Writer(os.path.join(folder, STATE))
    try:
        torch.save({"parts": rest, "values": values.encode(dict(own), "values")}, file)
    except BaseException:
        file.give_up()
        raise
    written[STATE] = file.finish()
    return Written(holds, written)


def fill(opened: Opened, parts: Mapping[str, Any]) -> None:
    """Put the states of a checkpoint into these parts. Raises `CheckpointError` where one is missing or does not fit."""
    check(parts)
    holds = opened.facts["parts"]
    for name in parts:
        if name not in holds:
            raise CheckpointError(
                f"holds no part {name!r}, only {', '.join(sorted(holds)) or 'none'}",
                where=opened.path,
                hint="name the parts as they were; checkpoint.load() fills some of them",
            )
    rest = values.load(opened, STATE, {"parts": dict})["parts"]
    # Weights first: optimizers and schedulers may look at them.
    for name in sorted(parts, key=lambda name: not is_module(parts[name])):
        part, file = parts[name], holds[name]
        if is_module(part) != (file != STATE):
            raise CheckpointError(
                f"{name} is of another kind now",
                where=opened.path,
                hint="it was a module there, and is none here, or the other way round",
            )
        try:
            if file == STATE:
                rng.put_back(part, rest[name])
            else:
                tensors = weights.parse(opened.read(file), os.path.join(opened.path, file))
                part.load_state_dict({**tensors, **rest.get(name, {})})
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"does not fit {name} as it is now: {error}",
                where=opened.path,
                hint="build it as it was, or begin in another folder",
            ) from error


def buffers(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each module what is no weight: ranks keep their own, such as the running means of BatchNorm."""
    return {name: _buffers(part) for name, part in parts.items() if is_module(part)}


def _buffers(part: Any) -> dict[str, Any]:
    named = {name for name, _ in part.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in part.state_dict().items() if name not in named}
