"""What PyTorch says of operations that have no repeatable implementation: counted, by line, and shown only where the script asked.

Noted as {"operation", "count", "file", "line"}.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

    Items = list[Any]
else:
    Items = list

seeds: Any = __import__("_repro_env_seeds")
notes: Any = seeds.part("notes")
places: Any = seeds.part("places")

_PHRASES = (" does not have a deterministic implementation", " defaults to a non-deterministic algorithm")
"""How PyTorch's alerts go on after the operation's name (`Context::alertNotDeterministic`, the attention kernels)."""
_CUBLAS = "not deterministic because it uses CuBLAS"
_MOST = 1000
"""Different operations and lines of one process."""


class State:
    asked = False
    """The script set deterministic algorithms itself."""
    replaying = 0
    """Thread in which a warning is given again."""


_counts: dict[tuple[str, str, int], list[int]] = {}
"""(operation, file, line) -> [how often it ran, how often of that is noted]."""
_shown: dict[str, dict[Any, Any]] = {}
"""Module -> what Python remembers of warnings already given there."""


class _Alerts:
    """A warning filter that takes PyTorch's alerts: as Python asks it before all others, no filter of the script's hides them."""

    pattern = "(?!)"
    """Of a regular expression that matches nothing: libraries that carry filters to their workers read it (scikit-learn)."""

    def match(self, text: str) -> bool:
        """Whether the warning ends here: it would not have come without us."""
        if "determinis" not in text or State.replaying == _thread():
            return False
        what = operation(text)
        if not what:
            return False
        frame = sys._getframe(1)  # compiled code has no frame: this is who called it
        try:
            _count(what, *places.user_line())
        except Exception as error:
            seeds.problem("operation", error)
        if State.asked:
            _warn(text, frame)
        return True


class _Filters(Items):
    """`warnings.filters` with ours always the first."""

    ours = ("ignore", _Alerts(), UserWarning, None, 0)

    def _first(self) -> None:
        if not self or self[0] is not self.ours:
            rest = [one for one in self if one is not self.ours]
            super().__setitem__(slice(None), [self.ours, *rest])

    def insert(self, index: Any, item: Any) -> None:
        super().insert(index, item)
        self._first()

    def __setitem__(self, index: Any, item: Any) -> None:
        super().__setitem__(index, item)
        self._first()

    def __delitem__(self, index: Any) -> None:
        super().__delitem__(index)
        self._first()

    def clear(self) -> None:
        super().clear()
        self._first()

    def copy(self) -> _Filters:
        return _Filters(self)

    def __getitem__(self, index: Any) -> Any:  # `catch_warnings` copies by a slice
        found = super().__getitem__(index)
        return _Filters(found) if isinstance(index, slice) else found


def listen() -> None:
    """Hear every warning first. Not by `warnings` itself, which would forget which warnings it has shown, and show them again."""
    warnings: Any = __import__("warnings")
    if not isinstance(warnings.filters, _Filters):
        warnings.filters = _Filters(warnings.filters)
        warnings.filters._first()


def _thread() -> int:
    return int(__import__("_thread").get_ident())


def operation(text: str) -> str:
    """The operation that an alert of PyTorch names; empty for any other text."""
    for line in text.splitlines():
        for phrase in _PHRASES:
            what, found, _ = line.partition(phrase)
            if found:
                return what.rpartition("Error: ")[2].strip() or "unknown"
        if _CUBLAS in line:
            return "cuBLAS"
    return ""


def _warn(text: str, frame: FrameType) -> None:
    """Give a warning that the script itself asked for, as often as Python would have. Raises where the script wants that."""
    if frame.f_code.co_name == "alert_not_deterministic" and frame.f_back is not None:
        frame = frame.f_back  # it warns in the name of its caller
    module = str(frame.f_globals.get("__name__") or "<string>")
    State.replaying = _thread()
    try:
        __import__("warnings").warn_explicit(
            text, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, _shown.setdefault(module, {})
        )
    finally:
        State.replaying = 0


def _count(what: str, file: str, line: int) -> None:
    """The first of a kind is noted at once, lest it be lost with a process that is killed; the rest at the end."""
    key = (what, file, line)
    if key in _counts:
        _counts[key][0] += 1
    elif len(_counts) < _MOST:
        _counts[key] = [1, 1]
        notes.note({"operation": what, "count": 1, "file": file, "line": line})


def forget() -> None:
    """What a fork's parent counted is the parent's."""
    _counts.clear()


def finish() -> None:
    """Note what is not noted yet."""
    _failed(getattr(sys, "last_value", None))
    for key, (count, noted) in list(_counts.items()):
        if count > noted:
            _counts[key][1] = count
            notes.note({"operation": key[0], "count": count - noted, "file": key[1], "line": key[2]})


def _failed(error: BaseException | None) -> None:
    """Count an operation that ended the process, in `strict`."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        what = operation(str(error)) if isinstance(error, Exception) else ""
        if what:
            _count(what, *_origin(error.__traceback__))
            return
        error = error.__cause__ or error.__context__


def _origin(traceback: TracebackType | None) -> tuple[str, int]:
    """The innermost line of the user's own code; the innermost of all where there is none."""
    found, nearest = ("", 0), ("<unknown>", 0)
    while traceback is not None:
        nearest = (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        if places.is_users(traceback.tb_frame):
            found = nearest
        traceback = traceback.tb_next
    file, line = found if found[1] else nearest
    return places.absolute(file), line
