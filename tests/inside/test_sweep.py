"""Random files that torch, NumPy, safetensors and pickle wrote: what was changed is found, at its place; what was not is the same."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from repro_env.verify.answers import answers
from tests.fakes.looks import changes
from tests.parts import need
from tests.verify.sides import INSIDE

SWEEP = Path(__file__).with_name("sweep.py")


def wrong(one: dict[str, Any]) -> list[str]:
    """What is wrong with the answers about one pair."""
    expected = one["expected"]
    found = []
    for said in one["answers"]:
        (answer,) = answers(json.dumps([said]).encode(), 1)
        if answer.problem:
            found.append(f"a problem: {answer.problem}")
        elif bool(changes(answer)) != (expected["level"] != "bitwise"):
            found.append(f"{expected['level']} is expected, and these differ: {changes(answer)}")
        numbers = {name: expected[name] for name in ("differing", "at", "ulp") if expected.get(name) is not None}
        if numbers:
            tensor, *more = said.get("different") or [{}]
            found += [f"more differ: {[one['name'] for one in more]}"] if more else []
            found += [
                f"{name} is {tensor.get(name)}, not {value}" for name, value in numbers.items() if tensor.get(name) != value
            ]
            away = expected.get("absolute")
            if away is not None and abs(tensor.get("absolute", -1) - away) > 1e-12 * away:
                found.append(f"absolute is {tensor.get('absolute')}, not {away}")
    for name in ("problem", "unequal", "odd", "far", "gone", "come", "other"):
        if one["answers"][0].get(name) != one["answers"][1].get(name):
            found.append(f"two ways, two answers: {name}")
    return found


def swept(folder: Path, seed: int, count: int) -> tuple[list[tuple[Any, list[str]]], Counter[str]]:
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(python, "no environment with torch, NumPy and safetensors: `make trainers`, and name it in REPRO_ENV_TEST_TRAINERS")
    words = [python, "-W", "ignore", str(SWEEP), str(INSIDE.parent), str(folder), str(seed), str(count)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = json.loads(ended.stdout)
    count_of = Counter("skipped" if "skipped" in one else one["expected"]["level"] for one in said)
    bad = [(one["case"], wrong(one)) for one in said if "skipped" not in one]
    return [(case, why) for case, why in bad if why], count_of


def test_a_planted_change_is_found_and_nothing_else(tmp_path: Path) -> None:
    bad, counts = swept(tmp_path, 0, 120)
    assert not bad, bad[:5]
    assert counts["bitwise"] > 80
    assert counts["some"] + counts["different"] > 50


@pytest.mark.soak
def test_thousands_of_planted_changes_are_found(tmp_path: Path) -> None:
    for seed in range(1000, 4000, 1500):
        bad, counts = swept(tmp_path, seed, 1500)
        assert not bad, bad[:5]
        assert counts["bitwise"] > 800
