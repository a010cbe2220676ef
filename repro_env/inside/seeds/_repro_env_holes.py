"""What is noted of generators. A hole is one that the script left unseeded and drew from: {"library", "what", "file", "line"}.

{"seeded": library, "what", "value", "file", "line"} is a seed that the script set itself, which stays as it is.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
notes: Any = seeds.part("notes")
places: Any = seeds.part("places")

_WRAPPERS = (places._LIBRARY + "random.py", "/torch/_dynamo/eval_frame.py", "/torch/_compile.py")
"""Code between a call of the script's and what we stand in for."""
_PLUMBING = ("/torch/utils/data/_utils/worker.py", "/torch/random.py")
"""Code that hands on what was seeded elsewhere: in its workers from the main generator, on a device from the CPU."""
_VALUES = 4
"""Different seeds that are noted of one call."""
_values: dict[tuple[str, str, int], set[str]] = {}
"""(what, file, line) of a call that seeds -> the values it gave."""


def hole(library: str, what: str, file: str, line: int) -> None:
    """Note a generator that was used without a seed."""
    notes.once({"library": library, "what": what, "file": places.absolute(file), "line": line})


def seeded(library: str, what: str, value: object) -> None:
    """Note that the script called `what` with this seed. To be called by what stands in for `what`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    if not seeds._NOTES or frame is None or places.is_ours(frame.f_code.co_filename):
        return
    if frame.f_code.co_filename.endswith(_PLUMBING) or (_in_loader() and not places.is_users(frame)):
        return
    values = _values.setdefault((what, frame.f_code.co_filename, frame.f_lineno), set())
    if len(values) > _VALUES:
        return
    text = _told(value)
    if text in values:
        return
    values.add(text)
    file, line = places.user_line(within_import=False)
    if not line:
        return  # a package's own, made as it is imported
    notes.once(
        {
            "seeded": library,
            "what": what,
            "value": text if len(values) <= _VALUES else "and others",
            "file": file,
            "line": line,
        }
    )


def _in_loader() -> bool:
    """Whether this is a worker of a DataLoader."""
    return bool(seeds.part("streams").worker()[:1] == ("loader",))


def _told(value: object) -> str:
    """A seed as text. Nothing of the user's is called for it, and no tensor is brought back from a device."""
    if value is None or type(value) in (int, bool, float, str, bytes):
        return repr(value)[:100]
    if type(value) in (list, tuple):
        return repr(value)[:100] if all(type(one) is int for one in value) else f"a {type(value).__name__}"  # type: ignore[attr-defined]
    if type(value).__module__ == "numpy":
        return str(value)[:100]
    return f"a {type(value).__name__}"
