"""Links among the outputs of two runs: paired as files are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from repro_env.verify.judge import Judge
from repro_env.verify.links import of_links
from tests.verify.test_pairing import NOW, THEN


def levels(left: Sequence[str], right: Sequence[str], results: Sequence[str] = ()) -> list[tuple[str, str, str | None]]:
    return [(file.path, file.now, file.level) for file in of_links(left, right, Judge(THEN, NOW, results=results))]


def test_where_a_link_leads_is_a_result_but_for_things_of_the_runs_own() -> None:
    then, now = "latest -> run-20260701_101530", "latest -> run-20260702_230102"
    assert levels([then], [now]) == [("latest", "latest", "equal except for")]
    assert levels([then], [now], ("latest",)) == [("latest", "latest", "different")]
    assert levels(["a -> version_1"], ["a -> version_2"]) == [("a", "a", "different")]


def test_links_in_a_directory_of_a_run_are_paired() -> None:
    one, other = "run-20260701_101530/w.txt", "run-20260702_230102/w.txt"
    assert levels([f"{one} -> /p/w.txt"], [f"{other} -> /p/w.txt"]) == [(one, other, "equal except for")]
    assert levels([f"{one} -> /p/w.txt"], [f"{other} -> /p/v.txt"]) == [(one, other, "different")]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (["a -> b"], ["a -> b"], [("a", "a", "bitwise")]),
        (["a -> b"], [], [("a", "", "different")]),
        ([], ["a -> b"], [("", "a", "different")]),
        (["a (Permission denied)"], [], [("a", "a", None)]),
        (["a -> b"], ["a (a socket)"], [("a", "a", None)]),
        (
            ["(the outputs are not complete: x)"],
            [],
            [("(the outputs are not complete: x)", "(the outputs are not complete: x)", None)],
        ),
    ],
)
def test_what_is_on_one_side_or_no_link(left: list[str], right: list[str], expected: list[tuple[str, str, str | None]]) -> None:
    assert levels(left, right) == expected
