"""A strict parser for the Dockerfiles that repro-env writes. It refuses whatever else a builder may accept."""

from __future__ import annotations

import json
import re

from repro_env.delivery.dockerfile.instruction import Command, Copy, From, Instruction, Run, Set, Workdir, line
from repro_env.schema.errors import SpecError


def parse(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile that `line` wrote, without comments and empty lines.

    Raises `SpecError` for anything else that a builder may accept: directives, continuations, other forms.
    """
    instructions: list[Instruction] = []
    for number, row in enumerate(text.split("\n")):
        if not row or row == "#" or row.startswith("# "):
            if number == 0 and re.match(r"#\s*\w+\s*=", row):
                raise _error(row)  # a parser directive
            continue
        if not all(character == " " or character.isprintable() for character in row) or row.rstrip(" ").endswith("\\"):
            raise _error(row)
        instruction = _parsed(row)
        if line(instruction) != row:
            raise _error(row)
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
    raise _error(row)


def _array(text: str, row: str) -> list[str]:
    try:
        words = json.loads(text)
    except ValueError:
        raise _error(row) from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise _error(row)
    return words


def _error(row: str) -> SpecError:
    return SpecError(f"repro-env does not write this line: {row!r}", where="Dockerfile")
