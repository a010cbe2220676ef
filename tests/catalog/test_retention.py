from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import ids, retention
from repro_env.catalog.records import Run, State
from repro_env.catalog.retention import Best, Every, Facts, Last, Tagged
from repro_env.model.errors import RecordError, UsageError
from repro_env.model.run import DataFact, Metric, Number, Parent
from tests.catalog.test_records import end, start

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
    """A run by its number; of a later one all is newer. `metrics`: name -> the one value it had."""
    text = started if isinstance(started, str) else f"{started:%Y-%m-%dT%H:%M:%S}.000Z"
    named = tuple(Parent(id=id_of(one), record=None, how="named") for one in parents)
    went_on = tuple(Parent(id=id_of(one), record=None, how="resumed") for one in resumed)
    begun = msgspec.structs.replace(start(id_of(number)), started=text, parents=named)
    over = None
    if state == "done":
        values = tuple(
            Metric(name=name, file="m.json", count=1, last=value, least=value, most=value)
            for name, value in (metrics or {}).items()
        )
        over = msgspec.structs.replace(end(id_of(number)), metrics=values, resumed=went_on)
    return Run(Path(f"/runs/20260701T101507Z-train-{number:08x}"), begun, over, state)


def id_of(number: int) -> str:
    return ids.uuid7(number, number.to_bytes(10, "big"))


def kept(
    runs: Sequence[Run], *rules: str, tags: dict[int, str] | None = None, held: dict[int, str] | None = None
) -> dict[int, str]:
    """Number -> reasons, of what stays."""
    facts = [
        Facts(one, tuple(filter(None, [(tags or {}).get(int(one.short, 16))])))
        for one in sorted(runs, key=number_of, reverse=True)
    ]
    plan = retention.plan(facts, [retention.rule(one) for one in rules], {id_of(key): why for key, why in (held or {}).items()})
    assert sorted([*(number_of(one.run) for one in plan.keep), *map(number_of, plan.remove)]) == sorted(map(number_of, runs))
    return {number_of(one.run): ", ".join(one.why) for one in plan.keep}


def number_of(one: Run) -> int:
    return int(one.short, 16)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("last=3", Last(3)),
        ("every=30m", Every(1800, "30m")),
        ("every=2w", Every(14 * 86400, "2w")),
        ("tagged", Tagged()),
        ("best=val_loss", Best("val_loss", "min", 1)),
        ("best=acc:3", Best("acc", "max", 3)),
        ("best=acc:min", Best("acc", "min", 1)),
        ("best=eval:acc:max:12", Best("eval:acc", "max", 12)),
        ("best=log.csv:val/accuracy", Best("log.csv:val/accuracy", "max", 1)),
        ("best=x=y:max", Best("x=y", "max", 1)),
    ],
)
def test_rules_are_read(text: str, rule: retention.Rule) -> None:
    assert retention.rule(text) == rule


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
        "tagged=1",
        "all",
    ],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--keep"):
        retention.rule(text)


@pytest.mark.parametrize("name", ["bits", "loss_accuracy", "lossy"])
def test_a_metric_whose_better_side_is_not_known_needs_it_said(name: str) -> None:
    with pytest.raises(UsageError, match="less or more"):
        retention.rule(f"best={name}")


def test_the_newest_stay_however_they_ended() -> None:
    runs = [run(1), run(2), run(3, state="interrupted"), run(4)]
    assert kept(runs, "last=2") == {4: "last=2", 3: "last=2"}


def test_of_each_period_the_newest_finished_one_stays() -> None:
    days = [FRIDAY + timedelta(days=day) for day in (0, 0, 1, 1, 4)]
    runs = [run(number, started=when) for number, when in enumerate(days, 1)]
    runs[3] = run(4, started=days[3], state="interrupted")
    assert sorted(kept(runs, "every=1d")) == [2, 3, 5]
    # The fourth day on is a Tuesday: another week.
    assert sorted(kept(runs, "every=1w")) == [3, 5]


def test_a_period_of_interrupted_runs_keeps_the_newest() -> None:
    runs = [run(1, state="interrupted"), run(2, state="interrupted")]
    assert sorted(kept(runs, "every=1d")) == [2]


