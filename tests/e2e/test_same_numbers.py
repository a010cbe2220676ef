"""Unmodified trainings that seed nothing: run after run, the same bytes. The rows of `docs/same-numbers.md`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import parts
from tests.parts import need

ROWS = Path(__file__).with_name("rows")


class Row(NamedTuple):
    command: tuple[str, ...]
    outputs: frozenset[str]
    """Paths that have to be there, as `ran` gives them."""


CNN = ("0:", "2:fork", "2:spawn")
LONG = ("4:fork", "4:spawn", "2:forkserver")


def cnn(*words: str) -> Row:
    return Row(("cnn.py", *words), frozenset(f"{word.replace(':', '-')}/weights.pt" for word in words))


TABLE = {
    "cnn": cnn(*CNN),
    "transformer": Row(("transformer.py",), frozenset({"transformer.pt"})),
    "forest": Row(("forest.py",), frozenset({"forest.joblib", "importance.npy"})),
    "generators": Row(("generators.py",), frozenset({"draws.npy", "order.txt"})),
    "gpu": Row(("gpu/train.py", "--steps", "5", "--width", "8"), frozenset({"weights.pt"})),
    "ranks": Row(("torchrun", "--nproc-per-node", "2", "ranks.py"), frozenset({"rank0.pt", "rank1.pt"})),
    "lightning": Row(
        ("lit.py", "+width=8"),
        frozenset({"lightning_logs/version_0/checkpoints/epoch=1-step=8.ckpt", "outputs/DATE/.hydra/config.yaml"}),
    ),
    "trainer": Row(
        ("trainer.py",),
        frozenset(
            {"weights.pt", *(f"out/checkpoint-6/{name}" for name in ("model.safetensors", "optimizer.pt", "rng_state.pth"))}
        ),
    ),
}
LONG_COUNT = ("transformer", "forest", "gpu", "lightning", "trainer")
"""Rows that only `make soak` runs."""
CLOCKS = ("events.out.tfevents", "trainer_state.json", "lit.log", "hydra.yaml", "training_args.bin")
"""Files with times, hosts or directories of the moment in them, by a part of their name."""


@pytest.fixture(scope="module")
def rows(ground: Path, torch: parts.Project) -> parts.Project:
    """The libraries that people train with, as captured for `torch`, in another directory with the rows as its source."""
    python = parts.having("torch", "lightning", "hydra", "transformers")
    need(python == torch.python, "no environment of trainers: `make test` makes one where pip knows a place with a CPU build")
    made = parts.project(ground / "rows", torch.python, torch.store)
    shutil.copytree(torch.directory / "repro", made.directory / "repro", symlinks=True)
    for script in (torch.directory / "train.py", *ROWS.glob("*.py")):
        shutil.copy(script, made.directory / script.name)
    shutil.copytree(parts.ROOT / "examples" / "gpu", made.directory / "gpu")
    return made


def ran(project: parts.Project, row: Row, to: Path, *options: str) -> dict[str, str]:
    """Path, dates masked -> sha256 of what one run wrote, but for clocks."""
    project.run("exec", *options, *row.command)
    project.run("runs", "get", "latest", "--to", to)
    there = {path: digest for path, digest in parts.digests(to).items() if not any(clock in path for clock in CLOCKS)}
    entries = {re.sub(r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d", "DATE", path): digest for path, digest in there.items()}
    assert len(entries) == len(there)
    assert entries.keys() >= row.outputs
    return entries


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TABLE if name not in LONG_COUNT])
def test_two_runs_are_equal(rows: parts.Project, tmp_path: Path, name: str) -> None:
    first, second = (ran(rows, TABLE[name], tmp_path / run) for run in ("first", "second"))
    assert second == first
    if name == "generators":
        check_that_the_seed_matters(rows, name, first, tmp_path)


def check_that_the_seed_matters(rows: parts.Project, name: str, first: dict[str, str], tmp_path: Path) -> None:
    """Else the runs would be equal for a reason that has nothing to do with seeds."""
    other = ran(rows, TABLE[name], tmp_path / "other", "--seed", "4")
    assert all(first[output] != other[output] for output in TABLE[name].outputs)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*TABLE, "long cnn"])
def test_twenty_runs_are_equal(rows: parts.Project, tmp_path: Path, name: str) -> None:
    row = cnn(*CNN, *LONG) if name == "long cnn" else TABLE[name]
    first, *others = (ran(rows, row, tmp_path / str(number)) for number in range(20))
    for other in others:
        assert other == first
    if name == "transformer":
        check_that_the_seed_matters(rows, name, first, tmp_path)


@pytest.mark.soak
def test_fork_and_spawn_agree(rows: parts.Project, tmp_path: Path) -> None:
    fork, spawn = ran(rows, cnn("2:fork"), tmp_path / "fork"), ran(rows, cnn("2:spawn"), tmp_path / "spawn")
    assert fork["2-fork/weights.pt"] == spawn["2-spawn/weights.pt"]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["lightning", "trainer", "ranks"])
def test_verify_accepts_the_files_that_frameworks_write(rows: parts.Project, name: str) -> None:
    """More of them, recorded: `tests/compare/outputs/honest`."""
    rows.run("exec", *TABLE[name].command)
    answer = json.loads(rows.run("verify", "latest", "--json").out)
    assert (answer["same"], answer["promised"]) == (True, "bitwise"), answer
    assert answer["level"] == ("equal except for" if name == "lightning" else "bitwise")
