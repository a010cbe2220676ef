"""One command over several seeds, with runs that do what each test needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.catalog.noted import OTHERS
from repro_env.cli import sensitivity as command
from repro_env.flows.asked import Asked
from repro_env.flows.execute import Done
from repro_env.flows.sensitivity import Found, Wanted, over_seeds, wanted
from repro_env.model.errors import DataError, RecordError, ReproEnvError, SourceError, UsageError
from repro_env.model.run import DataFact, End, Metric, Outcome, Output, Seeded, SourceFact, Start
from repro_env.model.talk import Silent

ZERO = "sha256:" + "0" * 64


class Runs(Silent):
    """Gives each seed a record; a test says what is in it."""

    def __init__(self, change: Callable[[int, Done], Done] = lambda seed, done: done) -> None:
        self.seeds: list[int] = []
        self.said: list[str] = []
        self.change = change

    def __call__(self, text: str, /) -> None:
        self.said.append(text)

    def progress(self, total: int, label: str, /) -> Any:
        raise AssertionError(total, label)

    def run(self, asked: Asked) -> Done:
        assert isinstance(asked.seed, int)
        self.seeds.append(asked.seed)
        return self.change(asked.seed, done(asked.seed))

    def over(self, count: int = 5, metric: str | None = None, first: int = 0, **asked: Any) -> Found:
        one = Asked(command=("train.py",), here=Path("/p"), environ={}, **asked)
        return over_seeds(one, first, count, wanted(metric), run=self.run, tell=self)


def metric(name: str, value: float, file: str = "metrics.json", least: float | None = None) -> Metric:
    return Metric(name=name, file=file, count=3, last=value, least=value if least is None else least, most=value)


def done(seed: int) -> Done:
    start = Start(
        schema="repro-env/run-start/1",
        id=f"00000000-0000-7000-8000-{seed:012d}",
        started="2026-07-01T00:00:00.000Z",
        spec=ZERO,
        image=ZERO,
        runner="embedded",
        command=("train.py",),
        cwd="/p",
        seed=seed,
        source=SourceFact(path="/p", digest=ZERO, directory="/p", differs=()),
        data=(),
        given=(),
        network=False,
        host=(),
    )
    end = End(
        schema="repro-env/run-end/1",
        id=start.id,
        ended=start.started,
        seconds=1.0,
        outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="embedded", means=()),
        outputs=(Output(path="metrics.json", sha256=f"sha256:{seed:064d}", size=9),),
        others=(),
        removed=(),
        holes=(),
        metrics=(metric("accuracy", 0.9 + seed / 100), metric("loss", 1.0 - seed / 10, least=0.1), metric("train_runtime", 3.0)),
    )
    return Done(Path("/p/runs/x"), start, end)


def with_end(one: Done, **change: Any) -> Done:
    return msgspec.structs.replace(one, end=msgspec.structs.replace(one.end, **change))


def failing(one: Done, code: int, signal: int = 0) -> Done:
    return with_end(one, outcome=msgspec.structs.replace(one.end.outcome, exit_code=code, signal=signal))


def test_the_seeds_follow_each_other_and_every_metric_has_its_spread() -> None:
    runs = Runs()
    found = runs.over(5, first=2**32 - 2)
    assert runs.seeds == [2**32 - 2, 2**32 - 1, 0, 1, 2]
    assert [one.seed for one in found.runs] == runs.seeds
    runs = Runs()
    found = runs.over(5)
    assert [(one.metric, one.missing) for one in found.metrics] == [("accuracy", ()), ("loss", ()), ("train_runtime", ())]
    assert found.metrics[0].spread is not None
    assert found.metrics[0].spread.mean == pytest.approx(0.92)
    assert found.good
    page = command.page(found)
    assert page[1].split() == ["accuracy", "5", "0.92", "0.900368", "to", "0.939632", "0.9", "to", "0.94"]


def test_one_metric_has_a_plot() -> None:
    found = Runs().over(5, "accuracy")
    assert [one.metric for one in found.metrics] == ["accuracy"]
    page = command.page(found)
    assert page[0] == "accuracy (last)"
    assert page[1] == "  mean 0.92, 95% interval 0.900368 to 0.939632 (t, 5 seeds)"
    assert sum("o" in line and line.startswith("  seed") for line in page) == 5
    assert command.page(Runs().over(5, "train_runtime"))[1] == "  all 5 seeds give 3"


def test_the_least_and_the_largest_value_can_be_asked_for() -> None:
    spread = Runs().over(5, "loss:min").metrics[0].spread
    assert spread is not None
    assert spread.equal
    assert wanted("a:b:max") == Wanted(name="a:b", which="max")
    assert wanted("logs/x.csv:loss") == Wanted(name="logs/x.csv:loss")
    for text in ("", ":min"):
        with pytest.raises(UsageError):
            wanted(text)


def test_the_name_of_a_file_that_changes_with_every_run_is_no_other_metric() -> None:
    def change(seed: int, one: Done) -> Done:
        name = f"tb/events.out.tfevents.178263{seed:04d}.host{seed}.{seed}.0"
        return with_end(
            one, metrics=(metric("acc", seed, name), metric("acc", 1, "best.json"), metric("loss", seed, f"{seed}.csv"))
        )

    found = Runs(change).over(5, "loss")
    assert found.good
    metrics = Runs(change).over(5).metrics
    assert [(one.metric, one.missing) for one in metrics] == [
        ("best.json:acc", ()),
        ("tb/events.out.tfevents.1782630000.host0.0.0:acc", ()),
        ("loss", ()),
    ]

    def two(seed: int, one: Done) -> Done:
        return with_end(one, metrics=(metric("acc", seed, f"{seed}/a.csv"), metric("acc", 1, f"{seed}/b.csv")))

    assert not Runs(two).over(5).good, "the files cannot be matched"


def test_one_name_in_several_files() -> None:
    def change(seed: int, one: Done) -> Done:
        return with_end(one, metrics=(metric("acc", seed + 1, "a.csv"), metric("acc", -seed - 1, "b.csv")))

    with pytest.raises(UsageError, match="is in 2 files, with other values") as error:
        Runs(change).over(5, "acc")
    assert error.value.hint == "there are a.csv:acc, b.csv:acc"
    assert Runs(change).over(5, "b.csv:acc").good
    assert [one.metric for one in Runs(change).over(5).metrics] == ["a.csv:acc", "b.csv:acc"]

    def same(seed: int, one: Done) -> Done:
        other = seed + 1 if seed < 3 else 0
        return with_end(one, metrics=(metric("acc", seed + 1, "a.csv"), metric("acc", other, "b.csv")))

    (one,) = Runs(same).over(5, "acc").metrics  # the first run decides which file it is
    assert one.spread is not None
    assert [value.value for value in one.spread.values] == [1, 2, 3, 4, 5]


REFUSED: list[tuple[dict[str, Any], Callable[[int, Done], Done], type[ReproEnvError], str, int]] = [
    ({"count": 1}, lambda seed, one: one, UsageError, "one seed has no range", 0),
    ({"metric": "acuracy"}, lambda seed, one: one, UsageError, "is no metric of the first run", 1),
    ({}, lambda seed, one: with_end(one, metrics=()), RecordError, "wrote no metrics", 1),
    ({"checkpoints": (("ck", ""),)}, lambda seed, one: one, UsageError, "would go on from what the one before left", 0),
    (
        {},
        lambda seed, one: msgspec.structs.replace(
            one,
            start=msgspec.structs.replace(
                one.start, source=msgspec.structs.replace(one.start.source, digest=f"sha256:{seed:064d}")
            ),
        ),
        SourceError,
        "changed between two runs",
        2,
    ),
    (
        {},
        lambda seed, one: msgspec.structs.replace(
            one,
            start=msgspec.structs.replace(
                one.start, data=(DataFact(source="/d", target="/d", kind="data", digest=f"sha256:{seed:064d}"),)
            ),
        ),
        DataError,
        "changed between two runs",
        2,
    ),
]


@pytest.mark.parametrize(("asked", "change", "error", "what", "ran"), REFUSED, ids=[one[3] + str(one[4]) for one in REFUSED])
def test_what_would_be_for_nothing_is_refused_as_soon_as_it_shows(
    asked: dict[str, Any], change: Callable[[int, Done], Done], error: type[ReproEnvError], what: str, ran: int
) -> None:
    runs = Runs(change)
    with pytest.raises(error, match=what):
        runs.over(**asked)
    assert len(runs.seeds) == ran


def test_a_first_run_that_fails_is_the_last() -> None:
    runs = Runs(lambda seed, one: failing(one, 3))
    found = runs.over(5)
    assert (len(found.runs), found.good, found.metrics) == (1, False, ())
    assert "failed, and in no number above: seed 0 (exit 3, run" in command.closing(found)[0]


def test_a_later_one_that_fails_is_named_and_does_not_count() -> None:
    found = Runs(lambda seed, one: failing(one, 3) if seed == 2 else one).over(6, "accuracy")
    assert not found.good
    assert found.metrics[0].spread is not None
    assert [value.seed for value in found.metrics[0].spread.values] == [0, 1, 3, 4, 5]
    assert any(line.startswith("failed, and in no number above: seed 2 (exit 3") for line in command.closing(found))


def test_ctrl_c_ends_it_and_what_is_there_is_told() -> None:
    runs = Runs(lambda seed, one: failing(one, 130, 2) if seed == 3 else one)
    found = runs.over(10, "accuracy")
    assert (len(runs.seeds), found.stopped, found.good) == (4, 2, False)
    assert found.metrics[0].spread is not None
    assert len(found.metrics[0].spread.values) == 3
    assert "4 of 10 seeds were run" in command.closing(found)


def test_a_metric_that_a_seed_did_not_write_is_named() -> None:
    found = Runs(lambda seed, one: with_end(one, metrics=one.end.metrics[1:]) if seed == 4 else one).over(5)
    assert found.metrics[0].missing == (4,)
    assert "accuracy: seed 4 did not write it" in command.page(found)
    assert found.good  # the loss is complete


def test_a_script_with_seeds_of_its_own_is_told_so() -> None:
    seeded = (
        Seeded(library="numpy", what="numpy.random.seed", value="1", file="/e/lib/site-packages/x.py", line=1),
        Seeded(library="torch", what="torch.manual_seed", value="42", file="/p/train.py", line=7),
    )

    def change(seed: int, one: Done) -> Done:
        return with_end(one, seeded=seeded, outputs=done(0).end.outputs, metrics=done(0).end.metrics)

    runs = Runs(change)
    found = runs.over(5)
    own = ": the script sets seeds itself, torch.manual_seed(42) at /p/train.py:7 and 1 more"
    assert "its outputs are those of the first run, byte for byte" + own in runs.said
    assert command.closing(found)[0] == "all outputs are equal, byte for byte: the master seed changes nothing here"
    assert command.closing(found)[1] == "the same in all runs" + own


def test_a_seed_that_moves_with_the_master_seed_is_no_seed_of_the_script() -> None:
    """A library draws its own from the master seed."""
    fixed = Seeded(library="torch", what="torch.manual_seed", value="42", file="/p/train.py", line=7)

    def change(seed: int, one: Done) -> Done:
        drawn = Seeded(library="numpy", what="RandomState", value=str(seed * 7919), file="/e/lib/site-packages/x.py", line=1)
        others = msgspec.structs.replace(drawn, value=OTHERS)  # stands for other seeds in each run
        return with_end(one, seeded=(drawn, others, fixed))

    assert Runs(change).over(5).seeded == (fixed,)


def test_few_seeds_are_said_to_be_few() -> None:
    runs = Runs()
    found = runs.over(3)
    assert runs.said[0] == "3 seeds are few: the interval of fewer than 5 says little"
    assert "fewer than 5 seeds: this is no range over seeds yet" in command.closing(found)
    assert not any("few" in line for line in command.closing(Runs().over(5)))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("train.py", "how many seeds"),
        ("--seeds 1 train.py", "is no number of seeds"),
        ("--seeds x train.py", "is no number of seeds"),
        ("--seeds 5 --save d train.py", "is for a single run"),
        ("--seeds 5 --record f train.py", "is for a single run"),
        ("--seeds 5 --checkpoints c train.py", "is for a single run"),
        ("--seeds 5 --sedes 3 train.py", "is no option of repro-env sensitivity"),
        ("--seeds 5", "there is no command"),
        ("--seeds", "needs a value"),
    ],
)
def test_a_wrong_command_line(words: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        command.main(words.split())


def test_without_a_command_it_speaks_of_itself() -> None:
    with pytest.raises(UsageError) as caught:
        command.main(["--seeds", "5"])
    assert caught.value.where == "repro-env sensitivity"


def test_exec_knows_nothing_of_these_options() -> None:
    from repro_env.cli import exec as run

    with pytest.raises(UsageError, match="is no option of repro-env exec"):
        run.split(["--seeds", "5", "train.py"])


def test_help_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    assert "--metric NAME" in capsys.readouterr().out
