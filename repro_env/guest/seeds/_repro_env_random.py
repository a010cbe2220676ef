"""Seed Python's `random`: its global generator, and each `random.Random` that is created without a seed."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
callers: Any = seeds.part("callers")
streams: Any = seeds.part("streams")

_MOST = 1000
"""The most generators of packages that are watched."""


class _State:
    module: Any = None
    """The module that has the hooks. The script may have its own module of that name."""
    own: Any = None
    """The state of the global generator as `_seed` set it; None if the script seeded it."""


_watched: list[tuple[Any, int, str, int]] = []
"""(weak reference, hash of the state, file, line) of each unseeded `random.Random` of a package."""


def hook(random: Any) -> None:
    """Replace `seed`, which the constructor of every generator calls."""
    from _weakref import ref

    plain = random.Random.seed

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        if a is not None:
            callers.note_seed("python", "random.seed" if self is random._inst else "random.Random", a)
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
                if self is random._inst or callers.is_users(frame) or len(_watched) >= _MOST:
                    callers.note_generator("python", what, frame.f_code.co_filename, frame.f_lineno)
                else:  # packages create generators that they never use
                    plain(self, a, version)
                    _watched.append((ref(self), hash(self.getstate()), frame.f_code.co_filename, frame.f_lineno))
                    return
        if self is random._inst:
            _State.own = None
        plain(self, a, version)

    seeds.copy_name(seed, plain, "random", "Random.seed")
    random.Random.seed = seed
    random.seed = random._inst.seed
    if hasattr(os, "register_at_fork"):
        # `random` reseeds itself after a fork. This function is registered later, so it runs later.
        os.register_at_fork(after_in_child=lambda: _after_fork(random))
    if random._urandom is not os.urandom:  # a .pth file of the environment imported it before the hooks
        random._urandom = os.urandom
    _State.module = random
    _seed(random)


def hook_tips(tips: Any) -> None:
    """Let IPython always show the same tip: a kernel draws one for each question of its clients, whose number depends on the time."""
    tips.pick_tip = lambda: "%history shows the input of this session"


def _after_fork(random: Any) -> None:
    with seeds.Attempt("fork"):
        _seed(random)


def _seed(random: Any) -> None:
    random._inst.seed(streams.stream("random", 256))
    _State.own = random.getstate()


def restart() -> None:
    """Forget the generators of the parent, which reports them itself."""
    _watched.clear()


def reseed(task: bool) -> None:
    """Seed the global generator again; for a task, only if the script has not seeded it. Python itself reseeds a forked child."""
    if _State.module is not None and (not task or _State.own is not None):
        _seed(_State.module)


def note_unseeded() -> None:
    """Report the unseeded generators from which the script drew."""
    if _State.own is not None and _State.module.getstate() != _State.own:
        callers.note_generator("python", "random, never seeded, imported", *seeds._imports["random"])
    for reference, state, file, line in _watched:
        generator = reference()
        if generator is None or hash(generator.getstate()) != state:
            callers.note_generator("python", "random.Random() without a seed", file, line)
