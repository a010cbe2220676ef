"""Dockerfile instructions as data: a function that quotes them, and a strict parser for its output.

A Dockerfile mixes several grammars: parser directives, line continuations, heredocs, JSON forms that silently become
shell forms if they are not valid JSON, and words in which `$`, quotes and backslashes are special. So no value of a spec
is pasted into one. This module writes each instruction as one line of printable ASCII. The finished file is parsed and
must give the same instructions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from repro_env.schema.errors import SpecError

_STAGE = re.compile(r"[a-z][a-z0-9-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
_PLACE = re.compile(r"/(?:[A-Za-z0-9_./@+,:=~ -]*[A-Za-z0-9_./@+,:=~-])?")


class From(msgspec.Struct, frozen=True):
    """`FROM image AS stage`. `image` is `scratch` or an earlier stage."""

    image: str
    stage: str = ""


class Copy(msgspec.Struct, frozen=True):
    """`COPY`, or `ADD` to unpack a tar: copy paths of the context or of another stage into the image."""

    sources: tuple[str, ...]
    target: str
    stage: str = ""
    """The stage that has the sources; empty for the build context."""
    unpack: bool = False


class Run(msgspec.Struct, frozen=True):
    """`RUN` without a shell: its words are neither expanded nor split."""

    argv: tuple[str, ...]


class Set(msgspec.Struct, frozen=True):
    """`ENV` or `LABEL`: one name with its value."""

    word: str
    name: str
    value: str


class Workdir(msgspec.Struct, frozen=True):
    """`WORKDIR path`."""

    path: str


class Command(msgspec.Struct, frozen=True):
    """`CMD` without a shell: what a container runs by default."""

    argv: tuple[str, ...]


Instruction = From | Copy | Run | Set | Workdir | Command


def line(instruction: Instruction) -> str:
    """Return the instruction as one line. Raises `SpecError` if that is impossible."""
    if isinstance(instruction, From):
        return f"FROM {_stage(instruction.image)}" + (f" AS {_stage(instruction.stage)}" if instruction.stage else "")
    if isinstance(instruction, Copy):
        # Even the JSON form of COPY and ADD expands variables and wildcards, so only plain paths are allowed.
        words = [*map(_plain, instruction.sources), _place(instruction.target)]
        from_stage = f" --from={_stage(instruction.stage)}" if instruction.stage else ""
        return f"{'ADD' if instruction.unpack else 'COPY'}{from_stage} {_json(words)}"
    if isinstance(instruction, Run):
        return f"RUN {_json(instruction.argv)}"
    if isinstance(instruction, Set):
        if instruction.word not in ("ENV", "LABEL") or not _NAME.fullmatch(instruction.name):
            raise _bad(f"{instruction.word} {instruction.name}")
        return f"{instruction.word} {instruction.name}={quoted(instruction.value)}"
    if isinstance(instruction, Command):
        return f"CMD {_json(instruction.argv)}"
    return f"WORKDIR {_place(instruction.path)}"


def quoted(text: str) -> str:
    """Return a value in double quotes with `\\`, `"` and `$` escaped, so that a builder expands nothing.

    Raises `SpecError` for a control character or line separator, which may end the line for some parsers.
    """
    if not all(character == " " or character.isprintable() for character in text):
        raise _bad(text)
    return '"' + re.sub(r'[\\"$]', r"\\\g<0>", text) + '"'


def _json(words: Sequence[str]) -> str:
    """Return a JSON array in ASCII. `<` is escaped, so that no parser sees a heredoc."""
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
    """Check the target of a copy: builders expand variables there, but no wildcards."""
    if not _PLACE.fullmatch(path):
        raise _bad(path)
    return path


def _stage(name: str) -> str:
    if not _STAGE.fullmatch(name):
        raise _bad(name)
    return name


def _bad(what: str) -> SpecError:
    return SpecError(f"a Dockerfile cannot express {what!r}", where="Dockerfile", hint="capture again without this value")


def parse(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile that `line` wrote, without comments and empty lines.

    Raises `SpecError` for anything else that a builder may accept: directives, continuations, other forms.
    """
    instructions: list[Instruction] = []
    for number, row in enumerate(text.split("\n")):
        if not row or row == "#" or row.startswith("# "):
            if number == 0 and re.match(r"#\s*\w+\s*=", row):
                raise _bad(row)  # a parser directive
            continue
        if not all(character == " " or character.isprintable() for character in row) or row.rstrip(" ").endswith("\\"):
            raise _bad(row)
        instruction = _parsed(row)
        if line(instruction) != row:
            raise _bad(row)
        instructions.append(instruction)
    return instructions


def _parsed(row: str) -> Instruction:
    word, _, arguments = row.partition(" ")
    if word == "FROM" and (match := re.fullmatch(r"(\S+)(?: AS (\S+))?", arguments)):
        return From(match[1], match[2] or "")
    if word in ("COPY", "ADD") and (match := re.fullmatch(r"(?:--from=(\S+) )?(\[.*\])", arguments)):
        *sources, target = _array(match[2], row)
        return Copy(tuple(sources), target, match[1] or "", word == "ADD")
    if word == "RUN":
        return Run(tuple(_array(arguments, row)))
    if word in ("ENV", "LABEL") and (match := re.fullmatch(r'([^=\s]+)="((?:[^"\\$]|\\["\\$])*)"', arguments)):
        return Set(word, match[1], re.sub(r"\\(.)", r"\1", match[2]))
    if word == "CMD":
        return Command(tuple(_array(arguments, row)))
    if word == "WORKDIR":
        return Workdir(arguments)
    raise _bad(row)


def _array(text: str, row: str) -> list[str]:
    try:
        words = json.loads(text)
    except ValueError:
        raise _bad(row) from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise _bad(row)
    return words
