"""Seed NumPy: its global generator, and all generators that take entropy from the operating system.

The hooks replace functions that NumPy's compiled code looks up by name. If a version of NumPy lacks one, that is reported.
"""

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
    """The state of the global generator as `_seed` set it; None if the script seeded it."""
    entropy: Any = None
    """The last value that NumPy got instead of entropy from the operating system."""


_drawn: dict[tuple[str, int], int] = {}
"""(file, line) -> number of generators created there with entropy and not seeded since."""


def hook_bits(bit_generator: Any) -> None:
    """Replace `randbits`, from which every unseeded SeedSequence, and so every unseeded generator, takes its entropy."""
    if _is_hooked(getattr(bit_generator, "randbits", None)):
        return
    if not hasattr(bit_generator, "randbits"):
        raise AttributeError("this version of NumPy has no `randbits`: unseeded generators get entropy from the operating system")

    def randbits(bits: int) -> int:
        frame: Any = sys._getframe(1)  # the caller of NumPy's compiled code, which has no frame
        generator = frame.f_locals.get("self") if frame.f_code.co_filename == __file__ else None
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        file, line = frame.f_code.co_filename, frame.f_lineno
        if file.startswith("<frozen ") or file.endswith("/numpy/random/_pickle.py"):  # it sets the state next
            _State.entropy = streams.stream("numpy import", bits)
            return int(_State.entropy)
        if hasattr(generator, "drawn_at"):
            generator.drawn_at = (file, line)  # type: ignore[union-attr]
            _drawn[file, line] = _drawn.get((file, line), 0) + 1
        else:
            callers.note_generator("numpy", "generator without a seed", file, line)
        _State.entropy = streams.stream("numpy", bits)
        return int(_State.entropy)

    bit_generator.randbits = randbits
    _hook_entropy(bit_generator)


def _is_hooked(function: Any) -> bool:
    """Whether a function is already replaced: `importlib.reload` does not reset a compiled module."""
    return getattr(getattr(function, "__code__", None), "co_filename", "") == __file__


def _hook_entropy(bit_generator: Any) -> None:
    """Report the seeds of SeedSequences, each of which calls this function first for its entropy and then for its spawn key."""
    plain = bit_generator._coerce_to_uint32_array
    before_spawn_key: set[int] = set()
    """Threads whose next call is for the spawn key."""
    active: set[int] = set()
    from _thread import get_ident

    def coerce(x: Any) -> Any:
        thread = get_ident()
        if thread in active:  # a recursive call for an item of a list
            return plain(x)
        is_entropy = thread not in before_spawn_key
        (before_spawn_key.add if is_entropy else before_spawn_key.discard)(thread)
        if is_entropy and x is not _State.entropy:
            callers.note_seed("numpy", "numpy.random.SeedSequence", x)
        active.add(thread)
        try:
            return plain(x)
        except BaseException:
            before_spawn_key.discard(thread)
            raise
        finally:
            active.discard(thread)

    bit_generator._coerce_to_uint32_array = coerce


def hook_legacy(mtrand: Any) -> None:
    """Seed the global generator, and report seeds of RandomState.

    `RandomState(seed)` first draws entropy, and then discards it and uses the seed. The replaced bit generator observes both.
    """
    if _is_hooked(mtrand.seed):
        return
    _seed(mtrand)
    plain, real = mtrand.seed, mtrand._MT19937

    class SameInstances(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

    class MT19937(real, metaclass=SameInstances):  # type: ignore[misc, valid-type]
        drawn_at: Any = None

        def __init__(self, seed: Any = None) -> None:
            real.__init__(self, seed)

        def _legacy_seeding(self, seed: Any) -> Any:
            if seed is not None:
                if self.drawn_at is not None:
                    _drawn[self.drawn_at] -= 1
                    self.drawn_at = None
                callers.note_seed("numpy", "numpy.random.RandomState", seed)
            return real._legacy_seeding(self, seed)

        def __reduce__(self) -> Any:  # a pickle contains NumPy's class or its name
            function, (kind, *arguments), *state = real.__reduce__(self)
            return (function, (kind if isinstance(kind, str) else real, *arguments), *state)

    def seed(seed: Any = None) -> None:
        if seed is not None:
            callers.note_seed("numpy", "numpy.random.seed", seed)
        plain(seed)
        _State.own = None

    seeds.copy_name(seed, plain, "numpy.random", "seed")
    MT19937.__module__, MT19937.__qualname__ = real.__module__, real.__qualname__
    mtrand._MT19937 = MT19937
    mtrand.seed = seed


def _seed(mtrand: Any) -> None:
    mtrand._rand.seed(streams.stream("numpy global", 32))
    _State.own = _state(mtrand)


def _state(mtrand: Any) -> Any:
    name, key, *position = mtrand._rand.get_state()
    return (name, key.tobytes(), *position)


def _unseeded_module() -> Any:
    """The module of the global generator, if its hook has run and the script has not seeded it. Setting its state is not seeding."""
    return sys.modules.get("numpy.random.mtrand") if _State.own is not None else None


def restart() -> None:
    """Forget the generators of the parent, which reports them itself."""
    _drawn.clear()


def reseed(task: bool) -> None:  # noqa: ARG001
    """Seed the global generator again, unless the script seeded it."""
    mtrand = _unseeded_module()
    if mtrand is not None:
        _seed(mtrand)


def note_unseeded() -> None:
    """Report the unseeded generators from which the script drew."""
    mtrand = _unseeded_module()
    if mtrand is not None and _state(mtrand) != _State.own:
        callers.note_generator("numpy", "global generator, never seeded, imported", *seeds._imports["numpy.random.mtrand"])
    for place, count in _drawn.items():
        if count > 0:
            callers.note_generator("numpy", "generator without a seed", *place)
