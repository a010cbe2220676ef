"""Seeds for NumPy: its global generator, and whatever asks the system for entropy.

Functions that its compiled code looks up by their names are stood in for; where a NumPy lacks one, a note says so.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
holes: Any = seeds.part("holes")
streams: Any = seeds.part("streams")


class _State:
    own: Any = None
    """(SeedSequence of the global generator, None before NumPy 1.24; its state) as we set them; None when the script seeded it."""
    entropy: Any = None
    """What NumPy last got from us instead of the system's entropy."""


_drawn: dict[tuple[str, int], int] = {}
"""(file, line) -> generators made there for which NumPy asked for entropy, and that have got no seed since."""


def hook_bits(bit_generator: Any) -> None:
    """Every unseeded SeedSequence, and so every unseeded generator, asks this module's `randbits` for entropy."""
    if _is_hooked(getattr(bit_generator, "randbits", None)):
        return
    if not hasattr(bit_generator, "randbits"):
        raise AttributeError("this NumPy takes its entropy elsewhere: generators without a seed are not covered")

    def randbits(bits: int) -> int:
        frame: Any = sys._getframe(1)  # compiled code has no frame: this is who called NumPy
        made = frame.f_locals.get("self") if frame.f_code.co_filename == __file__ else None
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        file, line = frame.f_code.co_filename, frame.f_lineno
        if file.startswith("<frozen ") or file.endswith("/numpy/random/_pickle.py"):  # which gives it a state next
            _State.entropy = streams.stream("numpy import", bits)
            return int(_State.entropy)
        if hasattr(made, "drawn_at"):
            made.drawn_at = (file, line)  # type: ignore[union-attr]
            _drawn[file, line] = _drawn.get((file, line), 0) + 1
        else:
            holes.hole("numpy", "generator without a seed", file, line)
        _State.entropy = streams.stream("numpy", bits)
        return int(_State.entropy)

    bit_generator.randbits = randbits
    _hook_entropy(bit_generator)


def _is_hooked(function: Any) -> bool:
    """Whether it is ours: `importlib.reload` leaves a compiled module as it was."""
    return getattr(getattr(function, "__code__", None), "co_filename", "") == __file__


def _hook_entropy(bit_generator: Any) -> None:
    """Every SeedSequence turns its entropy, then its spawn key into words by this function; what is a seed passes here."""
    plain = bit_generator._coerce_to_uint32_array
    second: set[int] = set()
    """Threads whose next call is for the spawn key."""
    within: set[int] = set()
    from _thread import get_ident

    def coerce(x: Any) -> Any:
        thread = get_ident()
        if thread in within:  # a list is taken apart
            return plain(x)
        entropy = thread not in second
        (second.add if entropy else second.discard)(thread)
        if entropy and x is not _State.entropy:
            holes.seeded("numpy", "numpy.random.SeedSequence", x)
        within.add(thread)
        try:
            return plain(x)
        except BaseException:
            second.discard(thread)
            raise
        finally:
            within.discard(thread)

    bit_generator._coerce_to_uint32_array = coerce


def hook_legacy(mtrand: Any) -> None:
    """`RandomState(seed)` draws entropy, throws it away and seeds: told apart by a bit generator that sees both."""
    if _is_hooked(mtrand.seed):
        return
    _seed(mtrand)
    plain, real = mtrand.seed, mtrand._MT19937

    class Same(type):
        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, real)

    class MT19937(real, metaclass=Same):  # type: ignore[misc, valid-type]
        drawn_at: Any = None

        def __init__(self, seed: Any = None) -> None:
            real.__init__(self, seed)

        def _legacy_seeding(self, seed: Any) -> Any:
            if seed is not None:
                if self.drawn_at is not None:
                    _drawn[self.drawn_at] -= 1
                    self.drawn_at = None
                holes.seeded("numpy", "numpy.random.RandomState", seed)
            return real._legacy_seeding(self, seed)

        def __reduce__(self) -> Any:  # what is pickled has NumPy's own class, by its name or as it is
            make, (which, *rest), *state = real.__reduce__(self)
            return (make, (which if isinstance(which, str) else real, *rest), *state)

    def seed(seed: Any = None) -> None:
        if seed is not None:
            holes.seeded("numpy", "numpy.random.seed", seed)
        plain(seed)
        _State.own = None

    seed.__doc__ = plain.__doc__
    seed.__module__ = "numpy.random"
    seed.__qualname__ = "seed"
    MT19937.__module__, MT19937.__qualname__ = real.__module__, real.__qualname__
    mtrand._MT19937 = MT19937
    mtrand.seed = seed


def _seed(mtrand: Any) -> None:
    sequence = None
    if hasattr(mtrand, "set_bit_generator"):
        sequence = sys.modules["numpy.random.bit_generator"].SeedSequence(streams.stream("numpy global", 128))
        mtrand.set_bit_generator(sys.modules["numpy.random._mt19937"].MT19937(sequence))
    else:
        mtrand._rand.seed(streams.stream("numpy global", 32))
    _State.own = (sequence, _state(mtrand))


def _state(mtrand: Any) -> Any:
    name, key, *rest = mtrand._rand.get_state()
    return (name, key.tobytes(), *rest)


def _is_ours(mtrand: Any) -> bool:
    """Whether the script left the global generator unseeded. A state that it set is no seed."""
    if _State.own is None:
        return False
    bits = getattr(mtrand._rand, "_bit_generator", None)
    return _State.own[0] is None or _State.own[0] is (getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None))


def _module() -> Any:
    """Where the global generator is, if it was imported past our hooks."""
    return sys.modules.get("numpy.random.mtrand") if "numpy.random.mtrand" in seeds._first else None


def restart() -> None:
    """What the parent made is the parent's to note."""
    _drawn.clear()


def reseed(task: bool) -> None:  # noqa: ARG001
    """Only where the script left it unseeded."""
    mtrand = _module()
    if mtrand is not None and _is_ours(mtrand):
        _seed(mtrand)


def unseeded() -> None:
    """Note what was drawn from without a seed of the script's."""
    mtrand = _module()
    if mtrand is not None and _is_ours(mtrand) and _state(mtrand) != _State.own[1]:
        holes.hole("numpy", "global generator, never seeded, imported", *seeds._first["numpy.random.mtrand"])
    for place, count in _drawn.items():
        if count > 0:
            holes.hole("numpy", "generator without a seed", *place)
