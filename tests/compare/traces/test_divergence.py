"""Two traces and their first difference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repro_env.compare.traces import divergence, trace
from repro_env.compare.traces.divergence import Comparison, Divergence
from tests.compare.traces.lines import END, HEAD, HOSTILE, MODEL, lines, parsed, weights


def compare_with(change: dict[int, dict[str, Any]], drop: tuple[int, ...] = ()) -> Comparison:
    """Compare the trace with a copy in which some lines are changed or missing."""
    changed = [line | change.get(number, {}) for number, line in enumerate(lines()) if number not in drop]
    return divergence.compare({"rank0.jsonl": parsed(lines())}, {"rank0.jsonl": parsed(changed)})


def first(change: dict[int, dict[str, Any]], drop: tuple[int, ...] = ()) -> Divergence:
    found = compare_with(change, drop)
    assert not found.equal
    assert len(found.first) == 1
    return found.first[0]


def test_equal_traces_are_equal_and_comparisons_are_counted() -> None:
    found = compare_with({})
    assert found.equal
    assert (found.losses, found.digests) == (4, 4)


CASES: list[tuple[dict[int, dict[str, Any]], str, int, int | None, str]] = [
    (
        {2: weights("xx0")},
        "weights before the first step",
        0,
        None,
        (
            "rank0: the weights differ before the first step, in 2 of 2 tensors (tensor 0 (2x3:float32), tensor 1 (2:float32)): "
            "check the initialisation and its seed"
        ),
    ),
    (
        {3: {"loss": [2.5000000000000004]}},
        "loss",
        1,
        0,
        (
            "rank0: the first difference is the loss in step 1 (2.5; 2.5000000000000004), with equal weights before it: check the "
            "batch, and the random numbers and operations of the forward pass"
        ),
    ),
    (
        {3: {"lr": [0.2]}},
        "learning rate",
        1,
        0,
        "rank0: the first difference is the learning rate in step 1 (0.1; 0.2); all weights were equal before the first step",
    ),
    (
        {3: {**weights("bb0"), "sha256": "x", "tensors": ["bb0", "x"]}},
        "weights",
        1,
        0,
        (
            "rank0: the first difference is in the weights after step 1, in 1 of 2 tensors (tensor 1 (2:float32)): check the "
            "backward pass and optimizer"
        ),
    ),
    (
        {5: {"screen": "0000000f"}},
        "weights",
        3,
        2,
        "rank0: the first difference is in the weights after step 3: check the backward pass and optimizer",
    ),
    (
        {6: {"loss": [1.0]}},
        "loss",
        4,
        2,
        (
            "rank0: the first known difference is the loss in step 4 (nan; 1.0); all weights were equal after step 2: check the "
            "batch, and the random numbers and operations of the forward pass"
        ),
    ),
    (
        {7: weights("xx0")},
        "weights at exit",
        4,
        2,
        (
            "rank0: the weights differ at the end, in 2 of 2 tensors (tensor 0 (2x3:float32), tensor 1 (2:float32)), but in no step "
            "before it; all weights were equal after step 2"
        ),
    ),
    (
        {1: {"kind": "Adam"}},
        "tensors",
        0,
        None,
        (
            "rank0: the models or optimizers differ before the first step (SGD of 2 tensors (2x3:float32, 2:float32); Adam of 2 "
            "tensors (2x3:float32, 2:float32))"
        ),
    ),
    ({0: {"program": "other.py"}}, "program", 0, None, "rank0: the programs differ (train.py; other.py)"),
    (
        {8: {"end": {"untraced": 0, "steps": [4, 1]}}},
        "steps",
        0,
        4,
        "rank0, optimizer 1: equal up to step 0, where one run ended (0 and 1 steps)",
    ),
]


@pytest.mark.parametrize(("change", "what", "step", "equal", "sentence"), CASES, ids=[f"{case[1]}-{case[2]}" for case in CASES])
def test_a_planted_difference_is_found_and_described(
    change: dict[int, dict[str, Any]], what: str, step: int, equal: int | None, sentence: str
) -> None:
    found = first(change)
    assert (found.what, found.step) == (what, step)
    if found.optimizer == 0:
        assert found.equal == equal
    assert divergence.sentence(found) == sentence


def test_the_loss_is_compared_before_the_weights_of_its_step() -> None:
    assert first({3: {"loss": [9.0], **weights("xx0")}}).what == "loss"


def test_minus_zero_differs_from_zero_and_nan_equals_nan() -> None:
    assert first({5: {"loss": [-0.0]}}).what == "loss"
    zero = [line | ({"loss": [0.0]} if line.get("step") == 3 else {}) for line in lines()]
    minus = [line | ({"loss": [-0.0]} if line.get("step") == 3 else {}) for line in lines()]
    assert divergence.compare({"a": parsed(zero)}, {"a": parsed(minus)}).first[0].step == 3


def test_steps_on_one_side_only_are_not_compared() -> None:
    found = compare_with({}, drop=(4, 5))
    assert found.equal
    assert (found.losses, found.digests) == (2, 3)


def test_different_numbers_of_steps_are_a_difference() -> None:
    shorter = {8: {"end": {"untraced": 0, "steps": [3]}}}
    found = first(shorter, drop=(6, 7))
    assert (found.what, found.step) == ("steps", 3)


def test_a_trace_without_an_end_is_not_equal() -> None:
    found = compare_with({}, drop=(7, 8))
    assert not found.first
    assert not found.equal
    assert found.missing == ("rank0: the trace of the second run has no end, so its last steps may be missing",)


def test_empty_traces_are_not_equal() -> None:
    assert not divergence.compare({}, {}).equal
    assert not divergence.compare({"rank0.jsonl": parsed([HEAD, END])}, {"rank0.jsonl": parsed([HEAD, END])}).equal


def test_a_process_of_one_run_only_is_reported() -> None:
    traces = {"rank0.jsonl": parsed(lines())}
    found = divergence.compare(traces | {"rank1.jsonl": parsed(lines())}, traces)
    assert found.missing == ("rank1.jsonl: only the first run has this trace",)
    assert not found.equal


def test_the_earliest_step_of_all_processes_comes_first() -> None:
    changed_late = [line | ({"loss": [9.0]} if line.get("step") == 3 else {}) for line in lines()]
    changed_early = [line | ({"loss": [9.0]} if line.get("step") == 2 else {}) for line in lines()]
    left = {"rank0.jsonl": parsed(lines()), "rank1.jsonl": parsed(lines())}
    found = divergence.compare(left, {"rank0.jsonl": parsed(changed_late), "rank1.jsonl": parsed(changed_early)})
    assert [(difference.process, difference.step) for difference in found.first] == [("rank1", 2), ("rank0", 3)]


def test_tensors_have_the_names_that_the_optimizer_knows() -> None:
    left = [line | ({"names": ["conv.weight", "conv.bias"]} if "kind" in line else {}) for line in lines()]
    right = [line | (weights("xx0") if line.get("step") == 0 else {}) for line in left]
    found = divergence.compare({"a": parsed(left)}, {"a": parsed(right)}).first[0]
    assert found.tensors == ("conv.weight", "conv.bias")


def test_a_hostile_trace_is_not_equal() -> None:
    left = trace.parse(HOSTILE)
    assert not divergence.compare({"a": left}, {"a": left}).equal
    right = trace.parse([*HOSTILE[:-2], b'{"optimizer": 7, "step": 2, "tensors": ["z"], "sha256": "z"}'])
    assert divergence.sentence(divergence.compare({"a": left}, {"a": right}).first[0])


def test_traces_with_only_losses_are_not_equal() -> None:
    losses = [{name: value for name, value in line.items() if name not in ("sha256", "tensors")} for line in lines()]
    found = divergence.compare({"rank0.jsonl": parsed(losses)}, {"rank0.jsonl": parsed(losses)})
    assert not found.first
    assert not found.equal
    assert found.missing == ("rank0: only the losses of 4 steps were compared, and no digests of the weights",)


def test_unknown_losses_are_not_compared() -> None:
    unknown = [line | ({"loss": [None]} if "loss" in line else {}) for line in lines()]
    assert divergence.compare({"a": parsed(unknown)}, {"a": parsed(unknown)}).losses == 0


def test_the_number_of_unlisted_losses_is_compared() -> None:
    left = [line | ({"more": 3} if line.get("step") == 3 else {}) for line in lines()]
    right = [line | ({"more": 4} if line.get("step") == 3 else {}) for line in lines()]
    found = divergence.compare({"a": parsed(left)}, {"a": parsed(right)}).first[0]
    assert (found.what, found.step, found.left, found.right) == ("loss", 3, "2.0 and 3 more", "2.0 and 4 more")


def test_a_late_optimizer_is_not_the_first_difference() -> None:
    """Its model may differ because earlier steps differ."""

    def make_trace(loss: float, shapes: list[str]) -> trace.Trace:
        late = [MODEL | {"optimizer": 1, "shapes": shapes}, {"optimizer": 1, "step": 0, **weights(shapes[0][:1] * 3)}]
        changed = [line | ({"loss": [loss]} if line.get("step") == 3 else {}) for line in lines()]
        return parsed([*changed[:7], *late, *changed[7:]])

    found = divergence.compare({"a": make_trace(2.0, ["7:float32"])}, {"a": make_trace(1.5, ["8:float32"])}).first[0]
    assert (found.what, found.optimizer, found.step) == ("loss", 0, 3)
    found = divergence.compare({"a": make_trace(2.0, ["7:float32"])}, {"a": make_trace(2.0, ["8:float32"])}).first[0]
    assert (found.what, found.optimizer, found.step) == ("tensors", 1, 0)


def test_a_learning_rate_in_a_damaged_line_is_not_a_difference() -> None:
    complete = [json.dumps(line).encode() for line in lines()]
    complete[4] = json.dumps(lines()[4] | {"lr": [0.05]}).encode()
    damaged = trace.parse([*complete[:4], complete[4][:30], *complete[5:]])
    found = divergence.compare({"a": trace.parse(complete)}, {"a": damaged})
    assert not found.first
    assert found.missing == ("a: 1 lines in the trace of the second run cannot be read",)
