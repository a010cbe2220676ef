"""Find candidates with Hyperscan (or Vectorscan, its copy for other processors): everything in one pass over the bytes.

It reports where patterns end, and ignores what is around a mark, so it finds more than `rules` accepts, but never less. It is
installed where there are wheels of it; elsewhere, and for little data, `candidates` finds the same without it.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from repro_env.environment.secrets.rules import IN_ALL, IN_TEXT, WORDS, Rule

WARM_UP = 4 << 20
"""Bytes that a process searches without the engine, whose start takes as long as that."""
_REACH, _LONG_REACH = 400, 1 << 16
"""Bytes before the end of a pattern in which its mark is. The second: where a part before the last has any length."""
_LOOKAHEAD = re.compile(r"\(\?[=!][^()]*\)")
_OPEN = re.compile(r"(?:\{\d+,\}|[\])][*+])(?!\Z)")
_LONGEST_MARK = 32
_MOST = 50_000
"""Maximum number of reports for some bytes: with more, the search without the engine is faster."""
Ends = list[tuple[int, int]]
"""(index of the pattern, end)."""


class _Pattern(NamedTuple):
    pattern: bytes
    rules: Sequence[Rule]
    """Empty for text with several bytes per character."""
    mark: int = 0
    """Length of the mark, if the pattern is nothing else."""
    is_text: bool | None = None
    """Whether it counts in text only and in any case (True), or in other bytes only (False)."""


class Engine:
    """The engine of this process."""

    def __init__(self, warm_up: int = WARM_UP) -> None:
        self._wait = warm_up

    def expect(self, size: int) -> None:
        """Start at once if this many bytes are worth it."""
        if size > self._wait:
            self._wait = 0

    def find(self, data: bytes, *, text: bool) -> tuple[Iterable[tuple[int, Sequence[Rule]]], Iterable[int]] | None:
        """Do what `candidates.find` does. Returns None if the engine is missing, not worth its start yet, or reports too much."""
        self._wait -= len(data)
        if self._wait > 0 or hyperscan() is None:
            return None
        patterns, database = _compiled()
        ends: Ends = []

        def add(number: int, start: int, end: int, flags: int, context: object) -> bool:  # noqa: ARG001
            if patterns[number].is_text in (None, text):
                ends.append((number, end))
            return len(ends) > _MOST

        try:
            database.scan(data, match_event_handler=add, scratch=_scratch(threading.get_ident()))
        except hyperscan().ScanTerminated:
            return None
        return _candidates(data, patterns, ends), (end - 1 for number, end in ends if not patterns[number].rules)


@cache
def hyperscan() -> Any:
    """Return the module, or None."""
    try:
        return importlib.import_module("hyperscan")
    except ImportError:
        return None


@cache
def _compiled() -> tuple[list[_Pattern], Any]:
    """Return all patterns, and the database of them: to compile one for text and one for other bytes would take twice as long."""
    patterns, module = list(_patterns()), hyperscan()
    flags = [module.HS_FLAG_DOTALL | module.HS_FLAG_PREFILTER | module.HS_FLAG_CASELESS * bool(each.is_text) for each in patterns]
    database = module.Database(mode=module.HS_MODE_BLOCK)
    database.compile(expressions=[pattern.pattern for pattern in patterns], ids=list(range(len(patterns))), flags=flags)
    return patterns, database


@cache
def _scratch(thread: int) -> Any:  # noqa: ARG001
    """Return the memory in which a thread searches: while one does, no other may use it."""
    return hyperscan().Scratch(_compiled()[1])


def _patterns() -> Iterator[_Pattern]:
    for rules, is_text in ((IN_ALL, None), (IN_TEXT, True)):
        yield from (_Pattern(rule.first.encode(), (rule,), is_text=is_text) for rule in rules if rule.first)
        plain = [rule for rule in rules if not rule.first]
        for mark in dict.fromkeys(mark for rule in plain for mark in rule.marks):
            yield _Pattern(re.escape(mark), [rule for rule in plain if mark in rule.marks], len(mark), is_text)
    for zeros in (rb"\x00", rb"\x00{3}"):
        for rule in WORDS:
            marks = (zeros.join(re.escape(mark[i : i + 1]) for i in range(len(mark))) for mark in rule.marks)
            yield _Pattern(
                b"|".join(marks), (), is_text=False
            )  # without what follows a mark, this takes half the time to compile
        yield _Pattern(rb"\.(?:%s[\w-]){6,7}%s\." % (zeros, zeros), (), is_text=False)


def _candidates(data: bytes, patterns: Sequence[_Pattern], ends: Ends) -> Iterator[tuple[int, Sequence[Rule]]]:
    searched: dict[int, int] = {}
    for number, end in ends:
        pattern = patterns[number]
        if pattern.mark:
            yield end - pattern.mark, pattern.rules
        for rule in () if pattern.mark else pattern.rules:
            reach = _LONG_REACH if _OPEN.search(_LOOKAHEAD.sub("", rule.first)) else _REACH
            start = max(0, end - reach, searched.get(number, 0) - _LONGEST_MARK)
            near = data[start:end].lower() if pattern.is_text else data[start:end]
            for mark in rule.marks:
                yield from ((start + match.start(), (rule,)) for match in re.finditer(re.escape(mark), near))
            searched[number] = end
