"""Counts what a script takes from the operating system's randomness, which stays as it is.

`os.urandom`, `os.getrandom`, `secrets`, `random.SystemRandom`, `uuid.uuid4` and its kin end in the first two;
`uuid.uuid1` is counted by itself. A note is {"entropy": what, "count", "file", "line"} with the user's line; the counts
of all notes of a line add up. One is written when a line has been there once, twice, four times and so on, and at the
end of the process: what a killed process noted is at least half. What the standard library takes for itself (keys of
its processes, names of temporary files) is not counted.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
notes: Any = seeds.part("notes")
places: Any = seeds.part("places")

_LIBRARY = os.path.dirname(os.__file__) + "/"
_DOORS = {_LIBRARY + name + ".py": name for name in ("random", "secrets", "uuid")}
_PLACES = 1000
_counts: dict[tuple[str, str, int], list[int]] = {}
"""(what, file, line) -> how often, and how often as noted."""


def hook_uuid(uuid: Any) -> None:
    """`uuid1` takes its own way."""
    plain = uuid.uuid1

    def uuid1(node: Any = None, clock_seq: Any = None) -> Any:
        try:
            count("uuid.uuid1", sys._getframe(1))
        except Exception as error:
            seeds.problem("uuid.uuid1", error)
        return plain(node, clock_seq)

    uuid1.__qualname__ = "uuid1"
    uuid1.__module__ = "uuid"
    uuid1.__doc__ = plain.__doc__
    uuid.uuid1 = uuid1


def count(what: str, frame: FrameType | None) -> None:
    """Count one call of `what`, which `frame` made."""
    while frame is not None and frame.f_code.co_filename in _DOORS:
        door = _DOORS[frame.f_code.co_filename]
        what = "random.SystemRandom" if door == "random" else f"{door}.{frame.f_code.co_name}"
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    if file.startswith("<frozen ") or places.is_standard(file):
        return
    place = (what, *places.user_line())
    counted = _counts.get(place)
    if counted is None:
        if len(_counts) >= _PLACES:
            return
        counted = _counts.setdefault(place, [0, 0])  # another thread may have been here
    counted[0] += 1
    if counted[0] >= 2 * counted[1]:
        _note(place, counted)


def _note(place: tuple[str, str, int], counted: list[int]) -> None:
    what, file, line = place
    more = counted[0] - counted[1]
    counted[1] += more  # before it is written, which lets other threads go on
    notes.note({"entropy": what, "count": more, "file": file, "line": line})


def forget() -> None:
    """What a fork's parent counted is the parent's."""
    _counts.clear()


def finish() -> None:
    """Note what is not noted yet."""
    for place, counted in list(_counts.items()):
        if counted[0] > counted[1]:
            _note(place, counted)
