"""Random files of torch, NumPy, safetensors and pickle: each change is found at its place, and files without a change are equal."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from repro_env.compare.outputs.tensors import answers
from tests.compare.outputs.sides import COMPARE
from tests.fakes.looks import changes
from tests.parts import need

SWEEP = Path(__file__).with_name("sweep.py")


def errors(case: dict[str, Any]) -> list[str]:
    """The errors in the answers about one pair."""
    expected = case["expected"]
    messages = []
    for answered in case["answers"]:
        (answer,) = answers(json.dumps([answered]).encode(), 1)
        if answer.problem:
            messages.append(f"a problem: {answer.problem}")
        elif bool(changes(answer)) != (expected["level"] != "bitwise"):
            messages.append(f"{expected['level']} is expected, and these differ: {changes(answer)}")
        numbers = {name: expected[name] for name in ("differing", "at", "ulp") if expected.get(name) is not None}
        if numbers:
            tensor, *more = answered.get("different") or [{}]
            messages += [f"more tensors differ: {[tensor['name'] for tensor in more]}"] if more else []
            messages += [
                f"{name} is {tensor.get(name)}, not {value}" for name, value in numbers.items() if tensor.get(name) != value
            ]
            distance = expected.get("absolute")
            if distance is not None and abs(tensor.get("absolute", -1) - distance) > 1e-12 * distance:
                messages.append(f"absolute is {tensor.get('absolute')}, not {distance}")
    for name in ("problem", "unequal", "odd", "far", "gone", "come", "other"):
        if case["answers"][0].get(name) != case["answers"][1].get(name):
            messages.append(f"the answers with and without NumPy differ in {name}")
    return messages


def sweep(directory: Path, seed: int, count: int) -> tuple[list[tuple[Any, list[str]]], Counter[str]]:
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(python, "no environment with torch, NumPy and safetensors: `make trainers`, and name it in REPRO_ENV_TEST_TRAINERS")
    command = [python, "-W", "ignore", str(SWEEP), str(COMPARE.parent), str(directory), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = json.loads(done.stdout)
    counts = Counter("skipped" if "skipped" in case else case["expected"]["level"] for case in cases)
    bad = [(case["case"], errors(case)) for case in cases if "skipped" not in case]
    return [(name, messages) for name, messages in bad if messages], counts


def test_a_planted_change_is_found_and_nothing_else(tmp_path: Path) -> None:
    bad, counts = sweep(tmp_path, 0, 120)
    assert not bad, bad[:5]
    assert counts["bitwise"] > 80
    assert counts["some"] + counts["different"] > 50


@pytest.mark.soak
def test_thousands_of_planted_changes_are_found(tmp_path: Path) -> None:
    for seed in range(1000, 4000, 1500):
        bad, counts = sweep(tmp_path, seed, 1500)
        assert not bad, bad[:5]
        assert counts["bitwise"] > 800
