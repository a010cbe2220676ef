"""Seeds for Python's own `random`: its global generator, and each `random.Random` that is made without one."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
holes: Any = seeds.part("holes")
places: Any = seeds.part("places")
streams: Any = seeds.part("streams")

_MOST = 1000
"""Generators of packages that are kept an eye on."""


class _State:
    module: Any = None
    """The one whose hooks are in place; there may be another module of that name."""
    own: Any = None
    """State of the global generator as we set it; None when the script seeded it."""


_made: list[tuple[Any, int, str, int]] = []
"""(weak reference, hash of the state, file, line) of each unseeded `random.Random` of a package."""


def hook(random: Any) -> None:
    """Stand in for `seed`, which the constructor of every generator calls."""
    from _weakref import ref

    plain = random.Random.seed

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        """Initialize internal state from a seed."""
        if a is not None:
            holes.seeded("python", "random.seed" if self is random._inst else "random.Random", a)
        else:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename == random.__file__:
                frame = frame.f_back
            if frame is not None and frame.f_globals.get("__name__") == "tempfile":
                if seeds._IDS:
                    a = int.from_bytes(seeds.part("ids").draw(32), "big")
            elif frame is not None:
                what = "random.seed() without a seed" if self is random._inst else "random.Random() without a seed"
                a = streams.stream("random.Random", 256)
                if self is random._inst or places.is_users(frame) or len(_made) >= _MOST:
                    holes.hole("python", what, frame.f_code.co_filename, frame.f_lineno)
                else:  # packages make some that they never use
                    plain(self, a, version)
                    _made.append((ref(self), hash(self.getstate()), frame.f_code.co_filename, frame.f_lineno))
                    return
        if self is random._inst:
            _State.own = None
        plain(self, a, version)

    seed.__qualname__ = "Random.seed"
    seed.__module__ = "random"
    random.Random.seed = seed
    random.seed = random._inst.seed
    if hasattr(os, "register_at_fork"):
        # `random` has itself reseeded from the system after a fork; what is registered later runs later.
        os.register_at_fork(after_in_child=lambda: _after_fork(random))
    if random._urandom is not os.urandom:  # a .pth file of the environment imported it before us
        random._urandom = os.urandom
    _State.module = random
    _seed(random)


def _after_fork(random: Any) -> None:
    try:
        _seed(random)
    except Exception as error:
        seeds.problem("fork", error)


def _seed(random: Any) -> None:
    random._inst.seed(streams.stream("random", 256))
    _State.own = random.getstate()


def restart() -> None:
    """What the parent made is the parent's to note."""
    _made.clear()


def reseed(task: bool) -> None:
    """Also where the script seeded it, unless this is but another task: Python itself reseeds a forked child from the system."""
    if _State.module is not None and (not task or _State.own is not None):
        _seed(_State.module)


def unseeded() -> None:
    """Note what was drawn from without a seed of the script's."""
    if _State.own is not None and _State.module.getstate() != _State.own:
        holes.hole("python", "random, never seeded, imported", *seeds._first["random"])
    for one, state, file, line in _made:
        made = one()
        if made is None or hash(made.getstate()) != state:
            holes.hole("python", "random.Random() without a seed", file, line)
