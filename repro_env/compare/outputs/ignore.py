"""Parse the differences that the user accepts: `FILE` or `FILE:PLACE`, from --ignore or the file `repro-env.ignore`.

    *.log                       the whole file is not compared
    metrics.json:train_runtime  a key at any depth, a column, a field
    trial.db:trials.started     a column of an SQLite table
    train.log:took {}s          a part of a line, in which {} stands for one word
    metrics.json:*              every value of the file

FILE is a pattern of paths (`comparison.matches`). Write a colon in FILE as `\\:`. PLACE is not a path: in it, only `*` and `?` are
special, and match all characters. `accept` and `accept_line` return the texts that accept a difference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import takewhile
from typing import Literal

from repro_env.compare.outputs.comparison import matches, parse_pattern
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import UsageError

Source = Literal["--ignore", "repro-env.ignore"]
PLACEHOLDER = "{}"
_LONGEST_LINE = 100_000
_LONGEST_WORD = 200
"""The most characters that {} matches. Both limits keep the time to match a line short."""
_PART = re.compile(r"\0[^\0]*\0|[^\s\0]+|\s+")
"""A masked value (`evidence.mask`), a word, or white space."""
_TOKEN = re.compile(
    r"(?:(?<![^\W_])[-+])?\d+(?:[.,:+-]\d+)*(?:[eE][-+]?\d+)?(?=[^\W\d_]*(?![^\W_]|[.,:+-]\d))"
    r"|[^\W_]+(?:(?<=\d)[.,:+-](?=\d)[^\W_]+)*"
    r"|."
)
"""A number, with its unit as the next token; letters and digits (an id, a time); or a single character."""
_LETTER = re.compile(r"\w")
_HINT = "write FILE or FILE:PLACE, for example '*.log', 'metrics.json:train_runtime' or 'train.log:took {}s'"


class Ignore(Frozen, frozen=True):
    """A parsed `FILE` or `FILE:PLACE`."""

    file: str
    place: str | None
    """None for the whole file."""
    source: Source = "--ignore"
    any_depth: bool = True
    """Whether a place without dots is at any depth. A library writes its field at one place."""

    @property
    def reason(self) -> str:
        return f"as {self.source} says"

    def matches_file(self, path: str) -> bool:
        return matches(path, [self.file])

    def matches_place(self, place: str) -> bool:
        """Whether the pattern matches a dotted key or a column.

        A pattern without dots matches the last part at any depth. A pattern may leave out the numbers of items and rows.
        """
        if self.place is None:
            return False
        pattern = self.place.replace("[", "[[]")
        names = [place, re.sub(r"\.\d+(?=\.)", "", place)]
        if "." not in pattern and self.any_depth:
            names.append(place.rpartition(".")[2])
        return any(fnmatchcase(name, pattern) for name in names)

    def blank(self, line: str) -> tuple[str, tuple[str, ...]]:
        """Replace each part of a line that may differ with `{}`. Returns the line and these parts."""
        if self.place == "*":
            return PLACEHOLDER, (line,)
        if self.place is None or PLACEHOLDER not in self.place or len(line) > _LONGEST_LINE:
            return line, ()
        values: list[str] = []
        place = self.place

        def replacement(match: re.Match[str]) -> str:
            values.extend(match.groups())
            return place

        return _pattern(place).sub(replacement, line), tuple(values)


@cache
def _pattern(place: str) -> re.Pattern[str]:
    """Compile a place. Each {} matches as few characters as possible, and at the end all characters up to the next space."""
    first, *pieces = map(re.escape, place.split(PLACEHOLDER))
    placeholders = [rf"(\S(?:(?!{piece})\S){{,{_LONGEST_WORD}}}){piece}" for piece in pieces]
    if not pieces[-1]:
        placeholders[-1] = r"(\S+)"
    return re.compile(first + "".join(placeholders))


def parse(text: str, source: Source = "--ignore") -> Ignore:
    """Parse a text. Raises `UsageError` if it is empty or would accept any line."""
    where = f"{source} {text!r}" if source == "--ignore" else f"{source}: {text!r}"
    file, *places = re.split(r"(?<!\\):", text, maxsplit=1)
    file, place = file.replace(r"\:", ":"), places[0] if places else None
    if not file.strip():
        raise UsageError("the name of the file is missing", where=where, hint=_HINT)
    try:
        parse_pattern(file)
    except UsageError as error:
        raise UsageError(error.what, where=where, hint=_HINT) from None
    if place is None:
        return Ignore(file, None, source)
    if not place.strip():
        raise UsageError("the key, column or text after the colon is missing", where=where, hint=_HINT)
    if PLACEHOLDER in place and not _LETTER.search(place.replace(PLACEHOLDER, "")):
        raise UsageError(
            f"it would accept every line, because it has no letter or digit besides {PLACEHOLDER}",
            where=where,
            hint="write the text next to the part that may differ, or ignore the whole file by its name",
        )
    return Ignore(file, place, source)


def accept(file: str, place: str | None) -> str:
    """Return the text that accepts a difference at a key or column; empty if no text matches only this place.

    `file`: a pattern of the file (`evidence.pattern`). Without a place, the text accepts the whole file.

    The number of an item in a list becomes `*` if a name follows it: the next list may have another length.
    """
    if place is None:
        return _text(file, "")
    if not place or place.isdigit() or any(sign in place for sign in "*?"):
        return ""
    parts = place.split(".")
    if not parts[-1].isdigit():
        parts = ["*" if part.isdigit() else part for part in parts]
    return _text(file, ".".join(parts))


def accept_line(file: str, then: str, now: str) -> tuple[str, ...]:
    """Return the texts that together accept the difference between two lines; empty if the lines have too little in common.

    `file`: as in `accept`.

    In words that differ, `{}` replaces the part that differs (`took=12.5s` becomes `took={}s`). The text starts at the last
    word before them with a letter or digit. A masked value is never part of a text.
    """
    old, new = _PART.findall(then), _PART.findall(now)
    if PLACEHOLDER in then or len(old) != len(new) or _separators(old) != _separators(new):
        return ()
    parts = [
        old_part if old_part == new_part else _blank_word(old_part, new_part) for old_part, new_part in zip(old, new, strict=True)
    ]
    texts, end = [], 0
    for first, last in _different_ranges(old, new):
        start = first
        while start > end and not _LETTER.search("".join(parts[start:first])) and "\0" not in parts[start - 1]:
            start -= 1
        end = last + 1
        place = "".join(parts[start:end])
        if not _LETTER.search(place.replace(PLACEHOLDER, "")):
            place = "".join(parts[start : end + 2])  # with the next word
        texts.append(_text(file, place.lstrip()))
    if "" in texts:
        return ()
    for ignore in map(parse, texts):
        then, now = ignore.blank(then)[0], ignore.blank(now)[0]
    return tuple(dict.fromkeys(texts)) if then == now else ()


def _separators(parts: Sequence[str]) -> list[str]:
    """Return the parts with an empty text instead of each word."""
    return [part if part.isspace() or "\0" in part else "" for part in parts]


def _different_ranges(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Return (first, last) of the parts that differ. Words with only white space between them are one range."""
    ranges: list[tuple[int, int]] = []
    for number, (old_part, new_part) in enumerate(zip(old, new, strict=True)):
        if old_part == new_part:
            continue
        if ranges and ranges[-1][1] == number - 2 and old[number - 1].isspace():
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _blank_word(then: str, now: str) -> str:
    """Replace the tokens of a word from the first to the last that differ with `{}`."""
    old, new = _TOKEN.findall(then), _TOKEN.findall(now)
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    if head + tail == min(len(old), len(new)):  # one of the words has no tokens that could be replaced
        return PLACEHOLDER
    return "".join([*old[:head], PLACEHOLDER, *old[len(old) - tail :]])


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """Count the equal tokens at the beginning."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))))


def _text(file: str, place: str) -> str:
    """Return `FILE:PLACE`, or `FILE`; empty if it has a secret or a control character, or if `parse` refuses it."""
    name = re.sub("^#", "[#]", file.replace(":", r"\:"))  # a line with # is a comment in repro-env.ignore
    text = f"{name}:{place}" if place else name
    if redact.line(text) != text or not text.isprintable():
        return ""
    try:
        parse(text)
    except UsageError:
        return ""
    return text
