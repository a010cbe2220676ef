"""Which line of the user's code is running."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

_OURS = seeds._PACKAGE + "/"
_LIBRARY = os.path.dirname(os.__file__) + "/"


def is_users(frame: FrameType) -> bool:
    """Whether this runs the user's code: not ours, not the standard library's, not an installed package's."""
    file = frame.f_code.co_filename
    if file.startswith("<"):  # of `-c`, or made by a library while it runs
        return file in ("<string>", "<stdin>") and frame.f_globals.get("__name__") == "__main__"
    return not (file.startswith((_LIBRARY, _OURS, seeds._COMMANDS)) or "/site-packages/" in file or "/dist-packages/" in file)


def is_ours(file: str) -> bool:
    return file.startswith(_OURS)


def user_line(*, within_import: bool = True) -> tuple[str, int]:
    """The line of the user's code that is running; else of whoever is nearest and not ours: a package, the standard library.

    Line 0 where there is none; also, without `within_import`, where the user's line only imports what is running.
    """
    frame: FrameType | None = sys._getframe(1)
    nearest = ("<unknown>", 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(frame):
            return absolute(file), frame.f_lineno
        if not within_import and file.startswith("<frozen importlib"):
            return "<unknown>", 0
        if not file.startswith(("<", _OURS)) and (nearest[1] == 0 or is_standard(nearest[0])):
            nearest = (file, frame.f_lineno)
        frame = frame.f_back
    return nearest


def is_standard(file: str) -> bool:
    return file.startswith(_LIBRARY) and "/site-packages/" not in file and "/dist-packages/" not in file


def absolute(file: str) -> str:
    if file.startswith(("<", "/")):
        return file
    return os.path.normpath(os.path.join(seeds._State.folder, file))  # Python 3.8 names the script as it was typed
