"""Capture: processor time of a first one, again with nothing changed against pip inspect, and memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import parts

INDEX = """
import os, sys
from repro_env.environment.python import distributions, interpreter as python
from repro_env.environment.wheels import identification as wheels
from repro_env.schema.progress import Silent
from repro_env.store.store import Store
facts = python.interpret(sys.argv[1], dict(os.environ)); scanned = distributions.scan(facts.layout)
wheels.identify(scanned.distributions, facts.layout, store=Store.open(), tell=Silent())
"""


IMPORTS = """
import importlib
for name in ("numpy", "scipy.linalg", "torch"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
"""


def index_alone(python: Path, store: Path) -> None:
    """Identify and prove every distribution: the store then has what the indexes answered, and nothing else."""
    parts.output([sys.executable, "-c", INDEX, python], env=parts.environ(store))


def main(count: int, *, torch: bool) -> list[parts.Row]:
    rows = measure(parts.environment(torch=False), count, "8 packages", most=3)
    return rows + measure(parts.environment(torch=True), count, "torch", most=6) if torch else rows


def measure(directory: Path, count: int, note: str, *, most: float) -> list[parts.Row]:
    """The rows for the environment `directory/.venv`, captured with `directory` as its source. `most`: seconds of a first capture."""
    python = directory / ".venv" / "bin" / "python"
    store = parts.BUILD / "store"
    rate = parts.hash_rate()
    held = parts.size(directory / ".venv")
    words: list[str | Path] = [parts.TOOL, "capture", "--python", python]

    index_alone(python, parts.fresh(store))  # what the indexes said is all that the store knows now
    parts.fresh(directory / "repro")
    total = parts.processor(words, env=parts.environ(store), cwd=directory)
    physical = 2 * held / rate * len(os.sched_getaffinity(0))
    what = f"{note}: first capture of {held >> 20} MiB, processor time, the indexes' answers known"
    rows = [parts.limit(f"{what} (sha256 of each byte, twice: {physical:.1f} s)", total, most)]
    inspect: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "inspect", "--local"]
    again, theirs = parts.in_turn(
        count, lambda: parts.run(words, env=parts.environ(store), cwd=directory), lambda: parts.run(inspect)
    )
    what = f"{note}: capture again, nothing changed, to its end, against `pip inspect --local`, in turn"
    rows.append(parts.Row(what, f"{again:.2f} s", f"{theirs:.2f} s", again / theirs, "at most 1.5", again <= 1.5 * theirs))
    parts.fresh(store)
    parts.fresh(directory / "repro")
    peak = parts.peak(words, env=parts.environ(store), cwd=directory, children=False)
    what = f"{note}: peak memory of a first capture, without the captured interpreter, which imports the frameworks"
    rows.append(parts.limit(what, peak / 1e6, 200, "MB"))
    parts.fresh(store)
    parts.fresh(directory / "repro")
    both = parts.peak(words, env=parts.environ(store), cwd=directory)
    alone = parts.peak([python, "-c", IMPORTS], env=parts.environ(store), cwd=directory)
    what = f"{note}: the same with it, against the import of the same frameworks alone"
    return [*rows, parts.Row(what, f"{both / 1e6:.0f} MB", f"{alone / 1e6:.0f} MB", both / alone, "none", True)]


if __name__ == "__main__":
    options = parts.arguments(__doc__)
    parts.report(main(options.count, torch=not options.no_torch))
