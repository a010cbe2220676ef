"""Counts what a script takes from the operating system's randomness, and notes digests of the ids among it.

`os.urandom`, `os.getrandom`, `secrets`, `random.SystemRandom`, `uuid.uuid4` and its kin end in the first two;
`uuid.uuid1` is counted by itself. A note is {"entropy": what, "count", "file", "line"} with the user's line; the counts
of all notes of a line add up. One is written when a line has been there once, twice, four times and so on, and at the
end of the process: what a killed process noted is at least half. With `exec --ids seeded` the script gets bytes of the seed,
and the count is 0. What the standard library takes for itself (keys of its processes) is neither counted nor replaced.

A draw of 16 to 64 bytes may be an id. Those of a note are in "ids", a word each in the order of the draws, with the process
("pid", and "worker", which sorts processes in the same way each time); "more" says that not all are there. A word is a
digest (`model.evidence`), since an id may be a secret. Fewer bytes could be found by trying, so there is no digest of them;
of the first 8 digits there is one after a dot only for a UUID, which is a name.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
notes: Any = seeds.part("notes")
places: Any = seeds.part("places")
streams: Any = seeds.part("streams")

_LIBRARY = os.path.dirname(os.__file__) + "/"
_DOORS = {_LIBRARY + name + ".py": name for name in ("random", "secrets", "uuid")}
_PLACES = 1000
_MOST = 10_000
"""Ids that a process notes."""
_FULL = 1 << 20
"""Bytes of the notes file: beyond them no ids are added, so that there is room for all other facts."""


class _Draws:
    """Draws at one line: their number, the number already noted, and ids not noted yet."""

    __slots__ = ("count", "ids", "noted")

    def __init__(self) -> None:
        self.count = self.noted = 0
        self.ids: list[str] = []


_draws: dict[tuple[str, str, int], _Draws] = {}
"""By (what, file, line)."""


class _State:
    ids = 0
    """How many there were in this process."""
    worker = streams.own_rank() + repr(seeds._State.worker)


def hook_uuid(uuid: Any) -> None:
    """Wrap `uuid1`, which does not call `os.urandom`, and `getnode`, which is random without a network card."""
    if seeds._IDS:
        uuid._node = int.from_bytes(seeds.part("ids").draw(6), "big") | 1 << 40
    plain = uuid.uuid1

    def uuid1(node: Any = None, clock_seq: Any = None) -> Any:
        made = plain(node, clock_seq)

        def form(value: bytes) -> bytes:
            number = int.from_bytes(value, "big") | 1 << 40  # a random node, not a network card's
            if node is not None:
                number = number >> 48 << 48 | node
            if clock_seq is not None:
                number = number & ~(0x3FFF << 48) | (clock_seq & 0x3FFF) << 48
            result: bytes = uuid.UUID(int=number, version=1).bytes
            return result

        try:
            value = draw("uuid.uuid1", sys._getframe(1), made.bytes, form)
            return made if value == made.bytes else uuid.UUID(bytes=value)
        except Exception as error:
            seeds.problem("uuid.uuid1", error)
        return made

    uuid1.__qualname__ = "uuid1"
    uuid1.__module__ = "uuid"
    uuid1.__doc__ = plain.__doc__
    uuid.uuid1 = uuid1


def draw(what: str, frame: FrameType | None, value: bytes, form: Callable[[bytes], bytes] = bytes) -> bytes:
    """Count one call of `what` by `frame`, for which the system returned `value`. Return the bytes for the caller.

    `form` turns random bytes into the form of the value.
    """
    while frame is not None and frame.f_code.co_filename in _DOORS:
        door = _DOORS[frame.f_code.co_filename]
        what = "random.SystemRandom" if door == "random" else f"{door}.{frame.f_code.co_name}"
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    if file.startswith("<frozen ") or places.is_standard(file):
        return value
    if seeds._IDS:
        value = form(seeds.part("ids").draw(len(value)))
    place = (what, *places.user_line())
    draws = _draws.get(place)
    if draws is None:
        if len(_draws) >= _PLACES:
            return value
        draws = _draws.setdefault(place, _Draws())  # a second thread may have added it
    draws.count += 1
    if 16 <= len(value) <= 64:
        _State.ids += 1
        if _State.ids <= _MOST:
            draws.ids.append(_word(what, value))
    if draws.count >= 2 * draws.noted:
        _note(place, draws)
    return value


def _word(what: str, value: bytes) -> str:
    digits = value.hex()
    if len(digits) == 32 and what != "uuid.uuid1":
        digits = f"{digits[:12]}4{digits[13:16]}{int(digits[16], 16) & 3 | 8:x}{digits[17:]}"
    return _digest(digits) + (f".{_digest(digits[:8])}" if what.startswith("uuid.") else "")


def _digest(digits: str) -> str:
    digest: bytes = streams._sha256(b"repro-env id\0" + digits.encode())
    return digest.hex()[:16]


def _note(place: tuple[str, str, int], draws: _Draws) -> None:
    what, file, line = place
    more, ids = draws.count - draws.noted, len(draws.ids)
    draws.noted += more  # set before the write, during which other threads run
    facts = {"entropy": what, "count": 0 if seeds._IDS else more, "file": file, "line": line}
    if ids or _State.ids > _MOST:
        facts.update(pid=os.getpid(), worker=_State.worker)
        if _State.ids > _MOST or notes.size() > _FULL:
            facts["more"] = True
        if notes.size() <= _FULL:
            facts["ids"] = " ".join(draws.ids[:ids])
        del draws.ids[:ids]
    notes.note(facts)


def forget() -> None:
    """What a fork's parent counted is the parent's."""
    _draws.clear()


def restart() -> None:
    """Take the name of the new worker."""
    _State.worker = streams.own_rank() + repr(seeds._State.worker)


def finish() -> None:
    """Note what is not noted yet."""
    for place, draws in list(_draws.items()):
        if draws.count > draws.noted:
            _note(place, draws)
