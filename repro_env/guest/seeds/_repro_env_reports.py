"""The reports for the record of the run: lines of JSON that all processes append to the file REPRO_ENV_REPORTS."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

_MOST = 1000
"""The most reports of a process through `once`."""
_FULL = 3 << 20
"""The size of the file in bytes at which only reports that a process writes once are still added. `runs.records.reports` reads 4 MiB."""
_noted: set[Any] = set()


def size() -> int:
    """The size of the reports of all processes, in bytes."""
    try:
        return os.stat(seeds._NOTES).st_size
    except OSError:
        return 0


def report(facts: dict[str, Any]) -> None:
    """Add a line to the reports."""
    if not seeds._NOTES:
        return
    try:
        # A single write in append mode, so that the lines of several processes do not mix.
        fd = os.open(seeds._NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size >= _FULL and not {"settings", "failure", "world", "resumed"} & set(facts):
                if size >= _FULL + 4096:
                    return
                facts = {"problem": f"the reports exceed {_FULL} bytes, so later reports are omitted"}
            os.write(fd, _json(facts).encode() + b"\n")
        finally:
            os.close(fd)
    except (OSError, ValueError):
        pass


def once(facts: dict[str, Any]) -> None:
    """Add a line to the reports, unless this process has already added the same line."""
    key = tuple(sorted(facts.items()))
    if key in _noted or len(_noted) >= _MOST:
        return
    _noted.add(key)
    report(facts)


def _json(value: Any) -> str:
    # Importing json, which imports re, takes a third of the startup time of an interpreter.
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
