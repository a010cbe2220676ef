"""Seed PyTorch's default generators. An unseeded `torch.Generator` has a fixed seed; its method `seed` cannot be replaced."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
callers: Any = seeds.part("callers")
streams: Any = seeds.part("streams")


class _State:
    own: Any = None
    """(seed, state) as `_seed` set them."""


def hook(torch: Any) -> None:
    """Seed PyTorch, and replace the functions that set a seed."""
    from functools import wraps

    _seed(torch)

    def replace(name: str, modules: tuple[Any, ...]) -> None:
        plain = getattr(modules[0], name)

        if name in ("seed", "seed_all"):
            manual = getattr(modules[0], name.replace("seed", "manual_seed"))
            manual = getattr(manual, "__wrapped__", manual)

            @wraps(plain)
            def replacement() -> Any:
                value = streams.stream("torch.seed", 64)
                callers.note_generator("torch", f"{modules[0].__name__}.{name}() without a seed", *callers.user_line())
                manual(value)
                return value if modules[0] is torch else None

        else:

            @wraps(plain)
            def replacement(seed: Any) -> Any:
                callers.note_seed("torch", f"{modules[0].__name__}.{name}", seed)
                return plain(seed)

        for module in modules:
            setattr(module, name, replacement)

    for name in ("manual_seed", "seed"):
        replace(name, (torch, torch.random))
    for name in ("manual_seed", "manual_seed_all", "seed", "seed_all"):
        replace(name, (torch.cuda, torch.cuda.random))


def _seed(torch: Any) -> None:
    seed = streams.stream("torch", 63)
    torch.manual_seed(seed)
    _State.own = (seed, torch.get_rng_state())


def _is_unseeded(torch: Any) -> bool:
    """Whether the script has not seeded the default generator."""
    return _State.own is not None and torch.initial_seed() == _State.own[0]


def reseed(task: bool) -> None:  # noqa: ARG001
    """Seed PyTorch again, unless the script seeded it."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and _is_unseeded(torch):
        _seed(torch)


def note_unseeded() -> None:
    """Report the default generator if the script drew from it without seeding it."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and _is_unseeded(torch) and not torch.equal(torch.get_rng_state(), _State.own[1]):
        callers.note_generator("torch", "default generator, never seeded, imported", *seeds._imports["torch"])
