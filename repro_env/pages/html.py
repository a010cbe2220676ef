"""A page as one HTML file without requests: its style and its script are in it, and nothing else may run (CSP)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from repro_env.io import package
from repro_env.pages import chart, graph
from repro_env.pages.parts import Fields, Heading, Link, Part, Strip, Verdict

if TYPE_CHECKING:
    from jinja2 import Template


class _Section(NamedTuple):
    heading: Heading | None
    parts: list[Part]


def render(title: str, parts: Iterable[Part], commands: Iterable[str] = ()) -> bytes:
    """Return the file. The same page gives the same bytes. `commands`: what repeats the result, one line each."""
    style, script = (package.templates() / "page.css").read_text(), (package.templates() / "page.js").read_text()
    policy = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; base-uri 'none'; form-action 'none'"
    values = {"title": title, "sections": [*_sections(parts)], "commands": [*commands]}
    return _template().render(**values, style=style, script=script, policy=policy).lstrip().encode("utf-8", "replace")


def _sections(parts: Iterable[Part]) -> Iterator[_Section]:
    """Group the parts by their headings. A verdict is the first of its section."""
    section = _Section(None, [])
    for part in parts:
        if isinstance(part, Heading):
            if section.parts or section.heading:
                yield section
            section = _Section(part, [])
        elif isinstance(part, Fields) and not part.label and section.parts and isinstance(before := section.parts[-1], Fields):
            section.parts[-1] = before._replace(lines=[*before.lines, *part.lines])
        else:
            section.parts.insert(0 if isinstance(part, Verdict) else len(section.parts), part)
    yield section


def _source(text: str) -> str:
    """The CSP source of an inline text (CSP level 3, "hash-source")."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(package.templates()),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    environment.filters["kind"] = lambda part: type(part).__name__
    environment.filters["chart"], environment.filters["graph"] = chart.svg, graph.svg
    return environment.get_template("page.html.j2")


def _cell(text: str) -> str:
    """The markup of a cell, whose text is escaped."""
    if isinstance(text, Link):
        return f'<a href="{escape(text.target)}">{escape(text)}</a>'
    if isinstance(text, Strip):
        squares = "".join(f'<i class="{escape(level.partition(" ")[0])}"></i>' for level in text.split(", ") if level)
        return f'<span class="strip" role="img" aria-label="{escape(text or "not verified")}">{squares}</span> {escape(text.rpartition(", ")[2])}'
    return escape(text)
