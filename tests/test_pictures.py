"""The pictures of the docs."""

from __future__ import annotations

import re
import xml.etree.ElementTree

from tests import pictures


def test_a_picture_shows_the_text_and_fetches_nothing() -> None:
    picture = pictures.svg("\x1b[31mdifferent\x1b[0m [b]<tag>[/b]\r\n", "name")
    root = xml.etree.ElementTree.fromstring(picture)
    texts = "".join(root.itertext()).replace("\xa0", " ")
    assert "different" in texts
    assert "[b]<tag>[/b]" in texts
    assert set(re.findall(r"https?://[^\"') ]+", picture)) == {"http://www.w3.org/2000/svg"}


def test_the_pictures_of_the_docs_are_pictures_of_this_kind() -> None:
    for path in (pictures.ROOT / "docs" / "pictures").iterdir():
        assert "repro-env" in "".join(xml.etree.ElementTree.parse(path).getroot().itertext()).replace("\xa0", " ")
        assert set(re.findall(r"https?://[^\"') ]+", path.read_text())) == {"http://www.w3.org/2000/svg"}
