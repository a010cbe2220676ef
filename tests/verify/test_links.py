"""Links among the outputs of two runs: paired as files are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from repro_env.verify.links import of_links

SAVED = ("wandb/run-20260701_101530-abc12def/files/w.txt", "wandb/run-20260702_230102-9z8y7x6w/files/w.txt")


def levels(left: Sequence[str], right: Sequence[str], results: Sequence[str] = ()) -> list[tuple[str, str, str | None]]:
    return [(one.path, one.now, one.level) for one in of_links(left, right, results, ())]


def test_links_in_folders_of_a_run_are_paired() -> None:
    one, other = SAVED
    (found,) = of_links([f"{one} -> /p/w.txt"], [f"{other} -> /p/w.txt"], (), ())
    assert (found.path, found.now, found.level) == (one, other, "bitwise")
    assert found.apart == (f"its path is {other} now",)
    assert levels([f"{one} -> /p/w.txt"], [f"{other} -> /p/v.txt"]) == [(one, other, "different")]
    log = "logs/debug.log -> /h/.cache/wandb/logs/core-debug-20260701_101530.log"
    assert levels([log], [log.replace("20260701_101530", "20260702_230102")]) == [("logs/debug.log", "logs/debug.log", "bitwise")]


def test_what_the_user_names_is_not_masked() -> None:
    then, now = "latest -> run-20260701_101530-abc12def", "latest -> run-20260702_230102-9z8y7x6w"
    assert levels([then], [now]) == [("latest", "latest", "bitwise")]
    assert levels([then], [now], ("latest",)) == [("latest", "latest", "different")]


def test_those_of_one_name_are_paired_where_they_lead_to_the_same_and_else_named() -> None:
    left = [f"run-{n}/last -> a{n}" for n in (1, 2)]
    assert levels(left, [f"run-{n}/last -> a{n - 2}" for n in (3, 4)]) == [
        ("run-1/last", "run-3/last", "bitwise"),
        ("run-2/last", "run-4/last", "bitwise"),
    ]
    unclear = levels(left, [f"run-{n}/last -> b{n}" for n in (3, 4)])
    assert [level for *_, level in unclear] == [None] * 4


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
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
