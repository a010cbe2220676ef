"""A page as an HTML file. `tests/e2e/test_pages.py` opens it in Chromium."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

from repro_env.cli.ui.page import Page
from repro_env.pages import html
from repro_env.pages.chart import Curve
from tests.pages.hostile import HOSTILE


class Elements(HTMLParser):
    """The elements and the attributes of a document."""

    def __init__(self, document: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page(text: str = "text") -> Page:
    made = Page(is_file=True)
    made.row("A", text, indent=0)
    made.verdict(text, text, "red")
    made.heading(text, text)
    made.row(text, text)
    made.row("", "more")
    made.listing(text, [text, text])
    made.table([(text, "1")] * 12, header=(text, "B"))
    made.table([(text,)])
    made.text(text)
    made.chart(text, [Curve(text, [1.0, 2.0]), Curve("b", [2.0, math.nan])], 1)
    return made


def test_text_is_never_markup() -> None:
    expected = Elements(html.render("text", page().parts, ["text"])).tags
    for text in HOSTILE:
        parts = page(text)
        title = parts.lines[0].removeprefix("A").lstrip()
        found = Elements(html.render(title, parts.parts, [title]))
        assert [tag for tag, _ in found.tags] == [tag for tag, _ in expected], text
        for (tag, attributes), (_, wanted) in zip(found.tags, expected, strict=True):
            assert attributes.keys() == wanted.keys(), (tag, text)
            assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
        shown = "\n".join(parts.lines)
        assert (text in found.text) == (text in shown)


def test_the_file_has_all_parts_and_no_requests() -> None:
    document = html.render("title", page().parts, ["repro-env verify"])
    found = Elements(document)
    assert (found.count("h1"), found.count("h2"), found.count("table"), found.count("svg")) == (1, 2, 2, 1)
    assert found.count("dl") == 3, "a row without a label belongs to the one before"
    assert not {"link", "img", "iframe", "object", "a", "form", "base"} & {tag for tag, _ in found.tags}
    (policy,) = [attributes["content"] or "" for tag, attributes in found.tags if attributes.get("http-equiv")]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[\w+/]+='; script-src 'sha256-[\w+/]+='; base-uri 'none'; form-action 'none'",
        policy,
    )
    assert "http" not in document.decode().replace("http-equiv", "")


def test_a_verdict_is_the_first_of_its_section() -> None:
    tags = [(tag, attributes.get("class")) for tag, attributes in Elements(html.render("title", page().parts)).tags]
    assert tags.index(("p", "verdict red")) < tags.index(("dl", None))


def test_the_same_page_has_the_same_bytes() -> None:
    assert html.render("title", page().parts) == html.render("title", page().parts)


def test_a_page_of_long_curves_is_small() -> None:
    made = Page(is_file=True)
    for number in range(10):
        made.chart(f"curve {number}", [Curve("x", [math.sin(index * number) for index in range(10_000)])])
    assert len(html.render("title", made.parts)) < 300_000
