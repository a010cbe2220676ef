"""What one process told of its training."""

from __future__ import annotations

import json
from typing import Any

from repro_env.verify import trace

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
    b'{"optimizer": 7, "step": 2, "tensors": ["' + b"x" * 64 + b'"], "sha256": "y"}',
    b'{"optimizer": 7, "step": 4, "tensors": ["\\u001b[2J", "a"], "sha256": "\\u202eabc", "screen": "' + b"0" * 65 + b'"}',
]


def test_a_hostile_trace_is_read_as_far_as_it_can_be() -> None:
    told = trace.parse(HOSTILE)
    assert told.strange == 10
    assert [one.step for one in told.steps] == [3, 2, 4]
    assert told.steps[-1].sha256 is None
    assert told.steps[-1].screen is None
    assert told.steps[-1].tensors == ("", "a")


def test_after_a_line_that_cannot_be_read_the_learning_rate_is_not_known() -> None:
    told = [json.dumps(line).encode() for line in lines()]
    assert trace.parse(told).steps[2].rates == (0.1,)
    torn = trace.parse([*told[:4], told[5][:20], *told[6:]])
    assert torn.strange == 1
    assert [one.rates for one in torn.steps if one.step == 3] == [None]


def test_a_rate_on_a_device_is_not_known() -> None:
    assert trace.parse([b'{"optimizer": 0, "step": 1, "lr": [0.5, null, "nan"]}']).steps[0].rates is not None
