"""Pairs of real trainings that came out equal: `honest/` has two runs of each, recorded, and what a user has to accept once."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.catalog.outputs import place
from repro_env.flows import results
from repro_env.flows.results import Globs, Side
from repro_env.model.run import End, Start
from repro_env.verify import verdict as judging
from repro_env.verify.evidence import of_run
from repro_env.verify.fields import own_names
from repro_env.verify.ignore import parse
from repro_env.verify.verdict import Verdict
from tests.verify.sides import BITWISE, look

HONEST = Path(__file__).with_name("honest")
CASES = [json.loads(line) for line in (HONEST / "cases.jsonl").read_text().splitlines()]


def side(folder: Path) -> Side:
    start = msgspec.json.decode((folder / "start.json").read_bytes(), type=Start)
    end = msgspec.json.decode((folder / "end.json").read_bytes(), type=End)
    held = {output.path: output.sha256 for output in end.outputs}
    own = of_run(start, end, ((start.source.path, "the project's directory"), *own_names(list(held))), ())
    bare = msgspec.structs.replace(end, console=())
    return Side(held, {path: place(folder / "files", path) for path in held}, bare, folder, own)


def judged(case: dict[str, Any], folder: Path, accepted: tuple[str, ...]) -> Verdict:
    with tarfile.open(HONEST / f"{case['case']}.tar.xz") as archive:
        archive.extractall(folder, filter="tar")
    globs = Globs(ignored=tuple(map(parse, accepted)))
    return judging.verdict(results.compare(side(folder / "then"), side(folder / "now"), globs, look), BITWISE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_an_equal_training_is_equal_with_what_was_accepted(case: dict[str, Any], tmp_path: Path) -> None:
    found = judged(case, tmp_path, tuple(case["accept"]))
    assert (found.level, found.same) == (case["expect"], True), found.sentence
    if found.level == "equal except for":
        assert sum(file.ignored_count for file in found.files) or any(file.kind == "ignored" for file in found.files)


@pytest.mark.parametrize("case", [case for case in CASES if case["accept"]], ids=lambda case: case["case"])
def test_what_the_user_did_not_accept_is_different(case: dict[str, Any], tmp_path: Path) -> None:
    found = judged(case, tmp_path, ())
    assert not found.same
    assert found.level in ("different", "numeric")
