"""Search files for secrets before they are copied. `schema.credentials` defines what secrets look like.

Files of any name are searched completely, in pieces. Tokens are long runs of letters and digits, of which most text has
few: a table maps each byte to whether it may be part of a run, so that `bytes.find` jumps from run to run. All other
secrets are near a mark, such as `password` or `://`: `secrets.rules` has the marks, and the patterns that are tried at each.
In binary files, tokens, keys and URLs are found, but not named values. The contents of gzip files are searched too; other
archives are not unpacked.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from repro_env.environment.secrets.rules import NO_PASSWORD, RULES, RULES_OF_RUNS, SETTING, Rule
from repro_env.io.files import Found
from repro_env.oci.entry import Entry
from repro_env.schema import credentials
from repro_env.schema.credentials import is_made_up, is_random, is_reference
from repro_env.schema.patterns import lazy

PIECE = 4 << 20
"""Bytes searched at once."""
_OVERLAP = 1 << 16
"""Bytes that a piece shares with the next, because a secret may cross the boundary."""
_INFLATED = 1 << 30
"""Maximum bytes unpacked from a gzip file."""
_HEAD = 1 << 20
"""Bytes of a file of a known kind that are searched with the rules for that kind."""
MOST = 20
"""Maximum number of findings in one file."""
_RUN = 20
"""Minimum number of characters of a run."""
_DATA = 16384
"""A longer run is base64-encoded data, which has no tokens."""
_LEAD = 28
"""Bytes before a run in which a token with dots or slashes may begin (`hooks.slack.com/...`)."""
_NEAR = 80
"""Bytes on each side of a run in which the mark of a long value may be."""
_MARK = 24
"""No mark is longer; a mark may begin where the search near one run ends."""
_CONTROL = bytes(byte for byte in range(32) if byte not in b"\b\t\n\f\r\x1b")
"""Characters that text and what terminals receive hardly have. Numbers as bytes have some, even if no byte is 0."""
_IN_RUN = bytes(97 if (chr(byte).isalnum() and byte < 128) or byte in b"_-+/=" else 32 for byte in range(256))


def _bytes(pattern: str, flags: int = 0) -> re.Pattern[bytes]:
    return lazy(pattern.encode(), flags)


_TOKENS: dict[bytes, list[tuple[bytes, str, re.Pattern[bytes]]]] = {}
for _kind in (*credentials.SHAPES, credentials.ENCODED_KEY):
    for _needle in _kind.needles:
        _TOKENS.setdefault(_needle.encode()[:3], []).append((_needle.encode(), _kind.name, _bytes(_kind.pattern)))
_SYMBOL = lazy(rb"[A-Z][a-z]{4,}|[a-z]{6,}")
"""Words in a symbol name of a program. A name with two of them is not a token."""
_WORD = lazy(rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-F]{2}))(?=(...))", re.DOTALL)
_ANYWHERE = lazy(rb"(?=(...))", re.DOTALL)
_WIDE = bytes(97 if 32 < byte < 127 else 48 if byte == 0 else 32 for byte in range(256))
_WIDE_TEXT = lazy(rb"(?:[!-~]\0){16,}|(?:[!-~]\0{3}){16,}|(?:\0[!-~]){16,}")
"""Text with two or four bytes per character, as in programs for Windows and numpy arrays."""
_DISCORD = _bytes(credentials.WITHIN[0].pattern)


_PKCS12 = lazy(rb"\x30[\x80-\x84].{0,4}\x02\x01\x03\x30", re.DOTALL)
_PLAIN_SETTING = lazy(
    r"https?://[^@]*|[\w.-]+@[\w.-]+|[\w.-]+\.(?:org|com|net|io|dev)(?::\d+)?|[A-Za-z_ -]+|[\d.:-]+|[./~].*|.*(?:your|xxxx|example|changeme|\.\.\.|\*\*\*).*",
    re.IGNORECASE,
)
"""Values in a file of secrets that are not secret: addresses, paths, plain words."""
_FILES = [(kind, lazy(rf"(?:.*/)?(?:{name})", re.IGNORECASE), _bytes(pattern)) for kind, name, pattern in credentials.FILES]
_PROGRAM = lazy(r".*\.(?:py[ixw]?|ipynb|[cm]?[jt]s|go|c|h|cc|cpp|hpp|cu|cuh|java|kt|scala|swift|jl|r)", re.IGNORECASE)
"""Files in languages whose strings and comments can be recognized, unlike markup and shell scripts."""


Item = TypeVar("Item", Entry, Found)


class Secret(msgspec.Struct, frozen=True):
    """The location of a secret, without its value."""

    path: str
    line: int
    """From 1; 0 if the secret is in the path itself or in a binary file."""
    kind: str


def in_files(files: Iterable[Item], read: Callable[[Item], Iterable[bytes]]) -> Iterator[Secret]:
    """Yield the secrets in all names, and in the contents of files, which `read` returns."""
    listed = list(files)
    yield from in_names(file.path for file in listed)
    for file in listed:
        if file.kind == "file" and file.size:
            yield from (Secret(file.path, *match) for match in in_chunks(read(file), file.path))


def in_names(paths: Iterable[str]) -> Iterator[Secret]:
    """Yield the tokens in names of files and directories. A token in a directory's name is reported only once."""
    reported = set()
    for path in paths:
        data = os.fsencode(path)
        for start, kind in (token for run in _runs(data) for token in _tokens(data, *run, at_words=True)):
            name = data[start:].partition(b"/")[0]
            if name not in reported:
                reported.add(name)
                yield Secret(path, 0, f"{kind} in its name")


