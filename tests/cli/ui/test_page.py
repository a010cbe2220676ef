from __future__ import annotations

import os
import pty
import sys

import pytest

from repro_env.cli.ui import differences as difference
from repro_env.cli.ui.page import Page
from repro_env.compare.environments.difference import Difference, NotCompared, sort_differences

HOSTILE = "x\x1b[2J\x1b[31my\rz\nw\x9b1A\u202e"


def test_a_page_escapes_control_characters() -> None:
    page = Page(width=60, colour=False)
    page.heading(HOSTILE, HOSTILE)
    page.row(HOSTILE, HOSTILE)
    page.listing(HOSTILE, [HOSTILE])
    page.table([(HOSTILE, HOSTILE)])
    page.text(HOSTILE)
    page.verdict(HOSTILE, HOSTILE, "red")
    text = "".join(page.lines)
    assert not [char for char in text if ord(char) < 32 or 127 <= ord(char) < 160 or char == "\u202e"]
    assert "\\x1b[2J" in text


def test_lines_are_wrapped_only_on_a_terminal() -> None:
    words = "word " * 60
    narrow, piped = Page(width=50), Page()
    for page in (narrow, piped):
        page.heading("heading", words.strip())
        page.row("label", words.strip())
        page.table([("a" * 45, words.strip())])
    assert max(map(len, narrow.lines)) <= 50
    assert len(piped.lines) == 3
    assert " ".join("".join(narrow.lines[:10]).split()).count("word") >= 10


def test_a_long_word_is_complete_on_a_narrow_terminal() -> None:
    page = Page(width=10)
    page.row("digest", "sha256:" + "0123456789abcdef" * 4)
    assert "".join("".join(page.lines).removeprefix("  digest").split()) == "sha256:" + "0123456789abcdef" * 4


def test_long_lists_are_shortened_with_a_count() -> None:
    page = Page(most=2)
    page.listing("names", ["a", "b", "c", "d"])
    page.table([("a", "1"), ("b", "2"), ("c", "3")])
    assert page.lines == [
        "  names         a",
        "                b",
        "                and 2 more (--all shows them)",
        "  a  1",
        "  b  2",
        "  and 1 more (--all shows them)",
    ]


def test_only_terminals_get_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Page.of_stdout(most=None)._colour is False
    main, side = pty.openpty()
    with os.fdopen(side, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert Page.of_stdout(most=None)._colour is True
        monkeypatch.setenv("NO_COLOR", "1")
        assert Page.of_stdout(most=None)._colour is False
        monkeypatch.setenv("TERM", "dumb")
        assert Page.of_stdout(most=None)._width is None
    os.close(main)


def difference_of(level: str, what: str, left: str, right: str, **more: object) -> Difference:
    return Difference(level=level, what=what, left=left, right=right, **more)  # type: ignore[arg-type]


def test_differences_are_listed_by_level_with_a_mark() -> None:
    page = Page()
    differences = sort_differences(
        [
            difference_of("files", "bin/activate", "file", "file", why="only the prefix"),
            difference_of("distributions", "six", "", "1.17"),
            difference_of("numerics", "numpy", "2.1", "2.2"),
            difference_of("numerics", "CPU", "fast", "slow", counts=False),
            difference_of("distributions", "mdurl", "0.1", ""),
            difference_of("distributions", "m.py", "as mdurl has it", "removed", of="mdurl"),
        ]
    )
    difference.show(page, differences, [NotCompared(what="data /d", why="is not there")])
    assert page.lines == [
        "can change numbers",
        "  ~ numpy  2.1 -> 2.2",
        "  ~ CPU    fast -> slow (a fact about the machine, not part of the image)",
        "",
        "distributions",
        "  - mdurl         0.1",
        "  + six           1.17",
        "  ~ m.py [mdurl]  as mdurl has it -> removed",
        "",
        "other files of the environment",
        "  ~ bin/activate  file -> file (only the prefix)",
        "",
        "not compared",
        "  ? data /d: is not there",
    ]


def test_observations_and_digests_are_not_counted() -> None:
    differences = [
        difference_of("numerics", "numpy", "1", "2"),
        difference_of("numerics", "CPU", "1", "2", counts=False),
        difference_of("digests", "spec digest", "1", "2"),
    ]
    assert difference.summary(differences) == "1 difference, which can change numbers"
    more = [*differences, difference_of("layout", "prefix", "1", "2", moved=True), difference_of("files", "x", "", "2")]
    expected = "3 differences, 1 of them can change numbers, 1 because the environment has another prefix"
    assert difference.summary(more) == expected
    assert difference.summary(more[3:4]) == "1 difference, all because the environment has another prefix"
    assert difference.summary([]) == "0 differences"