def test_periods_do_not_depend_on_when_it_is_asked() -> None:
    """Midnight UTC divides days, so what stayed once stays the next time."""
    runs = [run(number, started=FRIDAY + timedelta(hours=5 * number)) for number in range(1, 12)]
    first = sorted(kept(runs, "every=1d"))
    left = [one for one in runs if number_of(one) in first]
    assert sorted(kept(left, "every=1d")) == first


def test_the_best_stay_by_their_best_finite_value() -> None:
    values: list[Number] = [0.5, 0.1, "nan", 0.3, "-inf", 0.1]
    runs = [run(number, metrics={"val_loss": value}) for number, value in enumerate(values, 1)]
    assert sorted(kept(runs, "best=val_loss")) == [6]
    assert sorted(kept(runs, "best=val_loss:3")) == [2, 4, 6]
    assert kept(runs, "best=val_loss:max") == {1: "best=val_loss:max 0.5, place 1 of 4"}


def test_the_best_value_of_a_series_counts_and_not_its_last() -> None:
    def series(number: int, last: float, most: float) -> Run:
        one = run(number, metrics={"acc": last})
        assert one.end is not None
        metric = Metric(name="acc", file="m.json", count=9, last=last, least=0.0, most=most)
        return msgspec.structs.replace(one, end=msgspec.structs.replace(one.end, metrics=(metric,)))

    assert sorted(kept([series(1, 0.1, 0.9), series(2, 0.8, 0.8)], "best=acc")) == [1]


def test_a_metric_of_several_files_is_named_with_its_file() -> None:
    one = run(1, metrics={"acc": 0.2})
    other = run(2, metrics={"acc": 0.1})
    assert one.end is not None
    both = (*one.end.metrics, Metric(name="acc", file="train.csv", count=1, last=0.0, least=0.0, most=0.05))
    one = msgspec.structs.replace(one, end=msgspec.structs.replace(one.end, metrics=both))
    assert sorted(kept([one, other], "best=train.csv:acc:min")) == [1]
    assert sorted(kept([one, other], "best=m.json:acc:min")) == [2]


def test_a_mistyped_metric_lets_nothing_go() -> None:
    with pytest.raises(RecordError, match="no run has") as caught:
        kept([run(1, metrics={"val_loss": 1.0, "acc": 1.0})], "last=1", "best=val_los:min")
    assert "they have acc, val_loss" in caught.value.hint


def test_no_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="what stays"):
        kept([run(1)])


def test_tags_descendants_and_running_ones_stay_whatever_the_rules() -> None:
    runs = [run(1), run(2), run(3), run(4, parents=[2]), run(5, resumed=[3]), run(6, state="running"), run(7)]
    assert kept(runs, "last=1", tags={1: "paper"}) == {
        7: "last=1",
        6: "running",
        3: "00000005 started from it",
        2: "00000004 started from it",
        1: "tag paper",
    }


def test_an_older_record_that_mounts_a_runs_files_is_a_descendant_too() -> None:
    parent, child = run(1), run(2)
    mount = DataFact(source=f"{parent.folder}/files/ck", target="/ck", kind="checkpoints", digest=None)
    child = msgspec.structs.replace(child, start=msgspec.structs.replace(child.start, data=(mount,)))
    assert kept([parent, child, run(3)], "last=1") == {3: "last=1", 1: "00000002 started from it"}


def test_of_a_chain_only_the_last_goes() -> None:
    """What it came from is free the next time."""
    runs = [run(1), run(2, parents=[1]), run(3, parents=[2]), run(4)]
    assert sorted(kept(runs, "last=1")) == [1, 2, 4]


def test_a_run_that_names_itself_is_no_descendant() -> None:
    assert sorted(kept([run(1, parents=[1]), run(2)], "last=1")) == [2]


def test_what_is_held_from_elsewhere_stays() -> None:
    assert kept([run(1), run(2)], "last=1", held={1: "abc started from it"})[1] == "abc started from it"


def test_all_reasons_are_told_and_tagged_alone_lets_the_others_go() -> None:
    runs = [run(1, metrics={"acc": 1.0}), run(2, metrics={"acc": 0.5})]
    assert kept(runs, "last=2", "best=acc", tags={1: "a"})[1] == "last=2, best=acc:max 1, place 1 of 2, tag a"
    assert sorted(kept(runs, "tagged", tags={1: "a"})) == [1]


def test_a_run_whose_time_cannot_be_told_stays() -> None:
    assert kept([run(1, started="yesterday"), run(2)], "last=1")[1] == "when it started cannot be told"
