"""Links among the outputs of two runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from repro_env.compare.outputs.judge import Judge
from repro_env.compare.outputs.results import compare_links
from tests.compare.outputs.evidence import NOW, THEN


def levels(left: Sequence[str], right: Sequence[str], results: Sequence[str] = ()) -> list[tuple[str, str, str | None]]:
    return [(file.path, file.now, file.level) for file in compare_links(left, right, Judge(THEN, NOW, results=results))]


def test_the_target_of_a_link_is_a_result_and_evidence_can_explain_it() -> None:
    then, now = "latest -> run-20260701_101530", "latest -> run-20260702_230102"
    assert levels([then], [now]) == [("latest", "latest", "equal except for")]
    assert levels([then], [now], ("latest",)) == [("latest", "latest", "different")]
    assert levels(["a -> version_1"], ["a -> version_2"]) == [("a", "a", "different")]


def test_links_in_a_directory_named_after_a_time_are_paired() -> None:
    then, now = "run-20260701_101530/w.txt", "run-20260702_230102/w.txt"
    assert levels([f"{then} -> /p/w.txt"], [f"{now} -> /p/w.txt"]) == [(then, now, "equal except for")]
    assert levels([f"{then} -> /p/w.txt"], [f"{now} -> /p/v.txt"]) == [(then, now, "different")]


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
        (
            ["(the outputs are not complete: x)"],
            ["a -> b"],
            [("(the outputs are not complete: x)", "(the outputs are not complete: x)", None), ("", "a", "different")],
        ),
    ],
)
def test_links_on_one_side_differ_and_other_paths_are_not_compared(
    left: list[str], right: list[str], expected: list[tuple[str, str, str | None]]
) -> None:
    assert levels(left, right) == expected