def in_chunks(chunks: Iterable[bytes], path: str = "") -> list[tuple[int, str]]:
    """Return (line, kind) of the secrets in a file's bytes, at most `MOST`. The line is 0 in binary files."""
    chunks = iter(chunks)
    first = next(chunks, b"")
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        # UTF-16, reduced to one byte per character, because all patterns are ASCII.
        chunks, first = iter(()), b"".join((first, *chunks)).decode("utf-16", "replace").encode("latin-1", "replace")
    elif first[:3] == b"\x1f\x8b\x08":
        chunks = _inflated(chain([first], chunks))
        first = next(chunks, b"")
    head = first[:8192]
    text = (len(head) - len(head.translate(None, _CONTROL))) * 100 <= len(head)
    program = first.startswith((b"\x7fELF", b"!<arch>"))
    matches = dict.fromkeys(_in_known_file(path, first[:_HEAD], text=text))
    code = _PROGRAM.fullmatch(path) is not None
    overlap, lines = b"", 0
    for chunk in chain([first], chunks):
        piece = overlap + chunk
        for offset, kind in _in_bytes(piece, text=text, program=program, code=code):
            matches[(piece.count(b"\n", 0, offset) + 1 + lines if text else 0), kind] = None
        if len(matches) >= MOST:
            break
        overlap = piece[-_OVERLAP:]
        lines += piece.count(b"\n") - overlap.count(b"\n")
    specific_lines = {line for line, kind in matches if kind != SETTING}
    return sorted((line, kind) for line, kind in matches if kind != SETTING or line not in specific_lines)[:MOST]


def _in_bytes(data: bytes, *, text: bool, program: bool, code: bool) -> Iterator[tuple[int, str]]:
    """Yield (offset, kind) of secrets, in no particular order.

    `text`: whether named values count too. `program`: whether it is a binary with symbol names. `code`: whether it is program
    text, in which an unquoted value is an expression.
    """
    lower, searched = data.lower(), 0
    for start, end in _runs(data):
        if program and data.startswith(b"_Z", start) and data[start:end].replace(b"_", b"").isalnum():
            continue  # the name of a C++ symbol ("Itanium C++ ABI", 5.1), as are most runs of torch's libraries
        # In binary data any byte may precede a token, but programs have many long names.
        yield from _tokens(data, start, end, at_words=text or program, program=program)
        yield from _near_marks(data, lower, max(searched, start - _NEAR), end + _NEAR, RULES_OF_RUNS[text], code=code)
        searched = end + _NEAR - _MARK
    yield from _near_marks(data, lower, 0, len(data), RULES[text], code=code)
    wide = data.translate(_WIDE) if not text else b""
    for match in _WIDE_TEXT.finditer(data) if b"a0" * 16 in wide or b"a000" * 16 in wide else ():
        narrow = match[0].replace(b"\0", b"")
        yield from ((match.start(), kind) for run in _runs(narrow) for _, kind in _tokens(narrow, *run, at_words=True))


