"""Traces of a training."""

from __future__ import annotations

import json

from repro_env.compare.traces import trace
from tests.compare.traces.lines import HOSTILE, lines, parsed


def test_a_trace_is_parsed() -> None:
    found = parsed(lines())
    assert (found.program, found.counts, found.ended, found.invalid) == ("train.py", (4,), True, 0)
    assert found.steps[2].rates == (0.1,)


def test_invalid_lines_of_a_hostile_trace_are_counted() -> None:
    found = trace.parse(HOSTILE)
    assert found.invalid == 10
    assert [step.step for step in found.steps] == [3, 2, 4]
    assert found.steps[-1].sha256 is None
    assert found.steps[-1].screen is None
    assert found.steps[-1].tensors == ("", "a")


def test_the_learning_rate_is_unknown_after_an_invalid_line() -> None:
    complete = [json.dumps(line).encode() for line in lines()]
    assert trace.parse(complete).steps[2].rates == (0.1,)
    damaged = trace.parse([*complete[:4], complete[4][:20], *complete[5:]])
    assert damaged.invalid == 1
    assert [step.rates for step in damaged.steps if step.step == 3] == [None]


def test_a_learning_rate_on_a_device_is_accepted() -> None:
    assert trace.parse([b'{"optimizer": 0, "step": 1, "lr": [0.5, null, "nan"]}']).steps[0].rates is not None
