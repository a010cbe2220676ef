"""Dockerfile instructions as data: one function that quotes, and a strict reader of what it wrote.

A Dockerfile has several grammars in one: parser directives, line continuations, heredocs, JSON forms that silently
become shell forms when they are no JSON, and words in which `$`, quotes and backslashes mean something. Nothing of a
spec is ever pasted into one. Each instruction is one line of printable ASCII, made here; what was laid out is read back
and has to be the same instructions again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from repro_env.model.errors import SpecError

_STAGE = re.compile(r"[a-z][a-z0-9-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
_PLACE = re.compile(r"/(?:[A-Za-z0-9_./@+,:=~ -]*[A-Za-z0-9_./@+,:=~-])?")


class From(msgspec.Struct, frozen=True):
    """`FROM image AS stage`. `image` is `scratch` or an earlier stage."""

    image: str
    stage: str = ""


class Copy(msgspec.Struct, frozen=True):
    """`COPY` or, to unpack a tar, `ADD`: paths of the context, or of another stage, to one of the image."""

    sources: tuple[str, ...]
    target: str
    stage: str = ""
    """Where the sources are; empty: in the context."""
    unpack: bool = False


class Run(msgspec.Struct, frozen=True):
    """`RUN` without a shell: nothing of its words is expanded or split."""

    argv: tuple[str, ...]


class Set(msgspec.Struct, frozen=True):
    """`ENV` or `LABEL`: one name with its value."""

    word: str
    name: str
    value: str


class Workdir(msgspec.Struct, frozen=True):
    path: str


class Command(msgspec.Struct, frozen=True):
    """`CMD` without a shell: what a container runs by default."""

    argv: tuple[str, ...]


Instruction = From | Copy | Run | Set | Workdir | Command


def line(one: Instruction) -> str:
    """The instruction as one line. Raises `SpecError` for what no line can say."""
    if isinstance(one, From):
        return f"FROM {_stage(one.image)}" + (f" AS {_stage(one.stage)}" if one.stage else "")
    if isinstance(one, Copy):
        # Even the JSON form of COPY and ADD expands variables and takes wildcards: our own plain paths only.
        words = [*map(_plain, one.sources), _place(one.target)]
        given = f" --from={_stage(one.stage)}" if one.stage else ""
        return f"{'ADD' if one.unpack else 'COPY'}{given} {_json(words)}"
    if isinstance(one, Run):
        return f"RUN {_json(one.argv)}"
    if isinstance(one, Set):
        if one.word not in ("ENV", "LABEL") or not _NAME.fullmatch(one.name):
            raise _bad(f"{one.word} {one.name}")
        return f"{one.word} {one.name}={quoted(one.value)}"
    if isinstance(one, Command):
        return f"CMD {_json(one.argv)}"
    return f"WORKDIR {_place(one.path)}"


def quoted(text: str) -> str:
    """A value in double quotes, in which a builder expands nothing: `\\`, `"` and `$` are escaped.

    Raises `SpecError` for a control character or a line separator, which end the line for one reader or another.
    """
    if not all(character == " " or character.isprintable() for character in text):
        raise _bad(text)
    return '"' + re.sub(r'[\\"$]', r"\\\g<0>", text) + '"'


def _json(words: Sequence[str]) -> str:
    """A JSON array in ASCII, for which there is one reading; `<` escaped, so that no reader sees a heredoc."""
    for word in words:
        if not all(character == " " or character.isprintable() for character in word):
            raise _bad(word)
        try:
            word.encode()
        except UnicodeEncodeError:
            raise _bad(word) from None
    if not words or not all(words):
        raise _bad(repr(words))
    return json.dumps(list(words)).replace("<", "\\u003c")


def _plain(path: str) -> str:
    if not _PLAIN.fullmatch(path):
        raise _bad(path)
    return path


def _place(path: str) -> str:
    """Where something is put: builders expand variables there, and no wildcards."""
    if not _PLACE.fullmatch(path):
        raise _bad(path)
    return path


def _stage(name: str) -> str:
    if not _STAGE.fullmatch(name):
        raise _bad(name)
    return name


def _bad(what: str) -> SpecError:
    return SpecError(f"has {what!r}, which no Dockerfile can say", where="Dockerfile", hint="capture again without it")


def parse(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile that `line` wrote, comments and empty lines left out.

    Raises `SpecError` for everything else that a builder might take: directives, continuations, other forms.
    """
    found: list[Instruction] = []
    for number, row in enumerate(text.split("\n")):
        if not row or row == "#" or row.startswith("# "):
            if number == 0 and re.match(r"#\s*\w+\s*=", row):
                raise _bad(row)  # a parser directive
            continue
        if not all(character == " " or character.isprintable() for character in row) or row.rstrip(" ").endswith("\\"):
            raise _bad(row)
        one = _parsed(row)
        if line(one) != row:
            raise _bad(row)
        found.append(one)
    return found


def _parsed(row: str) -> Instruction:
    word, _, rest = row.partition(" ")
    if word == "FROM" and (match := re.fullmatch(r"(\S+)(?: AS (\S+))?", rest)):
        return From(match[1], match[2] or "")
    if word in ("COPY", "ADD") and (match := re.fullmatch(r"(?:--from=(\S+) )?(\[.*\])", rest)):
        *sources, target = _array(match[2], row)
        return Copy(tuple(sources), target, match[1] or "", word == "ADD")
    if word == "RUN":
        return Run(tuple(_array(rest, row)))
    if word in ("ENV", "LABEL") and (match := re.fullmatch(r'([^=\s]+)="((?:[^"\\$]|\\["\\$])*)"', rest)):
        return Set(word, match[1], re.sub(r"\\(.)", r"\1", match[2]))
    if word == "CMD":
        return Command(tuple(_array(rest, row)))
    if word == "WORKDIR":
        return Workdir(rest)
    raise _bad(row)


def _array(text: str, row: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        raise _bad(row) from None
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise _bad(row)
    return found