def _near_marks(
    data: bytes, lower: bytes, start: int, end: int, rules: Mapping[bytes, Sequence[Rule]], *, code: bool
) -> Iterator[tuple[int, str]]:
    """Yield the secrets near the marks from `start` to `end`."""
    for mark, rules_of_mark in rules.items():
        position = lower.find(mark, start, end)
        while position >= 0:
            for rule in rules_of_mark:
                match = rule.secret(data, position, code=code)
                if match is not None:
                    yield match.start(), rule.kind
            position = lower.find(mark, position + len(mark), end)


def _tokens(data: bytes, start: int, end: int, *, at_words: bool, program: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the tokens of a run that are known by their first characters. `at_words`: whether they must be at the start of a word."""
    lead = max(0, start - _LEAD)
    region = data[lead:end]
    if not _TOKENS.keys().isdisjoint(
        _WORD.findall(region) if at_words else map(bytes, zip(region, region[1:], region[2:], strict=False))
    ):
        for start_match in (_WORD if at_words else _ANYWHERE).finditer(region):
            for needle, kind, pattern in _TOKENS.get(start_match[1], ()):
                at = lead + start_match.start(1)
                match = pattern.match(data, at) if data.startswith(needle, at) else None
                if match and not is_made_up(match[0].decode("latin-1")) and not (program and len(_SYMBOL.findall(match[0])) > 1):
                    yield at, kind
    if data[end : end + 1] == b"." and data[start] in b"MNO":
        match = _DISCORD.match(data, start, end + 60)
        if match and is_random(match[0].decode("latin-1")):
            yield start, "Discord token"


def _runs(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the long runs with a digit (paths: two digits), and of runs with a Hugging Face token."""
    table = data.translate(_IN_RUN)
    long, end = b"a" * _RUN, 0
    while (start := table.find(long, end)) >= 0:
        end = table.find(b" ", start + _RUN)
        end = len(table) if end < 0 else end
        run = data[start:end]
        digits = len(run) - len(run.translate(None, b"0123456789"))
        if len(run) <= _DATA and (digits > 1 or (digits and b"/" not in run) or b"hf_" in run):
            yield start, end


def _inflated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of a gzip file, up to a limit or the first error."""
    inflater, total = zlib.decompressobj(31), 0
    for chunk in chunks:
        data = chunk
        while data and total < _INFLATED:
            try:
                piece = inflater.decompress(data, PIECE)
            except zlib.error:
                return
            total += len(piece)
            yield piece
            data = inflater.unconsumed_tail
            if inflater.eof:
                data, inflater = inflater.unused_data, zlib.decompressobj(31)


def _in_known_file(path: str, head: bytes, *, text: bool) -> Iterator[tuple[int, str]]:
    """Yield the secrets in a file whose kind is known from its name or its first bytes."""
    for kind, magic in credentials.MAGIC:
        if head.startswith(magic):
            yield 0, kind
    if path.lower().endswith((".p12", ".pfx")) and _PKCS12.match(head):
        yield 0, "key store (PKCS #12)"
    for kind, name, pattern in _FILES if text else ():
        for match in pattern.finditer(head) if name.fullmatch(path) else ():
            value = match[1].decode("latin-1").rstrip(",;\"'")
            if not is_reference(value) and not NO_PASSWORD.fullmatch(value) and not _PLAIN_SETTING.fullmatch(value):
                yield head.count(b"\n", 0, match.start(1)) + 1, kind
