from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from repro_env.runs import retention
from repro_env.runs.records import ids
from repro_env.runs.records.records import Run, State
from repro_env.runs.retention import Facts
from repro_env.schema.errors import RecordError, UsageError
from repro_env.schema.run import Metric, Number, Parent
from tests.runs.records.examples import end, start

FRIDAY = datetime(2026, 7, 3, 12, tzinfo=timezone.utc)


def run(
    number: int,
    *,
    started: datetime | str = FRIDAY,
    state: State = "done",
    metrics: dict[str, Number] | None = None,
    parents: Sequence[int] = (),
    resumed: Sequence[int] = (),
) -> Run:
    """Return a run. A higher number is a newer run. `metrics`: name -> value. `parents`, `resumed`: numbers of runs."""
    text = started if isinstance(started, str) else f"{started:%Y-%m-%dT%H:%M:%S}.000Z"
    named = tuple(Parent(id=id_of(parent), record=None, how="named") for parent in parents)
    from_checkpoints = tuple(Parent(id=id_of(parent), record=None, how="resumed") for parent in resumed)
    run_start = msgspec.structs.replace(start(id_of(number)), started=text, parents=named)
    run_end = None
    if state == "done":
        values = tuple(
            Metric(name=name, file="m.json", count=1, last=value, least=value, most=value)
            for name, value in (metrics or {}).items()
        )
        run_end = msgspec.structs.replace(end(id_of(number)), metrics=values, resumed=from_checkpoints)
    return Run(Path(f"/runs/20260701T101507Z-train-{number:08x}"), run_start, run_end, state)


def id_of(number: int) -> str:
    return ids.uuid7(number, number.to_bytes(10, "big"))


def reasons(
    runs: Sequence[Run], *rules: str, tags: dict[int, str] | None = None, held: dict[int, str] | None = None
) -> dict[int, str]:
    """Plan with these rules, and return the numbers of the runs to keep with their reasons."""
    facts = [
        Facts(run, tuple(filter(None, [(tags or {}).get(number_of(run))]))) for run in sorted(runs, key=number_of, reverse=True)
    ]
    plan = retention.plan(
        facts, [retention.parse_rule(rule) for rule in rules], {id_of(number): why for number, why in (held or {}).items()}
    )
    assert sorted([*(number_of(kept.run) for kept in plan.keep), *map(number_of, plan.remove)]) == sorted(map(number_of, runs))
    return {number_of(kept.run): ", ".join(kept.why) for kept in plan.keep}


def number_of(run: Run) -> int:
    return int(run.short, 16)


@pytest.mark.parametrize(
    ("text", "metric", "kept"),
    [
        ("last=3", "x", [4, 3, 2]),
        ("every=30m", "x", [4, 3, 1]),
        ("every=2w", "x", [4]),
        ("tagged", "x", []),
        ("best=val_loss:min", "val_loss", [1]),
        ("best=acc:max:3", "acc", [4, 3, 2]),
        ("best=acc:min", "acc", [1]),
        ("best=eval:acc:max:12", "eval:acc", [4, 3, 2, 1]),
        ("best=m.json:val/accuracy:max", "val/accuracy", [4]),
        ("best=x=y:max", "x=y", [4]),
    ],
)
def test_a_rule_keeps_these_runs(text: str, metric: str, kept: list[int]) -> None:
    minutes = (0, 40, 50, 100)
    runs = [
        run(number, started=FRIDAY + timedelta(minutes=minutes[number - 1]), metrics={metric: number}) for number in (1, 2, 3, 4)
    ]
    assert list(reasons(runs, text)) == kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        "last",
        "last=0",
        "last=-1",
        "last=x",
        "every=",
        "every=1",
        "every=1y",
        "every=0d",
        "best",
        "best=",
        "best=:max",
        "best=acc",
        "best=acc:3",
        "tagged=1",
        "all",
    ],
)
def test_an_invalid_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--keep"):
        retention.parse_rule(text)


def test_the_newest_runs_are_kept_even_if_interrupted() -> None:
    runs = [run(1), run(2), run(3, state="interrupted"), run(4)]
    assert reasons(runs, "last=2") == {4: "last=2", 3: "last=2"}


def test_the_newest_finished_run_of_each_period_is_kept() -> None:
    days = [FRIDAY + timedelta(days=day) for day in (0, 0, 1, 1, 4)]
    runs = [run(number, started=day) for number, day in enumerate(days, 1)]
    runs[3] = run(4, started=days[3], state="interrupted")
    assert sorted(reasons(runs, "every=1d")) == [2, 3, 5]
    # The last run is four days later, on Tuesday of the next week.
    assert sorted(reasons(runs, "every=1w")) == [3, 5]


