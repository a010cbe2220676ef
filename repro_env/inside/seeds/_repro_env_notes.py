"""What the hooks tell the run's record: lines of JSON, appended to the file REPRO_ENV_NOTES by all processes of the run."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

_MOST = 1000
"""Notes of one process by `once`."""
_FULL = 3 << 20
"""Bytes of the notes file: beyond them only facts of which there is one a process are added (`catalog.noted` reads 4 MiB)."""
_noted: set[Any] = set()


def size() -> int:
    """Return the size of the notes of all processes, in bytes."""
    try:
        return os.stat(seeds._NOTES).st_size
    except OSError:
        return 0


def note(facts: dict[str, Any]) -> None:
    """Add a line to the notes, as it is."""
    if not seeds._NOTES:
        return
    try:
        # One write in append mode: the lines of several processes do not mix.
        fd = os.open(seeds._NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size >= _FULL and not {"effective", "failure", "world", "resumed"} & set(facts):
                if size >= _FULL + 4096:
                    return
                facts = {"problem": f"more notes than {_FULL} bytes: the others are left out"}
            os.write(fd, _json(facts).encode() + b"\n")
        finally:
            os.close(fd)
    except (OSError, ValueError):
        pass


def once(facts: dict[str, Any]) -> None:
    """The same line once a process."""
    key = tuple(sorted(facts.items()))
    if key in _noted or len(_noted) >= _MOST:
        return
    _noted.add(key)
    note(facts)


def _json(value: Any) -> str:
    # The json module brings the re module: together a third of what a bare interpreter costs to start.
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(str(name))}: {_json(value[name])}" for name in sorted(value)) + "}"
    if type(value) in (int, bool):
        return str(value).lower()
    if type(value) is str:
        try:
            from _json import encode_basestring_ascii
        except ImportError:  # not CPython
            pass
        else:
            return str(encode_basestring_ascii(value))
    return str(__import__("json").dumps(value))
