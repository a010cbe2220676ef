"""Validation protocols: what a run departs from, and which metrics are not as required."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api import protocols
from repro_env.policy import bound
from repro_env.policy.protocol import Protocol, evaluate, parse
from repro_env.schema.errors import UsageError
from repro_env.schema.run import DataFact, Metric, Number
from tests.runs.records import examples

TEST, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
PROTOCOL = Protocol(
    command=("evaluate.py", "--split", "test"),
    data={"/data/test": TEST},
    files={"splits/test.txt": TEST},
    metrics={"accuracy": ">= 0.95", "loss": "<0.1"},
)
FILES = {"splits/test.txt": TEST, "evaluate.py": OTHER}


def problems(*, command: str = "evaluate.py --split test --seed 1", data: str | None = TEST, **values: Number) -> Any:
    facts = (DataFact(source="/here/test", target="/data/test", kind="data", digest=data),)
    start = msgspec.structs.replace(examples.start("x"), command=tuple(command.split()), data=facts)
    metrics = [Metric(name=name, file="m.json", count=1, last=value, least=value, most=value) for name, value in values.items()]
    end = msgspec.structs.replace(examples.end("x"), metrics=tuple(metrics))
    return evaluate("test-set", PROTOCOL, start, end, FILES)


def test_a_run_meets_a_protocol() -> None:
    assert problems(accuracy=0.95, loss=0.0).problem == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"command": "evaluate.py --split train"}, "the command is evaluate.py --split train, and must begin with"),
        ({"data": OTHER}, "the data /data/test is sha256:222222222222…, and must be sha256:111111111111…"),
        ({"data": None}, "the data /data/test has no digest"),
    ],
)
def test_another_evaluation_is_a_departure(change: dict[str, Any], text: str) -> None:
    assert text in problems(accuracy=1.0, loss=0.0, **change).departures[0]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"accuracy": 0.9, "loss": 0.0}, "accuracy is 0.9, and must be >= 0.95"),
        ({"accuracy": "nan", "loss": 0.0}, "accuracy is nan, and must be >= 0.95"),
        ({"accuracy": 1.0}, "the run has no metric loss (must be <0.1)"),
    ],
)
def test_a_metric_that_is_not_as_required_is_a_failure(values: dict[str, Any], text: str) -> None:
    found = problems(**values)
    assert (found.departures, found.failures) == ((), (text,))


def test_code_that_was_not_found_and_a_changed_split_are_departures() -> None:
    start = examples.start("x")
    split = Protocol(files={"splits/test.txt": TEST})
    assert "because the code of the run was not found" in evaluate("s", split, start, None, None).problem
    assert "is not in the run" in evaluate("s", split, start, None, {}).problem
    assert "is sha256:2222" in evaluate("s", split, start, None, {"splits/test.txt": OTHER}).problem


@pytest.mark.parametrize(
    "table",
    [
        {"t": {"metrics": {"a": "0.9"}}},
        {"t": {"metrics": {"a": ">= many"}}},
        {"t": {"data": {"/d": "sha256:1"}}},
        {"t": {"files": {"../x": TEST}}},
        {"t": {"comand": ["a"]}},
        {"t": 3},
    ],
)
def test_an_invalid_protocol_is_refused_with_its_place(table: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(table, "pyproject.toml: tool.repro-env.protocol")
    assert caught.value.where == "pyproject.toml: tool.repro-env.protocol.t"


@pytest.mark.parametrize("text", ["", ">", "> ", "> 1 2", "1 > 2", "=> 1", ">= <1"])
def test_other_texts_are_not_bounds(text: str) -> None:
    assert bound.parse(text) is None


def test_no_number_meets_no_bound() -> None:
    for comparison in bound.COMPARISONS:
        required = bound.parse(f"{comparison} 1")
        assert required is not None
        assert not required.holds("nan")
        assert not required.holds(None)


def test_the_protocols_of_a_project_are_in_its_file(tmp_path: Path) -> None:
    assert protocols.find(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text('[tool.repro-env.protocol.test]\nmetrics = {loss = "< 1"}\n')
    assert protocols.find(tmp_path) == {"test": Protocol(metrics={"loss": "< 1"})}
