"""The user's word on what may differ: `FILE` or `FILE:PLACE`, as given with --ignore or written in pyproject.toml.

    *.log                       the whole file: it is not compared
    metrics.json:train_runtime  a key at any depth, a column, a field
    trial.db:trials.started     a column of a table of SQLite
    train.log:took {}s          a piece of a line, in which {} stands for one word that may differ
    metrics.json:*              every place, as long as the file has the same places

FILE is a path, a name, a directory or a glob. A colon in FILE is written `\\:`. Also the inverse: the text that accepts a
difference that was found. Pure.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from repro_env.model import redact
from repro_env.model.codec import Frozen
from repro_env.model.errors import UsageError
from repro_env.verify.kinds import matches

Source = Literal["--ignore", "pyproject.toml"]
HOLE = "{}"
_WORD = re.compile(r"\0[^\0]*\0|[^\s\0]+")
"""A word; or, between two NUL characters, something that evidence explains (`evidence.bare`), which no text can name."""
_SPACE = re.compile(r"\s")
_HINT = "write FILE or FILE:PLACE, for example '*.log', 'metrics.json:train_runtime' or 'train.log:took {}s'"


class Ignore(Frozen, frozen=True):
    """One text, parsed."""

    file: str
    place: str | None
    """None: the whole file."""
    source: Source = "--ignore"

    @property
    def reason(self) -> str:
        return f"as {self.source} says"

    def matches_file(self, path: str) -> bool:
        return path == self.file or matches(path, (self.file,))

    def matches_place(self, place: str) -> bool:
        """Whether it names this key or column. `place`: dotted. A pattern without dots means the last part at any depth, and numbers
        of items and rows can be left out.

        In the pattern, only `*` and `?` are special: names of keys have brackets.
        """
        if self.place is None:
            return False
        pattern = self.place.replace("[", "[[]")
        whole = (place, re.sub(r"\.\d+(?=\.)", "", place))
        return any(fnmatchcase(each, pattern) for each in whole) or (
            "." not in pattern and fnmatchcase(place.rpartition(".")[2], pattern)
        )

    def blank(self, line: str) -> tuple[str, tuple[str, ...]]:
        """The line with `{}` for what may differ, and what stood there."""
        if self.place == "*":
            return HOLE, (line,)
        if self.place is None or HOLE not in self.place:
            return line, ()
        pieces = self.place.split(HOLE)
        made, values, done = [], [], 0
        for start, ends in _found(pieces, line):
            made += [line[done:start], self.place]
            values += [line[left:right] for left, right in ends]
            done = ends[-1][1] + len(pieces[-1])
        return "".join((*made, line[done:])), tuple(values)


def _found(pieces: Sequence[str], line: str) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Where the pieces stand in this order, with one run of characters without spaces in each gap: the start, and the gaps.

    A gap is as short as it can be; one at the end takes the rest of the word. Each place of the line is tried once, so the time
    is linear: where a gap fails, every later start whose first gap is in the same word fails as well.
    """
    at = line.find(pieces[0])
    while 0 <= at < len(line):
        first = at + len(pieces[0])
        gaps: list[tuple[int, int]] = []
        left = first
        for number, piece in enumerate(pieces[1:], 2):
            word = _end(line, left)
            right = word if number == len(pieces) and not piece else line.find(piece, left + 1, word + len(piece))
            if not left < right <= word:
                break
            gaps.append((left, right))
            left = right + len(piece)
        if len(gaps) == len(pieces) - 1:
            yield at, gaps
            at = line.find(pieces[0], max(left, at + 1))
        else:
            at = line.find(pieces[0], max(at + 1, _end(line, first) - len(pieces[0]) + 1))


def _end(line: str, start: int) -> int:
    """Where the word ends that `start` is in."""
    space = _SPACE.search(line, start)
    return space.start() if space else len(line)


def parse(text: str, source: Source = "--ignore") -> Ignore:
    """Raises `UsageError` for a text that is empty, or that would accept any line."""
    where = f"{source} {text!r}" if source == "--ignore" else f"{source}: {text!r}"
    file, *places = re.split(r"(?<!\\):", text, maxsplit=1)
    file, place = file.replace(r"\:", ":"), places[0] if places else None
    if not file.strip():
        raise UsageError("it names no file", where=where, hint=_HINT)
    if place is None:
        return Ignore(file, None, source)
    if not place.strip():
        raise UsageError("it has no key, column or text after the colon", where=where, hint=_HINT)
    if HOLE in place and not re.search(r"\w", place.replace(HOLE, "")):
        raise UsageError(
            f"it would accept every line: there is no letter and no digit beside {HOLE}",
            where=where,
            hint="write text that stands beside what may differ, or ignore the whole file by its name",
        )
    return Ignore(file, place, source)


