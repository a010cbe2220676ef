"""The lists of libraries in this directory, `*.ini`. A section is about one library or one subject."""

from __future__ import annotations

from configparser import ConfigParser, SectionProxy
from functools import cache
from pathlib import Path


@cache
def sections(name: str) -> tuple[SectionProxy, ...]:
    """Return the sections of a list. A comment at its top describes the keys."""
    parser = ConfigParser(interpolation=None, delimiters=("=",))
    parser.read_string(Path(__file__).with_name(f"{name}.ini").read_text("utf-8"))
    return tuple(parser[title] for title in parser.sections())
