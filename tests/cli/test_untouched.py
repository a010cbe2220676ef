from __future__ import annotations

from itertools import pairwise

import pytest

from repro_env.cli import exec as one_run
from repro_env.cli import sensitivity, untouched

HELP = """\
Usage: x [OPTIONS]

One sentence that is a little longer than the width.

  x --seed 7 -- train.py       an example that stays as it is

Options:
  --seed N                     The first of two lines
                               that belong together.
  --json                       Short.

The end.
"""


def test_options_stand_beside_their_text_where_there_is_room() -> None:
    assert untouched.fitted(HELP, 72) == HELP.rstrip("\n").replace(
        "  --seed N                     The first of two lines\n                               that belong together.",
        "  --seed N                   The first of two lines that belong\n                             together.",
    ).replace("  --json                       Short.", "  --json                     Short.")


def test_options_stand_above_their_text_in_a_narrow_terminal() -> None:
    assert untouched.fitted(HELP, 40).splitlines() == [
        "Usage: x [OPTIONS]",
        "",
        "One sentence that is a little longer",
        "than the width.",
        "",
        "  x --seed 7 -- train.py       an example that stays as it is",
        "",
        "Options:",
        "  --seed N",
        "      The first of two lines that belong",
        "      together.",
        "  --json",
        "      Short.",
        "",
        "The end.",
    ]


@pytest.mark.parametrize("text", [one_run.HELP, sensitivity.HELP])
@pytest.mark.parametrize("width", [40, 71, 72, 80, 100])
def test_no_word_is_lost_at_any_width(text: str, width: int) -> None:
    fitted = untouched.fitted(text, width)
    assert fitted.split() == text.split()
    assert [line for line in fitted.splitlines() if len(line) > width and not line.startswith("  repro-env ")] == []
    assert ("", "") not in list(pairwise(fitted.splitlines()))
