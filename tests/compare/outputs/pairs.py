"""Pairs of outputs from two equal runs."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from repro_env.compare.outputs import results
from repro_env.compare.outputs import verdict as judging
from repro_env.compare.outputs.evidence import of_run
from repro_env.compare.outputs.fields import random_names
from repro_env.compare.outputs.ignore import parse
from repro_env.compare.outputs.results import Globs, Side
from repro_env.compare.outputs.verdict import Verdict
from repro_env.schema.run import End, Start
from repro_env.schema.rundirectory import locate
from tests.compare.outputs.sides import BITWISE, look

HONEST = Path(__file__).with_name("honest")
CASES = [json.loads(line) for line in (HONEST / "cases.jsonl").read_text().splitlines()]


def side(directory: Path) -> Side:
    start = msgspec.json.decode((directory / "start.json").read_bytes(), type=Start)
    end = msgspec.json.decode((directory / "end.json").read_bytes(), type=End)
    digests = {output.path: output.sha256 for output in end.outputs}
    evidence = of_run(start, end, start.source.path, random_names(list(digests)))
    without_console = msgspec.structs.replace(end, console=())
    return Side(digests, {path: locate(directory / "files", path) for path in digests}, without_console, directory, evidence)


def judge_case(case: dict[str, Any], directory: Path, accepted: tuple[str, ...]) -> Verdict:
    with tarfile.open(HONEST / f"{case['case']}.tar.xz") as archive:
        archive.extractall(directory, filter="tar")
    globs = Globs(ignored=tuple(map(parse, accepted)))
    return judging.verdict(results.compare(side(directory / "then"), side(directory / "now"), globs, look), BITWISE)
