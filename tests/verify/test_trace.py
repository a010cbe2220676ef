"""Two traces and the first thing in which they differ."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repro_env.verify import trace
from repro_env.verify.trace import Compared, Divergence

HEAD = {"trace": 1, "rank": "0", "worker": [], "program": "train.py", "torch": "2.13.0"}
MODEL = {"optimizer": 0, "kind": "SGD", "shapes": ["2x3:float32", "2:float32"], "names": []}
END = {"end": {"seconds": 2.0, "spent": 0.01, "untraced": 0, "steps": [4]}}


def weights(word: str) -> dict[str, Any]:
    return {"sha256": word * 8, "tensors": [word, word[::-1]]}


def lines() -> list[dict[str, Any]]:
    """A run of four steps; the weights are hashed before the first, after it, after the second, and at the end."""
    return [
        HEAD,
        MODEL,
        {"optimizer": 0, "step": 0, **weights("aa0")},
        {"optimizer": 0, "step": 1, "lr": [0.1], "loss": [2.5], "screen": "00000001", **weights("bb0")},
        {"optimizer": 0, "every": {"line": 1, "screen": 1, "weights": 2}},
        {"optimizer": 0, "step": 2, "loss": [2.25], "screen": "00000002", **weights("cc0")},
        {"optimizer": 0, "step": 3, "loss": [2.0], "screen": "00000003"},
        {"optimizer": 0, "step": 4, "loss": ["nan"], "screen": "00000004"},
        {"optimizer": 0, "step": 4, "exit": True, **weights("dd0")},
        END,
    ]


def parsed(told: list[dict[str, Any]]) -> trace.Trace:
    return trace.parse([json.dumps(line).encode() for line in told])


def against(change: dict[int, dict[str, Any]], drop: tuple[int, ...] = ()) -> Compared:
    """The run above, and one in which some lines have other values or are not there."""
    other = [line | change.get(place, {}) for place, line in enumerate(lines()) if place not in drop]
    return trace.compare({"rank0.jsonl": parsed(lines())}, {"rank0.jsonl": parsed(other)})


def first(change: dict[int, dict[str, Any]], drop: tuple[int, ...] = ()) -> Divergence:
    found = against(change, drop)
    assert not found.equal
    assert len(found.first) == 1
    return found.first[0]


def test_equal_traces_are_equal_and_it_is_counted_what_was_compared() -> None:
    found = against({})
    assert found.equal
    assert (found.losses, found.screens, found.digests) == (4, 4, 4)


def test_a_trace_tells_what_it_cost() -> None:
    told = parsed(lines())
    assert (told.program, told.torch, told.seconds, told.spent, told.ended, told.strange) == (
        "train.py",
        "2.13.0",
        2.0,
        0.01,
        True,
        0,
    )
    assert told.steps[2].rates == (0.1,)


CASES: list[tuple[dict[int, dict[str, Any]], str, int, int | None, str]] = [
    (
        {2: weights("xx0")},
        "weights before the first step",
        0,
        None,
        (
            "rank0: the weights differ before the first step, in 2 of 2 tensors (tensor 0 (2x3:float32), tensor 1 (2:float32)): "
            "the initialisation or its seed"
        ),
    ),
    (
        {3: {"loss": [2.5000000000000004]}},
        "loss",
        1,
        0,
        (
            "rank0: first at step 1, in the loss (2.5; 2.5000000000000004), from equal weights: the batch, a random number of the "
            "forward pass, or an operation in it"
        ),
    ),
    (
        {3: {"lr": [0.2]}},
        "learning rate",
        1,
        0,
        "rank0: first at step 1, in the learning rate (0.1; 0.2); all weights were equal before the first",
    ),
    (
        {3: {**weights("bb0"), "sha256": "x", "tensors": ["bb0", "x"]}},
        "weights",
        1,
        0,
        (
            "rank0: first at step 1, in the weights after it, in 1 of 2 tensors (tensor 1 (2:float32)): the backward pass or the "
            "optimizer"
        ),
    ),
    (
        {6: {"screen": "0000000f"}},
        "weights",
        3,
        2,
        "rank0: first at step 3, in the weights after it: the backward pass or the optimizer",
    ),
    (
        {7: {"loss": [1.0]}},
        "loss",
        4,
        2,
        (
            "rank0: first seen at step 4, in the loss (nan; 1.0); all weights were equal after step 2: the batch, a random number of "
            "the forward pass, or an operation in it"
        ),
    ),
    (
        {8: weights("xx0")},
        "weights at exit",
        4,
        2,
        (
            "rank0: the weights at the end differ, in 2 of 2 tensors (tensor 0 (2x3:float32), tensor 1 (2:float32)), no step before "
            "did; all weights were equal after step 2"
        ),
    ),
    (
        {1: {"kind": "Adam"}},
        "tensors",
        0,
        None,
        (
            "rank0: the model or the optimizer is another one before the first step (SGD of 2 tensors (2x3:float32, 2:float32); Adam "
            "of 2 tensors (2x3:float32, 2:float32))"
        ),
    ),
    ({0: {"program": "other.py"}}, "program", 0, None, "rank0: another program (train.py; other.py)"),
    (
        {9: {"end": {"seconds": 2.0, "spent": 0.01, "untraced": 0, "steps": [4, 1]}}},
        "steps",
        0,
        4,
        "rank0, optimizer 1: equal up to step 0, then one of them ended (0 and 1 steps)",
    ),
]


@pytest.mark.parametrize(("change", "what", "step", "equal", "said"), CASES, ids=[f"{one[1]}-{one[2]}" for one in CASES])
def test_a_planted_difference_is_found_where_it_is(
    change: dict[int, dict[str, Any]], what: str, step: int, equal: int | None, said: str
) -> None:
    found = first(change)
    assert (found.what, found.step) == (what, step)
    if found.optimizer == 0:
        assert found.equal == equal
    assert trace.sentence(found) == said


def test_the_loss_comes_before_the_weights_of_its_step() -> None:
    assert first({3: {"loss": [9.0], **weights("xx0")}}).what == "loss"


def test_minus_zero_is_another_number_and_nan_is_itself() -> None:
    assert first({6: {"loss": [-0.0]}}).what == "loss"
    zero = [line | ({"loss": [0.0]} if line.get("step") == 3 else {}) for line in lines()]
    minus = [line | ({"loss": [-0.0]} if line.get("step") == 3 else {}) for line in lines()]
    assert trace.compare({"a": parsed(zero)}, {"a": parsed(minus)}).first[0].step == 3


def test_what_only_one_side_noted_is_not_compared_and_not_different() -> None:
    found = against({}, drop=(5, 6))
    assert found.equal
    assert (found.losses, found.digests) == (2, 3)


def test_another_number_of_steps_is_a_difference() -> None:
    shorter = {9: {"end": {"seconds": 2.0, "spent": 0.01, "untraced": 0, "steps": [3]}}}
    found = first(shorter, drop=(7, 8))
    assert (found.what, found.step) == ("steps", 3)


def test_a_trace_without_its_end_is_never_equal() -> None:
    found = against({}, drop=(8, 9))
    assert not found.first
    assert not found.equal
    assert found.missing == ("rank0: the second run's trace has no end, its last steps may be missing",)


def test_nothing_compared_is_not_equal() -> None:
    assert not trace.compare({}, {}).equal
    assert not trace.compare({"rank0.jsonl": parsed([HEAD, END])}, {"rank0.jsonl": parsed([HEAD, END])}).equal


def test_a_process_of_one_side_alone_is_named() -> None:
    one = {"rank0.jsonl": parsed(lines())}
    found = trace.compare(one | {"rank1.jsonl": parsed(lines())}, one)
    assert found.missing == ("rank1.jsonl: only the first run has a trace of it",)
    assert not found.equal


def test_the_earliest_step_of_all_processes_comes_first() -> None:
    later = [line | ({"loss": [9.0]} if line.get("step") == 3 else {}) for line in lines()]
    sooner = [line | ({"loss": [9.0]} if line.get("step") == 2 else {}) for line in lines()]
    mine = {"rank0.jsonl": parsed(lines()), "rank1.jsonl": parsed(lines())}
    found = trace.compare(mine, {"rank0.jsonl": parsed(later), "rank1.jsonl": parsed(sooner)})
    assert [(one.process, one.step) for one in found.first] == [("rank1", 2), ("rank0", 3)]


def test_names_of_tensors_are_said_where_the_optimizer_knows_them() -> None:
    told = [line | ({"names": ["conv.weight", "conv.bias"]} if "kind" in line else {}) for line in lines()]
    other = [line | (weights("xx0") if line.get("step") == 0 else {}) for line in told]
    found = trace.compare({"a": parsed(told)}, {"a": parsed(other)}).first[0]
    assert found.tensors == ("conv.weight", "conv.bias")


HOSTILE = [
    b"",
    b"\xff\xfe",
    b"[1, 2]",
    b'{"optimizer": "x"}',
    b'{"optimizer": 0, "step": -1}',
    b'{"optimizer": 0, "step": 3, "loss": [{}]}',
    b'{"optimizer": 0, "step": 3, "loss": ["bad"], "sha256": ""}',
    b'{"end": 3}',
    b"[" * 5000,
    b'{"optimizer": 99999999999999999999999, "step": 1}',
    b'{"optimizer": 7, "step": 2, "tensors": ["' + b"x" * 10000 + b'"], "sha256": "y"}',
]


def test_a_hostile_trace_is_read_as_far_as_it_can_be() -> None:
    told = trace.parse(HOSTILE)
    assert told.strange == 9
    assert [one.step for one in told.steps] == [3, 2]
    found = trace.compare({"a": told}, {"a": told})
    assert not found.equal
    other = trace.parse([*HOSTILE[:-1], b'{"optimizer": 7, "step": 2, "tensors": ["z"], "sha256": "z"}'])
    assert trace.sentence(trace.compare({"a": told}, {"a": other}).first[0])
