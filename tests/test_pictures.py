"""The pictures of the docs."""

from __future__ import annotations

import re
import xml.etree.ElementTree

from tests import pictures, tour


def test_a_picture_shows_the_text_and_fetches_nothing() -> None:
    picture = pictures.svg("\x1b[31mdifferent\x1b[0m [b]<tag>[/b]\r\n", "name")
    root = xml.etree.ElementTree.fromstring(picture)
    texts = "".join(root.itertext()).replace("\xa0", " ")
    assert "different" in texts
    assert "[b]<tag>[/b]" in texts
    assert set(re.findall(r"https?://[^\"') ]+", picture)) == {"http://www.w3.org/2000/svg"}


def test_the_pictures_of_the_docs_are_small_shown_and_fetch_nothing() -> None:
    documents = "".join(path.read_text() for path in (tour.ROOT / "README.md", *(tour.ROOT / "docs").glob("*.md")))
    for path in pictures.PICTURES.iterdir():
        assert path.stat().st_size < 60_000
        assert f"pictures/{path.name})" in documents
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n")
        else:
            assert "repro-env" in "".join(xml.etree.ElementTree.parse(path).getroot().itertext()).replace("\xa0", " ")
            assert set(re.findall(r"https?://[^\"') ]+", path.read_text())) == {"http://www.w3.org/2000/svg"}
