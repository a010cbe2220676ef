"""Traces as text."""

from __future__ import annotations

import json
from typing import Any

from repro_env.compare.traces import trace

HEAD = {"trace": 1, "rank": "0", "worker": [], "program": "train.py", "torch": "2.13.0"}
MODEL = {"optimizer": 0, "kind": "SGD", "shapes": ["2x3:float32", "2:float32"], "names": []}
END = {"end": {"untraced": 0, "steps": [4]}}


def weights(word: str) -> dict[str, Any]:
    return {"sha256": word * 8, "tensors": [word, word[::-1]]}


def lines() -> list[dict[str, Any]]:
    """The trace of four steps, with digests of the weights before the first step, after the first two, and at the end."""
    return [
        HEAD,
        MODEL,
        {"optimizer": 0, "step": 0, **weights("aa0")},
        {"optimizer": 0, "step": 1, "lr": [0.1], "loss": [2.5], "screen": "00000001", **weights("bb0")},
        {"optimizer": 0, "step": 2, "loss": [2.25], "screen": "00000002", **weights("cc0")},
        {"optimizer": 0, "step": 3, "loss": [2.0], "screen": "00000003"},
        {"optimizer": 0, "step": 4, "loss": ["nan"], "screen": "00000004"},
        {"optimizer": 0, "step": 4, "exit": True, **weights("dd0")},
        END,
    ]


def parsed(lines: list[dict[str, Any]]) -> trace.Trace:
    return trace.parse([json.dumps(line).encode() for line in lines])


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
