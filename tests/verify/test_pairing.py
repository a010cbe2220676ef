from __future__ import annotations

from collections.abc import Sequence

from repro_env.verify.evidence import Evidence
from repro_env.verify.judge import Judge
from repro_env.verify.pairing import Pair, pair

DAY = 86400.0
THEN = Evidence(started=1782864000.0, ended=1782864000.0 + DAY - 1)
NOW = Evidence(started=1782950400.0, ended=1782950400.0 + DAY - 1)
"""All of 2026-07-01, and of 2026-07-02, in UTC."""


def paired(left: Sequence[str], right: Sequence[str]) -> tuple[tuple[Pair, ...], tuple[str, ...], tuple[str, ...]]:
    found = pair(left, right, Judge(THEN, NOW).pair_names)
    return found.pairs, found.missing, found.new


def test_equal_paths_are_pairs() -> None:
    assert paired("ab", "ab") == ((Pair("a", "a"), Pair("b", "b")), (), ())


def test_a_time_of_the_own_run_in_a_path_is_explained() -> None:
    then, now = "out/2026-07-01/10-15-30/w.pt", "out/2026-07-02/11-00-00/w.pt"
    assert paired([then, "gone.csv"], [now, "new.csv"]) == ((Pair(then, now),), ("gone.csv",), ("new.csv",))


def test_several_names_of_one_kind_pair_in_their_order() -> None:
    then = [f"out/2026-07-01/10-15-{second}/w" for second in (31, 30)]
    now = [f"out/2026-07-02/11-00-{second}/w" for second in (58, 59)]
    assert paired(then, now) == ((Pair(then[1], now[0]), Pair(then[0], now[1])), (), ())
    assert paired(then, now[:1]) == ((), tuple(sorted(then)), tuple(now[:1])), "one is missing, and nobody knows which"


def test_a_counter_an_id_and_a_date_of_nobody_are_other_names() -> None:
    for then, now in (("version_0/w", "version_1/w"), ("run-abcd1234/w", "run-dcba4321/w"), ("2026-07-01.csv", "2026-07-02.csv")):
        assert paired([then], [now]) == ((), (then,), (now,))
