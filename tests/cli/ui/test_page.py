from __future__ import annotations

import contextlib
import os
import pty
import re
import sys

import pytest

from repro_env.cli.ui import differences as difference
from repro_env.cli.ui.page import Page, table
from repro_env.compare.environments.difference import Difference, NotCompared, sort_differences

HOSTILE = "x\x1b[2J[red]y[/red]\rz\nw\x9b1A\u202e:smile:"
ESCAPED = r"x\x1b[2J[red]y[/red]\rz\nw\x9b1A\u202e:smile:"


def test_a_page_escapes_control_characters_and_markup() -> None:
    page = Page()
    page.heading(HOSTILE, HOSTILE)
    page.row(HOSTILE, HOSTILE)
    page.listing(HOSTILE, [HOSTILE])
    page.table([(HOSTILE, HOSTILE)], header=(HOSTILE, HOSTILE))
    page.text(HOSTILE)
    page.verdict(HOSTILE, HOSTILE, "red")
    drawn = page.drawn(200)
    codes = set(re.findall("\x1b\\[([0-9;]*)m", drawn))
    assert codes == {"0", "1", "31"}, "only the styles of the page"
    for text in ("".join(page.lines), re.sub("\x1b\\[[0-9;]*m|\n", "", drawn)):
        assert not [char for char in text if ord(char) < 32 or 127 <= ord(char) < 160 or char == "\u202e"]
        assert text.count(ESCAPED) == 13


def test_lines_are_wrapped_only_on_a_terminal() -> None:
    words = "word " * 60
    page = Page()
    page.heading("heading", words.strip())
    page.row("label", words.strip())
    page.table([("a" * 45, words.strip())])
    drawn = re.sub("\x1b\\[[0-9;]*m", "", page.drawn(50)).splitlines()
    assert max(map(len, drawn)) <= 50
    assert "\n".join(drawn).count("word") == 180
    assert drawn[0].startswith("heading  word word")
    assert drawn[1].startswith("         word word"), "further lines are indented"
    assert len(page.lines) == 3


def test_a_long_word_is_complete_on_a_narrow_terminal() -> None:
    page = Page()
    page.row("digest", "sha256:" + "0123456789abcdef" * 4)
    assert "".join(page.drawn(40).removeprefix("  digest").split()) == "sha256:" + "0123456789abcdef" * 4


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


def printed(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """What a page prints on a terminal."""
    main, side = pty.openpty()
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "60", **variables}.items():
        monkeypatch.setenv(name, value)
    page = Page()
    page.verdict("same", "[bold]x[/bold] " + "word " * 11 + "word", "green")
    with os.fdopen(side, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        page.print()
    text = b""
    with contextlib.suppress(OSError):  # the end
        while chunk := os.read(main, 4096):
            text += chunk
    os.close(main)
    return text.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_but_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    line = "same: [bold]x[/bold]" + " word" * 12 + "\n"
    wrapped = "same: [bold]x[/bold]" + " word" * 8 + "\n" + "word word word word\n"
    coloured = printed(monkeypatch, TERM="xterm")
    assert coloured.count("\x1b[32m") == 2
    assert re.sub(" *\x1b\\[[0-9;]*m", "", coloured) == wrapped
    assert printed(monkeypatch, TERM="xterm", NO_COLOR="1") == wrapped
    assert printed(monkeypatch, TERM="dumb") == line
    monkeypatch.undo()
    monkeypatch.setenv("FORCE_COLOR", "1")
    page = Page()
    page.verdict("same", "[bold]x[/bold] " + "word " * 11 + "word", "green")
    page.print()
    assert capsys.readouterr().out == line


def test_a_table_is_aligned_and_has_no_trailing_space(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("numpy", "2.3.5", ""), ("scikit-learn", "1.9.1", "edited"), ("x",), ("long" * 20, "1")]
    table(rows, header=("name", "version", "note")).print()
    assert capsys.readouterr().out.splitlines() == [
        "name          version  note",
        "numpy         2.3.5",
        "scikit-learn  1.9.1    edited",
        "x",
        "long" * 20 + "  1",
    ]
    table([]).print()
    assert capsys.readouterr().out == ""


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
