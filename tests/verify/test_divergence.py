"""Two traces and the first thing in which they differ."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repro_env.verify import divergence, trace
from repro_env.verify.divergence import Compared, Divergence
from tests.verify.test_trace import END, HEAD, HOSTILE, MODEL, lines, parsed, weights


def against(change: dict[int, dict[str, Any]], drop: tuple[int, ...] = ()) -> Compared:
    """The run above, and one in which some lines have other values or are not there."""
    other = [line | change.get(place, {}) for place, line in enumerate(lines()) if place not in drop]
    return divergence.compare({"rank0.jsonl": parsed(lines())}, {"rank0.jsonl": parsed(other)})


def first(change: dict[int, dict[str, Any]], drop: tuple[int, ...] = ()) -> Divergence:
    found = against(change, drop)
    assert not found.equal
    assert len(found.first) == 1
    return found.first[0]


def test_equal_traces_are_equal_and_it_is_counted_what_was_compared() -> None:
    found = against({})
    assert found.equal
    assert (found.losses, found.screens, found.digests) == (4, 4, 4)


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
    assert divergence.sentence(found) == said


def test_the_loss_comes_before_the_weights_of_its_step() -> None:
    assert first({3: {"loss": [9.0], **weights("xx0")}}).what == "loss"


def test_minus_zero_is_another_number_and_nan_is_itself() -> None:
    assert first({6: {"loss": [-0.0]}}).what == "loss"
    zero = [line | ({"loss": [0.0]} if line.get("step") == 3 else {}) for line in lines()]
    minus = [line | ({"loss": [-0.0]} if line.get("step") == 3 else {}) for line in lines()]
    assert divergence.compare({"a": parsed(zero)}, {"a": parsed(minus)}).first[0].step == 3


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
    assert not divergence.compare({}, {}).equal
    assert not divergence.compare({"rank0.jsonl": parsed([HEAD, END])}, {"rank0.jsonl": parsed([HEAD, END])}).equal


def test_a_process_of_one_side_alone_is_named() -> None:
    one = {"rank0.jsonl": parsed(lines())}
    found = divergence.compare(one | {"rank1.jsonl": parsed(lines())}, one)
    assert found.missing == ("rank1.jsonl: only the first run has a trace of it",)
    assert not found.equal


def test_the_earliest_step_of_all_processes_comes_first() -> None:
    later = [line | ({"loss": [9.0]} if line.get("step") == 3 else {}) for line in lines()]
    sooner = [line | ({"loss": [9.0]} if line.get("step") == 2 else {}) for line in lines()]
    mine = {"rank0.jsonl": parsed(lines()), "rank1.jsonl": parsed(lines())}
    found = divergence.compare(mine, {"rank0.jsonl": parsed(later), "rank1.jsonl": parsed(sooner)})
    assert [(one.process, one.step) for one in found.first] == [("rank1", 2), ("rank0", 3)]


def test_names_of_tensors_are_said_where_the_optimizer_knows_them() -> None:
    told = [line | ({"names": ["conv.weight", "conv.bias"]} if "kind" in line else {}) for line in lines()]
    other = [line | (weights("xx0") if line.get("step") == 0 else {}) for line in told]
    found = divergence.compare({"a": parsed(told)}, {"a": parsed(other)}).first[0]
    assert found.tensors == ("conv.weight", "conv.bias")


def test_a_hostile_trace_is_never_equal() -> None:
    told = trace.parse(HOSTILE)
    assert not divergence.compare({"a": told}, {"a": told}).equal
    other = trace.parse([*HOSTILE[:-2], b'{"optimizer": 7, "step": 2, "tensors": ["z"], "sha256": "z"}'])
    assert divergence.sentence(divergence.compare({"a": told}, {"a": other}).first[0])


def test_losses_alone_are_not_enough_to_be_equal() -> None:
    told = [{name: value for name, value in line.items() if name not in ("sha256", "tensors")} for line in lines()]
    found = divergence.compare({"rank0.jsonl": parsed(told)}, {"rank0.jsonl": parsed(told)})
    assert not found.first
    assert not found.equal
    assert found.missing == ("rank0: losses of 4 steps were compared, and no digest of the weights",)


def test_losses_that_are_not_known_are_not_compared() -> None:
    told = [line | ({"loss": [None]} if "loss" in line else {}) for line in lines()]
    assert divergence.compare({"a": parsed(told)}, {"a": parsed(told)}).losses == 0


def test_how_many_more_losses_there_were_is_compared() -> None:
    told = [line | ({"more": 3} if line.get("step") == 3 else {}) for line in lines()]
    other = [line | ({"more": 4} if line.get("step") == 3 else {}) for line in lines()]
    found = divergence.compare({"a": parsed(told)}, {"a": parsed(other)}).first[0]
    assert (found.what, found.step, found.left, found.right) == ("loss", 3, "2.0 and 3 more", "2.0 and 4 more")


def test_an_optimizer_that_came_late_is_not_the_first_difference() -> None:
    """Its model may be another one because earlier steps were."""

    def told(loss: float, shapes: list[str]) -> trace.Trace:
        late = [MODEL | {"optimizer": 1, "shapes": shapes}, {"optimizer": 1, "step": 0, **weights(shapes[0][:1] * 3)}]
        changed = [line | ({"loss": [loss]} if line.get("step") == 3 else {}) for line in lines()]
        return parsed([*changed[:8], *late, *changed[8:]])

    found = divergence.compare({"a": told(2.0, ["7:float32"])}, {"a": told(1.5, ["8:float32"])}).first[0]
    assert (found.what, found.optimizer, found.step) == ("loss", 0, 3)
    found = divergence.compare({"a": told(2.0, ["7:float32"])}, {"a": told(2.0, ["8:float32"])}).first[0]
    assert (found.what, found.optimizer, found.step) == ("tensors", 1, 0)


def test_a_rate_that_a_torn_line_told_is_no_difference() -> None:
    told = [json.dumps(line).encode() for line in lines()]
    told[5] = json.dumps(lines()[5] | {"lr": [0.05]}).encode()
    torn = trace.parse([*told[:5], told[5][:30], *told[6:]])
    found = divergence.compare({"a": trace.parse(told)}, {"a": torn})
    assert not found.first
    assert found.missing == ("a: 1 lines of the second run's trace cannot be read",)
