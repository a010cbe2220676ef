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

_LIBRARY = os.path.dirname(os.__file__) + "/"
_DOORS = {_LIBRARY + name + ".py": name for name in ("random", "secrets", "uuid")}
_PLACES = 1000
_counts: dict[tuple[str, str, int], list[int]] = {}
"""(what, file, line) -> how often, and how often as noted."""


def install() -> None:
    """Stand in for the functions of `os`."""
    for name in ("urandom", "getrandom"):
        if hasattr(os, name):
            setattr(os, name, _counting(getattr(os, name), name))
    seeds.when_imported("uuid", _hook_uuid)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_counts.clear)
    seeds.at_end(_flush)


def _counting(plain: Any, name: str) -> Any:
    def ours(*args: Any, **kwargs: Any) -> Any:
        try:
            _count("os." + name, sys._getframe(1))
        except Exception as error:
            seeds.problem("os." + name, error)
        return plain(*args, **kwargs)

    ours.__name__ = ours.__qualname__ = name
    ours.__module__ = "os"
    ours.__doc__ = plain.__doc__
    return ours


def _hook_uuid(uuid: Any) -> None:
    plain = uuid.uuid1

    def uuid1(node: Any = None, clock_seq: Any = None) -> Any:
        try:
            _count("uuid.uuid1", sys._getframe(1))
        except Exception as error:
            seeds.problem("uuid.uuid1", error)
        return plain(node, clock_seq)

    uuid1.__qualname__ = "uuid1"
    uuid1.__module__ = "uuid"
    uuid1.__doc__ = plain.__doc__
    uuid.uuid1 = uuid1


def _count(what: str, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code.co_filename in _DOORS:
        door = _DOORS[frame.f_code.co_filename]
        what = "random.SystemRandom" if door == "random" else f"{door}.{frame.f_code.co_name}"
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    if file.startswith("<frozen ") or seeds.is_standard(file):
        return
    place = (what, *seeds.user_line())
    count = _counts.get(place)
    if count is None:
        if len(_counts) >= _PLACES:
            return
        count = _counts[place] = [0, 0]
    count[0] += 1
    if count[0] >= 2 * count[1]:
        _note(place, count)


def _note(place: tuple[str, str, int], count: list[int]) -> None:
    what, file, line = place
    seeds.note({"entropy": what, "count": count[0] - count[1], "file": file, "line": line})
    count[1] = count[0]


def _flush() -> None:
    for place, count in list(_counts.items()):
        if count[0] > count[1]:
            _note(place, count)