def accept(file: str, place: str) -> str:
    """The text that accepts a difference at this key or column; empty where none would name it alone.

    A number between names is the number of an item in a list, and becomes `*`: the list may be another size next time.
    """
    if not place or place.isdigit() or any(sign in place for sign in "*?"):
        return ""
    parts = place.split(".")
    if not parts[-1].isdigit():
        parts = ["*" if part.isdigit() else part for part in parts]
    return _checked(f"{_file(file)}:{'.'.join(parts)}")


def accept_line(file: str, then: str, now: str) -> tuple[str, ...]:
    """The texts that together accept the difference of two lines; none where the lines have too little in common.

    A word that differs becomes `{}`. What is attached to it on both sides stays (`took=12.5s` gives `took={}s`), and so does
    the text before it, back to the last word with a letter or digit. What stands between two NUL characters in both lines is
    explained already, and no part of a text.
    """
    old, new = list(_WORD.finditer(then)), list(_WORD.finditer(now))
    if then == now or HOLE in then or len(old) != len(new):
        return ()
    texts = []
    start, number = 0, 0
    while number < len(old):
        if old[number][0] == new[number][0]:
            number += 1
            continue
        end = number
        while end < len(old) and old[end][0] != new[end][0]:
            end += 1
        pattern = ""
        for index in range(number, end):
            before = then[old[index - 1].end() : old[index].start()] if index > number else ""
            pattern += before + _emptied(old[index][0], new[index][0])
        first = number
        while first > start and not re.search(r"\w", then[old[first].start() : old[number].start()]):
            if "\0" in then[old[first - 1].start() : old[first].start()]:
                break
            first -= 1
        pattern = then[old[first].start() : old[number].start()] + pattern
        if not re.search(r"\w", pattern.replace(HOLE, "")) and end < len(old):
            pattern += then[old[end - 1].end() : old[end].end()]
        texts.append(f"{_file(file)}:{pattern}")
        start = number = end
    found = tuple(dict.fromkeys(_checked(text) for text in texts))
    if "" in found:
        return ()
    for ignore in map(parse, found):
        then, now = ignore.blank(then)[0], ignore.blank(now)[0]
    return found if then == now else ()


def example(text: str, lines: Sequence[str]) -> tuple[str, str] | None:
    """The two values of a difference that the text accepts, of lines `- PLACE: then`, `+ PLACE: now`; None where there is none."""
    ignore = parse(text)
    for old, new in itertools.pairwise(lines):
        if old[:2] != "- " or new[:2] != "+ ":
            continue
        then, now = old[2:], new[2:]
        if HOLE in (ignore.place or ""):
            if ignore.blank(then)[0] == ignore.blank(now)[0]:
                return then, now
        elif ignore.matches_place(then.partition(": ")[0].rpartition(", ")[2]):
            return then.partition(": ")[2], now.partition(": ")[2]
    return None


def _emptied(then: str, now: str) -> str:
    """The word with `{}` for what differs, widened to whole numbers and names; a unit behind a number stays."""
    most = min(len(then), len(now))
    head = next((n for n in range(most) if then[n] != now[n]), most)
    while head and (then[head - 1].isalnum() or (then[head - 1] in ".,:-+" and head > 1 and then[head - 2].isdigit())):
        head -= 1
    most -= head
    tail = next((n for n in range(most) if then[-1 - n] != now[-1 - n]), most)
    while tail and (then[-tail].isdigit() or (then[-tail] in ".,:-+" and then[len(then) - tail + 1 :][:1].isdigit())):
        tail -= 1
    letters = re.match(r"[^\W_]*", then[len(then) - tail :])
    unit = letters[0] if letters else ""
    ends = (then[: len(then) - tail][-1:], now[: len(now) - tail][-1:])
    if unit and not (unit.isalpha() and all(char.isdigit() for char in ends)):
        tail -= len(unit)
    if any(head + tail >= len(word) for word in (then, now)):  # one of the two has nothing where the other differs
        head = tail = 0
    return then[:head] + HOLE + then[len(then) - tail :]


def _file(path: str) -> str:
    return glob.escape(path).replace(":", r"\:")


def _checked(text: str) -> str:
    """The text, or nothing where it cannot be written down: it has a secret or a control character, or `parse` refuses it."""
    if redact.line(text) != text or not text.isprintable():
        return ""
    try:
        parse(text)
    except UsageError:
        return ""
    return text
