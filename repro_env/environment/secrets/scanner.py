"""Search files for secrets before they are copied. `schema.credentials` defines what secrets look like.

Files of any name are searched completely, in pieces. Every secret begins at or near a mark, such as `ghp_`, `password` or
`://`. `secrets.candidates` finds marks fast; `secrets.rules` has the pattern of each, and decides.
In binary files, tokens, keys and URLs are found, but not named values. The contents of gzip files are searched too; other
archives are not unpacked.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from repro_env.environment.secrets import candidates, runs
from repro_env.environment.secrets.rules import NO_PASSWORD, SETTING, Form
from repro_env.io.files import Found
from repro_env.oci.entry import Entry
from repro_env.schema import credentials
from repro_env.schema.credentials import is_reference
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
_CONTROL = bytes(byte for byte in range(32) if byte not in b"\b\t\n\f\r\x1b")
"""Characters that text and what terminals receive hardly have. Numbers as bytes have some, even if no byte is 0."""


def _bytes(pattern: str, flags: int = 0) -> re.Pattern[bytes]:
    return lazy(pattern.encode(), flags)


_PKCS12 = lazy(rb"\x30[\x80-\x84].{0,4}\x02\x01\x03\x30", re.DOTALL)
_PLAIN_SETTING = lazy(
    r"https?://[^@]*|[\w.-]+@[\w.-]+|[\w.-]+\.(?:org|com|net|io|dev)(?::\d+)?|[A-Za-z_ -]+|[\d.:-]+|[./~].*|.*(?:your|xxxx|example|changeme|\.\.\.|\*\*\*).*",
    re.IGNORECASE,
)
"""Values in a file of secrets that are not secret: addresses, paths, plain words."""
_FILES = [
    (kind, lazy(rf"(?:.*/)?(?:{name})", re.IGNORECASE), _bytes(pattern))
    for kind, name, pattern in credentials.rows(Path(__file__).with_name("files.txt"), {})
]
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
    candidates.ENGINE.expect(sum(file.size for file in listed))
    for file in listed:
        if file.kind == "file" and file.size:
            yield from (Secret(file.path, *match) for match in in_chunks(read(file), file.path))


def in_names(paths: Iterable[str]) -> Iterator[Secret]:
    """Yield the tokens in names of files and directories. A token in a directory's name is reported only once."""
    reported, names = set(), [(path, os.fsencode(path)) for path in paths]
    has_token = next(_tokens(b"\0".join(data for _, data in names)), None) is not None  # of all at once, as most have none
    for path, data in names if has_token else ():
        for start, kind in _tokens(data):
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
    form = Form(text=text, program=program, code=_PROGRAM.fullmatch(path) is not None)
    overlap, lines = b"", 0
    for chunk in chain([first], chunks):
        piece = overlap + chunk
        for offset, kind in _in_bytes(piece, form):
            matches[(piece.count(b"\n", 0, offset) + 1 + lines if text else 0), kind] = None
        if len(matches) >= MOST:
            break
        overlap = piece[-_OVERLAP:]
        lines += piece.count(b"\n", 0, len(piece) - len(overlap)) if text else 0
    specific_lines = {line for line, kind in matches if kind != SETTING}
    return sorted((line, kind) for line, kind in matches if kind != SETTING or line not in specific_lines)[:MOST]


def _in_bytes(data: bytes, form: Form) -> Iterator[tuple[int, str]]:
    """Yield (offset, kind) of secrets, in no particular order."""
    found, wide = candidates.find(data, form)
    yield from _judged(data, form, found)
    for start, narrow in runs.narrowed(data, wide):
        yield from ((start, kind) for _, kind in _tokens(narrow))


def _tokens(text: bytes) -> Iterator[tuple[int, str]]:
    """Yield (offset, kind) of the tokens that are known by their form."""
    form = Form(text=True)
    return _judged(text, form, candidates.find_tokens(text, form))


def _judged(data: bytes, form: Form, found: Iterable[candidates.Candidate]) -> Iterator[tuple[int, str]]:
    for position, rules in found:
        for rule in rules:
            match = rule.secret(data, position, form)
            if match is not None:
                yield match.start(), rule.kind


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
