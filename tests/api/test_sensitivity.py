"""Run a command with several seeds. Each test defines what the runs do."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api.execute import FinishedRun
from repro_env.api.sensitivity import Found, MetricOption, parse_metric
from repro_env.cli import app
from repro_env.cli import exec as exec_command
from repro_env.cli import sensitivity as command
from repro_env.cli.ui.page import Page
from repro_env.runs.records.reports import MORE_VALUES
from repro_env.schema.errors import DataError, RecordError, ReproEnvError, SourceError, UsageError
from repro_env.schema.run import DataFact, Seeded
from tests.api.sweeps import Runs, done, metric


def with_end(done: FinishedRun, **change: Any) -> FinishedRun:
    return msgspec.structs.replace(done, end=msgspec.structs.replace(done.end, **change))


def failing(done: FinishedRun, code: int, signal: int = 0) -> FinishedRun:
    return with_end(done, outcome=msgspec.structs.replace(done.end.outcome, exit_code=code, signal=signal))


def test_runs_at_the_same_time_have_the_same_report() -> None:
    runs = Runs()
    assert runs.over(5, first=3, jobs=3) == Runs().over(5, first=3)
    assert runs.seeds == [3], "the others run in other processes"


def test_a_run_that_reached_its_time_limit_has_failed_and_the_others_are_made() -> None:
    def change(seed: int, done: FinishedRun) -> FinishedRun:
        outcome = msgspec.structs.replace(done.end.outcome, exit_code=143, signal=15, timed_out=True)
        return with_end(done, outcome=outcome) if seed == 2 else done

    found = Runs(change).over(5)
    assert ([run.exit_code for run in found.runs], found.stopped) == ([0, 0, 124, 0, 0], 0)


def test_seeds_are_consecutive_and_every_metric_has_a_spread() -> None:
    runs = Runs()
    found = runs.over(5, first=2**32 - 2)
    assert runs.seeds == [2**32 - 2, 2**32 - 1, 0, 1, 2]
    assert [run.seed for run in found.runs] == runs.seeds
    runs = Runs()
    found = runs.over(5)
    assert [(row.metric, row.missing) for row in found.metrics] == [("accuracy", ()), ("loss", ()), ("train_runtime", ())]
    assert found.metrics[0].spread is not None
    assert found.metrics[0].spread.mean == pytest.approx(0.92)
    assert found.good
    page = shown(found)
    assert page[1].split() == ["accuracy", "5", "0.92", "0.0158114", "0.9", "to", "0.94"]


def shown(found: Found) -> list[str]:
    page = Page()
    command.show(found, page)
    return page.lines


def test_a_single_metric_has_a_value_for_each_seed() -> None:
    found = Runs().over(5, "accuracy")
    assert [row.metric for row in found.metrics] == ["accuracy"]
    page = shown(found)
    assert page[0].split() == ["METRIC", "(last)", "SEEDS", "MEAN", "DEVIATION", "RANGE"]
    assert page[1].split() == ["accuracy", "5", "0.92", "0.0158114", "0.9", "to", "0.94"]
    assert sum(line.startswith("  seed") for line in page) == 5
    page = shown(Runs().over(5, "train_runtime"))
    assert page[1].split() == ["train_runtime", "5", "3", "all", "equal", "3", "to", "3"]
    assert len(page) == 2


def test_values_that_are_not_finite_are_named() -> None:
    def change(seed: int, recorded: FinishedRun) -> FinishedRun:
        return with_end(recorded, metrics=(metric("loss", math.inf if seed == 2 else math.nan if seed == 3 else seed),))

    page = shown(Runs(change).over(5))
    assert page[1].split() == ["loss", "3", "1.66667", "2.08167", "0", "to", "4"]
    assert "loss: not finite, and not part of these statistics: seed 2 (inf), seed 3 (nan)" in page


def test_a_metric_option_may_select_the_smallest_or_largest_value() -> None:
    spread = Runs().over(5, "loss:min").metrics[0].spread
    assert spread is not None
    assert spread.equal
    assert parse_metric("a:b:max") == MetricOption(name="a:b", which="max")
    assert parse_metric("logs/x.csv:loss") == MetricOption(name="logs/x.csv:loss")
    for text in ("", ":min"):
        with pytest.raises(UsageError):
            parse_metric(text)


def test_a_metric_is_matched_if_the_name_of_its_file_changes_with_every_run() -> None:
    def change(seed: int, recorded: FinishedRun) -> FinishedRun:
        name = f"tb/events.out.tfevents.178263{seed:04d}.host{seed}.{seed}.0"
        return with_end(recorded, metrics=(metric("acc", seed, name), metric("loss", seed, f"{seed}.csv")))

    assert Runs(change).over(5, "loss").good
    assert [(row.metric, row.missing) for row in Runs(change).over(5).metrics] == [("acc", ()), ("loss", ())]

    def two(seed: int, recorded: FinishedRun) -> FinishedRun:
        return with_end(recorded, metrics=(metric("acc", seed, f"{seed}/a.csv"), metric("acc", 1, f"{seed}/b.csv")))

    assert not Runs(two).over(5).good, "the files cannot be matched"


def test_a_metric_in_several_files_needs_the_name_of_its_file() -> None:
    def change(seed: int, recorded: FinishedRun) -> FinishedRun:
        return with_end(recorded, metrics=(metric("acc", seed + 1, "a.csv"), metric("acc", -seed - 1, "b.csv")))

    with pytest.raises(UsageError, match="is in 2 files, with different values") as error:
        Runs(change).over(5, "acc")
    assert error.value.hint == "choose from a.csv:acc, b.csv:acc"
    assert Runs(change).over(5, "b.csv:acc").good
    assert [row.metric for row in Runs(change).over(5).metrics] == ["a.csv:acc", "b.csv:acc"]

    def same(seed: int, recorded: FinishedRun) -> FinishedRun:
        other = seed + 1 if seed < 3 else 0
        return with_end(recorded, metrics=(metric("acc", seed + 1, "a.csv"), metric("acc", other, "b.csv")))

    (row,) = Runs(same).over(5, "acc").metrics  # the first run decides which file is used
    assert row.spread is not None
    assert [value.value for value in row.spread.values] == [1, 2, 3, 4, 5]


REFUSED: list[tuple[dict[str, Any], Callable[[int, FinishedRun], FinishedRun], type[ReproEnvError], str, int]] = [
    ({"count": 1}, lambda seed, recorded: recorded, UsageError, "at least two seeds", 0),
    ({"metric": "acuracy"}, lambda seed, recorded: recorded, UsageError, "the first run did not write this metric", 1),
    ({}, lambda seed, recorded: with_end(recorded, metrics=()), RecordError, "wrote no metrics", 1),
    (
        {},
        lambda seed, recorded: msgspec.structs.replace(
            recorded,
            start=msgspec.structs.replace(
                recorded.start, source=msgspec.structs.replace(recorded.start.source, digest=f"sha256:{seed:064d}")
            ),
        ),
        SourceError,
        "changed between two runs",
        2,
    ),
    (
        {},
        lambda seed, recorded: msgspec.structs.replace(
            recorded,
            start=msgspec.structs.replace(
                recorded.start, data=(DataFact(source="/d", target="/d", kind="data", digest=f"sha256:{seed:064d}"),)
            ),
        ),
        DataError,
        "changed between two runs",
        2,
    ),
]


@pytest.mark.parametrize(("asked", "change", "error", "what", "count"), REFUSED, ids=[case[3] + str(case[4]) for case in REFUSED])
def test_the_runs_stop_at_the_first_problem(
    asked: dict[str, Any], change: Callable[[int, FinishedRun], FinishedRun], error: type[ReproEnvError], what: str, count: int
) -> None:
    runs = Runs(change)
    with pytest.raises(error, match=what):
        runs.over(**asked)
    assert len(runs.seeds) == count


def test_no_run_follows_a_failed_first_run() -> None:
    runs = Runs(lambda seed, recorded: failing(recorded, 3))
    found = runs.over(5)
    assert (len(found.runs), found.good, found.metrics) == (1, False, ())
    assert "failed runs, which are not in the numbers above: seed 0 (exit 3, run" in command.remarks(found)[0]


def test_a_later_run_that_fails_is_named_and_not_counted() -> None:
    found = Runs(lambda seed, recorded: failing(recorded, 3) if seed == 2 else recorded).over(6, "accuracy")
    assert not found.good
    assert found.metrics[0].spread is not None
    assert [value.seed for value in found.metrics[0].spread.values] == [0, 1, 3, 4, 5]
    assert any(
        line.startswith("failed runs, which are not in the numbers above: seed 2 (exit 3") for line in command.remarks(found)
    )


def test_ctrl_c_ends_the_runs_and_the_finished_ones_are_reported() -> None:
    runs = Runs(lambda seed, recorded: failing(recorded, 130, 2) if seed == 3 else recorded)
    found = runs.over(10, "accuracy")
    assert (len(runs.seeds), found.stopped, found.good) == (4, 2, False)
    assert found.metrics[0].spread is not None
    assert len(found.metrics[0].spread.values) == 3
    assert "4 of 10 seeds were run" in command.remarks(found)


def test_seeds_without_a_metric_are_named() -> None:
    found = Runs(lambda seed, recorded: with_end(recorded, metrics=recorded.end.metrics[1:]) if seed == 4 else recorded).over(5)
    assert found.metrics[0].missing == (4,)
    assert "accuracy: not in the run of seed 4" in shown(found)
    assert found.good  # the loss is complete


def test_seeds_that_the_script_sets_itself_are_reported() -> None:
    seeded = (
        Seeded(library="numpy", what="numpy.random.seed", value="1", file="/e/lib/site-packages/x.py", line=1),
        Seeded(library="torch", what="torch.manual_seed", value="42", file="/p/train.py", line=7),
    )

    def change(seed: int, recorded: FinishedRun) -> FinishedRun:
        return with_end(recorded, seeded=seeded, outputs=done(0).end.outputs, metrics=done(0).end.metrics)

    runs = Runs(change)
    found = runs.over(5)
    own = ": the script sets seeds itself, torch.manual_seed(42) at /p/train.py:7 and 1 more"
    assert "its outputs equal those of the first run, byte for byte" + own in runs.lines
    assert (runs.seeds, found.good) == ([0, 1], True), "further runs would be the same"
    assert command.remarks(found)[:3] == [
        "2 of 5 seeds were run",
        "all outputs are identical: the master seed has no effect on them",
        "the same in all runs" + own,
    ]
    runs = Runs(change)
    assert len(runs.over(5, jobs=0).runs) == 5, "they were made before"


def test_runs_at_the_same_time_stop_after_the_second_if_the_seed_has_no_effect(tmp_path: Path) -> None:
    def change(seed: int, recorded: FinishedRun) -> FinishedRun:
        (tmp_path / str(seed)).touch()
        if seed > 1:
            time.sleep(60)
        return with_end(recorded, outputs=done(0).end.outputs)

    found = Runs(change).over(20, jobs=2)
    assert ([run.seed for run in found.runs], found.no_effect) == ([0, 1], True)
    assert {path.name for path in tmp_path.iterdir()} <= {"0", "1", "2"}, "no other run was started"


def test_a_seed_that_changes_with_the_master_seed_is_not_reported() -> None:
    """A library derives its own seed from the master seed."""
    fixed = Seeded(library="torch", what="torch.manual_seed", value="42", file="/p/train.py", line=7)

    def change(seed: int, recorded: FinishedRun) -> FinishedRun:
        drawn = Seeded(library="numpy", what="RandomState", value=str(seed * 7919), file="/e/lib/site-packages/x.py", line=1)
        others = msgspec.structs.replace(drawn, value=MORE_VALUES)  # stands for other seeds in each run
        return with_end(recorded, seeded=(drawn, others, fixed))

    assert Runs(change).over(5).seeded == (fixed,)


def test_few_seeds_are_a_warning() -> None:
    runs = Runs()
    found = runs.over(3)
    assert runs.lines[0] == "3 seeds are few: use at least 5 to see the range of a metric"
    assert "fewer than 5 seeds do not show the range of a metric" in command.remarks(found)
    assert not any("few" in line for line in command.remarks(Runs().over(5)))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("train.py", "missing option '--seeds'"),
        ("--seeds 1 train.py", "2<=x<=10000"),
        ("--seeds x train.py", "invalid value for '--seeds'"),
        ("--seeds 5 --checkpoints c train.py", "does not support the option --checkpoints"),
        ("--seeds 5 --sedes 3 train.py", "no such option: --sedes"),
        ("--seeds 5", "no command was given"),
        ("--seeds", "requires an argument"),
    ],
)
def test_an_invalid_command_line_is_refused(words: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        app.run(["sensitivity", *words.split()])


def test_sensitivity_has_the_options_of_exec_except_those_for_a_single_run(capsys: pytest.CaptureFixture[str]) -> None:
    context = app.parse("sensitivity", ["--seeds", "5", "--threads", "2", "-m", "pkg", "--seeds", "6", "--help"])
    assert (context.params["seeds"], context.params["threads"]) == (5, 2)
    assert exec_command.words(context) == ("-m", "pkg", "--seeds", "6", "--help")
    assert app.run(["sensitivity", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--metric NAME[:WHICH]" in printed
    assert "--threads N" in printed
    assert not re.search("^  --checkpoints [A-Z]", printed, re.MULTILINE)
