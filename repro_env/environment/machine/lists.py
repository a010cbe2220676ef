"""The lists of libraries in this directory, `*.ini`. A section is about one library or one subject."""

from __future__ import annotations

from functools import cache
from pathlib import Path


class Section(dict[str, str]):
    """The values of a section by key. Those of several lines have them all, one after the other."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


@cache
def sections(name: str) -> tuple[Section, ...]:
    """Return the sections of a list. A comment at its top describes the keys."""
    found: list[Section] = []
    key = ""
    for line in Path(__file__).with_name(f"{name}.ini").read_text("utf-8").splitlines():
        if line.startswith("["):
            found.append(Section(line.strip("[]")))
        elif line.startswith(" "):
            found[-1][key] += f" {line.strip()}"
        elif line and not line.startswith("#"):
            key, _, value = map(str.strip, line.partition("="))
            found[-1][key] = value
    return tuple(found)