def test_the_newest_run_of_a_period_without_finished_runs_is_kept() -> None:
    runs = [run(1, state="interrupted"), run(2, state="interrupted")]
    assert sorted(reasons(runs, "every=1d")) == [2]


def test_periods_do_not_depend_on_the_current_time() -> None:
    """Days start at midnight UTC, so the runs that were reasons once are reasons the next time."""
    runs = [run(number, started=FRIDAY + timedelta(hours=5 * number)) for number in range(1, 12)]
    first = sorted(reasons(runs, "every=1d"))
    remaining = [run for run in runs if number_of(run) in first]
    assert sorted(reasons(remaining, "every=1d")) == first


def test_the_runs_with_the_best_finite_values_are_kept() -> None:
    values: list[Number] = [0.5, 0.1, "nan", 0.3, "-inf", 0.1]
    runs = [run(number, metrics={"val_loss": value}) for number, value in enumerate(values, 1)]
    assert sorted(reasons(runs, "best=val_loss:min")) == [6]
    assert sorted(reasons(runs, "best=val_loss:min:3")) == [2, 4, 6]
    assert reasons(runs, "best=val_loss:max") == {1: "best=val_loss:max 0.5, rank 1 of 4"}


def with_metrics(number: int, *metrics: Metric) -> Run:
    finished = run(number)
    assert finished.end is not None
    return msgspec.structs.replace(finished, end=msgspec.structs.replace(finished.end, metrics=metrics))


def test_the_best_value_of_a_series_counts_and_not_the_last() -> None:
    def series(number: int, last: float, most: float) -> Run:
        return with_metrics(number, Metric(name="acc", file="m.json", count=9, last=last, least=0.0, most=most))

    assert sorted(reasons([series(1, 0.1, 0.9), series(2, 0.8, 0.8)], "best=acc:max")) == [1]


def test_a_metric_in_several_files_is_selected_by_its_file() -> None:
    first = with_metrics(
        1,
        Metric(name="acc", file="m.json", count=1, last=0.2, least=0.2, most=0.2),
        Metric(name="acc", file="train.csv", count=1, last=0.0, least=0.0, most=0.05),
    )
    second = run(2, metrics={"acc": 0.1})
    assert sorted(reasons([first, second], "best=train.csv:acc:min")) == [1]
    assert sorted(reasons([first, second], "best=m.json:acc:min")) == [2]


def test_a_mistyped_metric_removes_nothing() -> None:
    with pytest.raises(RecordError, match="no run has") as caught:
        reasons([run(1, metrics={"val_loss": 1.0, "acc": 1.0})], "last=1", "best=val_los:min")
    assert "the runs have acc, val_loss" in caught.value.hint


def test_a_plan_without_rules_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a rule"):
        reasons([run(1)])


def test_tagged_running_and_parent_runs_are_kept_with_any_rule() -> None:
    runs = [run(1), run(2), run(3), run(4, parents=[2]), run(5, resumed=[3]), run(6, state="running"), run(7)]
    assert reasons(runs, "last=1", tags={1: "paper"}) == {
        7: "last=1",
        6: "running",
        3: "00000005 started from it",
        2: "00000004 started from it",
        1: "tag paper",
    }


def test_only_the_last_run_of_a_chain_is_removed() -> None:
    """Its parent is removed by the next call."""
    runs = [run(1), run(2, parents=[1]), run(3, parents=[2]), run(4)]
    assert sorted(reasons(runs, "last=1")) == [1, 2, 4]


def test_a_run_is_not_its_own_parent() -> None:
    assert sorted(reasons([run(1, parents=[1]), run(2)], "last=1")) == [2]


def test_a_run_that_other_directories_need_is_kept() -> None:
    assert reasons([run(1), run(2)], "last=1", held={1: "abc started from it"})[1] == "abc started from it"


def test_all_reasons_are_listed_and_the_rule_tagged_keeps_only_tagged_runs() -> None:
    runs = [run(1, metrics={"acc": 1.0}), run(2, metrics={"acc": 0.5})]
    assert reasons(runs, "last=2", "best=acc:max", tags={1: "a"})[1] == "last=2, best=acc:max 1, rank 1 of 2, tag a"
    assert sorted(reasons(runs, "tagged", tags={1: "a"})) == [1]


def test_a_run_without_a_valid_start_time_is_kept() -> None:
    assert reasons([run(1, started="yesterday"), run(2)], "last=1")[1] == "its start time is unknown"
