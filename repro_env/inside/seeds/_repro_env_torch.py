"""Seeds for PyTorch: its default generators, and `seed()` of all others. One that nobody seeds has the same numbers anyway."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
holes: Any = seeds.part("holes")
places: Any = seeds.part("places")
streams: Any = seeds.part("streams")


class _State:
    own: Any = None
    """(seed, state) as we set them."""


def hook(torch: Any) -> None:
    """Seed it, and stand in for the functions that seed."""
    from functools import wraps

    _seed(torch)

    def stand_in(name: str, modules: tuple[Any, ...]) -> None:
        plain = getattr(modules[0], name)

        if name in ("seed", "seed_all"):
            manual = getattr(modules[0], name.replace("seed", "manual_seed"))
            manual = getattr(manual, "__wrapped__", manual)

            @wraps(plain)
            def ours() -> Any:
                value = streams.stream("torch.seed", 64)
                holes.hole("torch", f"{modules[0].__name__}.{name}() without a seed", *places.user_line())
                manual(value)
                return value if modules[0] is torch else None

        else:

            @wraps(plain)
            def ours(seed: Any) -> Any:
                holes.seeded("torch", f"{modules[0].__name__}.{name}", seed)
                return plain(seed)

        for module in modules:
            setattr(module, name, ours)

    for name in ("manual_seed", "seed"):
        stand_in(name, (torch, torch.random))
    for name in ("manual_seed", "manual_seed_all", "seed", "seed_all"):
        stand_in(name, (torch.cuda, torch.cuda.random))
    if hasattr(torch, "Generator"):
        _hook_generator(torch.Generator)


def _hook_generator(kind: Any) -> None:
    """`seed` of a generator is a method of a compiled type: that takes no attribute, the dictionary behind it does.

    Raises `AttributeError` where this interpreter or this PyTorch keeps its methods elsewhere.
    """
    from ctypes import py_object, pythonapi
    from functools import wraps
    from gc import get_referents

    plain = kind.seed
    methods = next((one for one in get_referents(kind.__dict__) if type(one) is dict and one.get("seed") is plain), None)
    if methods is None:
        raise AttributeError("methods of torch.Generator are kept elsewhere: its seed() is not covered")

    @wraps(plain)
    def seed(self: Any) -> int:
        value = streams.stream("torch.Generator.seed", 64)
        holes.hole("torch", "torch.Generator.seed() without a seed", *places.user_line())
        self.manual_seed(value)
        return int(value)

    methods["seed"] = seed  # which holds what was there: caches of the interpreter do not
    pythonapi.PyType_Modified(py_object(kind))


def _seed(torch: Any) -> None:
    seed = streams.stream("torch", 63)
    torch.manual_seed(seed)
    _State.own = (seed, torch.get_rng_state())


def _is_ours(torch: Any) -> bool:
    return _State.own is not None and torch.initial_seed() == _State.own[0]


def reseed(task: bool) -> None:  # noqa: ARG001
    """Only where the script left it unseeded."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and _is_ours(torch):
        _seed(torch)


def unseeded() -> None:
    """Note what was drawn from without a seed of the script's."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and _is_ours(torch) and not torch.equal(torch.get_rng_state(), _State.own[1]):
        holes.hole("torch", "default generator, never seeded, imported", *seeds._first["torch"])
