"""Long runs of letters and digits, of which most files have few. Every token is one, or near one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from repro_env.schema.patterns import lazy

_SHORTEST = 20
_LONGEST = 16384
"""A longer run is base64-encoded data, which has no tokens."""
_CHARACTERS = bytes(byte for byte in range(128) if chr(byte).isalnum() or byte in b"_-+/=")
_TABLE = bytes(97 if byte in _CHARACTERS else 32 for byte in range(256))
_WIDE_TABLE = _TABLE.replace(b" ", b"0", 1)
_RUN = lazy(rb"(?<![A-Za-z0-9_+/=-])[A-Za-z0-9_+/=-]{%d,}" % _SHORTEST)
_WIDE_RUNS = [b"a" + character * (_SHORTEST - 1) for character in (b"0a", b"000a")]
_WIDE_TEXT = lazy(rb"(?:[!-~]\0){16,}|(?:[!-~]\0{3}){16,}|(?:\0[!-~]){16,}")
"""Text with two or four bytes per character, as in programs for Windows and numpy arrays."""


def find(data: bytes, *, program: bool) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the runs that may have a token. `program`: whether symbol names are not among them."""
    table = data.translate(_TABLE)
    long, end = b"a" * _SHORTEST, 0
    while (start := table.find(long, end)) >= 0:
        end = table.find(b" ", start + _SHORTEST)
        end = len(table) if end < 0 else end
        if _counts(data[start:end], program=program):
            yield start, end


def is_near(data: bytes, first: int, last: int, *, program: bool) -> bool:
    """Whether a run that may have a token ends at or after `first` and begins at or before `last`."""
    before = data[max(0, first - _LONGEST - 1) : max(0, first)]
    start = max(0, first) - len(before) + len(before.rstrip(_CHARACTERS))
    for match in _RUN.finditer(data, start, last + _LONGEST + 1):
        if match.start() > last:
            return False
        if match.end() >= first and _counts(match[0], program=program):
            return True
    return False


def continues(data: bytes, position: int) -> bool:
    """Whether the byte before belongs to a run."""
    return position > 0 and data[position - 1] in _CHARACTERS


def find_wide(data: bytes) -> Iterator[int]:
    """Yield the positions of runs with two or four bytes per character."""
    table = data.translate(_WIDE_TABLE)
    for run in _WIDE_RUNS:
        position = table.find(run)
        while position >= 0:
            yield position
            position = table.find(run, position + len(run))


def narrowed(data: bytes, positions: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (position, text) of the texts around runs with two or four bytes per character."""
    searched = -1
    for position in sorted(positions):
        # From a little before, and from the middle of a character, so that text of either byte order is complete.
        found = _WIDE_TEXT.finditer(data, max(0, position - 257)) if position > searched else ()
        match = next((match for match in found if match.end() > position), None)
        if match is not None:
            yield match.start(), match[0].replace(b"\0", b"")
            searched = match.end()


def _counts(run: bytes, *, program: bool) -> bool:
    """Whether a run has a digit (paths: two), or a Hugging Face token, and is not the name of a C++ symbol ("Itanium C++ ABI", 5.1)."""
    if len(run) > _LONGEST or (program and run[:2] == b"_Z" and run.replace(b"_", b"").isalnum()):
        return False
    digits = len(run) - len(run.translate(None, b"0123456789"))
    return digits > 1 or (digits == 1 and b"/" not in run) or b"hf_" in run
