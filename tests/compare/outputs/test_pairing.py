from __future__ import annotations

from collections.abc import Sequence

from repro_env.compare.outputs.comparison import Pair, pair
from repro_env.compare.outputs.judge import Judge
from tests.compare.outputs.evidence import NOW, THEN


def pair_paths(left: Sequence[str], right: Sequence[str]) -> tuple[tuple[Pair, ...], tuple[str, ...], tuple[str, ...]]:
    found = pair(dict.fromkeys(left, "x"), dict.fromkeys(right, "x"), Judge(THEN, NOW).pair_names)
    return found.pairs, found.missing, found.new


def test_equal_paths_are_pairs() -> None:
    assert pair_paths("ab", "ab") == ((Pair("a", "a", True), Pair("b", "b", True)), (), ())


def test_paths_with_times_of_their_runs_are_pairs() -> None:
    then, now = "out/2026-07-01/10-15-30/w.pt", "out/2026-07-02/11-00-00/w.pt"
    assert pair_paths([then, "gone.csv"], [now, "new.csv"]) == ((Pair(then, now, True),), ("gone.csv",), ("new.csv",))


def test_several_paths_with_times_are_paired_in_their_order() -> None:
    then = [f"out/2026-07-01/10-15-{second}/w" for second in (31, 30)]
    now = [f"out/2026-07-02/11-00-{second}/w" for second in (58, 59)]
    assert pair_paths(then, now) == ((Pair(then[1], now[0], True), Pair(then[0], now[1], True)), (), ())
    assert pair_paths(then, now[:1]) == ((), tuple(sorted(then)), tuple(now[:1])), "it is unknown which path is missing"


def test_paths_with_unexplained_counters_ids_and_dates_are_not_paired() -> None:
    for then, now in (("version_0/w", "version_1/w"), ("run-abcd1234/w", "run-dcba4321/w"), ("2026-07-01.csv", "2026-07-02.csv")):
        assert pair_paths([then], [now]) == ((), (then,), (now,))
