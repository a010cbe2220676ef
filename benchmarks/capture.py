"""Capture: the first one against the machine's sha256 rate and against pip inspect; again with nothing changed; memory."""

from __future__ import annotations

import sys
from pathlib import Path

import parts


def first(python: Path, directory: Path, store: Path) -> float:
    """Seconds of a capture into an empty directory; the clock stops when the command has ended."""
    parts.fresh(directory / "repro")
    return parts.run([parts.TOOL, "capture", "--python", python], env=parts.environ(store), cwd=directory)


INDEX = """
import os, sys, time
from repro_env.environment.python import distributions, interpreter as python
from repro_env.environment.wheels import identification as wheels
from repro_env.schema.progress import Silent
from repro_env.store.store import Store
facts = python.interpret(sys.argv[1], dict(os.environ)); scanned = distributions.scan(facts.layout)
start = time.perf_counter()
wheels.identify(scanned.distributions, facts.layout, store=Store.open(), tell=Silent())
print(time.perf_counter() - start)
"""


def index_alone(python: Path, store: Path) -> float:
    """Seconds to identify and prove every distribution, files already hashed: what the indexes cost."""
    return float(parts.output([sys.executable, "-c", INDEX, python], env=parts.environ(store)))


def main(count: int, *, torch: bool) -> list[parts.Row]:
    return measure(parts.environment(torch=torch), count, ", torch in the environment" if torch else "")


def measure(directory: Path, count: int, note: str) -> list[parts.Row]:
    """The rows for the environment `directory/.venv`, captured with `directory` as its source."""
    python = directory / ".venv" / "bin" / "python"
    store = parts.BUILD / "store"
    rate = parts.hash_rate()
    held = parts.size(directory / ".venv")

    bare = parts.BUILD / "bare"
    parts.fresh(bare).mkdir(parents=True)
    parts.run([python, "-m", "venv", "--without-pip", bare / ".venv"])
    (bare / "train.py").write_text("pass\n")
    base = first(bare / ".venv" / "bin" / "python", bare, parts.fresh(parts.BUILD / "bare-store"))
    index = index_alone(python, parts.fresh(store))  # what the indexes said is all that the store knows now
    total = first(python, directory, store)
    speed = held / max(total - base, 1e-9)
    rows = [
        parts.Row(
            f"first capture of {held >> 20} MiB, less the same for a bare venv ({base:.1f} s: start, base, interpreter)"
            f" and without the indexes ({index:.1f} s before); every byte is hashed twice, as a file and in its layer",
            f"{speed / 1e6:.0f} MB/s ({total:.1f} s in all)",
            f"{rate / 1e6:.0f} MB/s (sha256, all cores)",
            speed / rate,
            "at least 0.60",
            speed / rate >= 0.6,
        )
    ]
    words = [parts.TOOL, "capture", "--python", python]
    inspect = [python, "-m", "pip", "--disable-pip-version-check", "inspect", "--local"]
    again, theirs = parts.in_turn(
        count, lambda: parts.run(words, env=parts.environ(store), cwd=directory), lambda: parts.run(inspect)
    )
    rows.append(
        parts.Row("the same against `pip inspect --local`", f"{total:.2f} s", f"{theirs:.2f} s", total / theirs, "none", True)
    )
    rows.append(
        parts.Row(
            "capture again, nothing changed, to its end, against `pip inspect --local`, in turn",
            f"{again:.2f} s",
            f"{theirs:.2f} s",
            again / theirs,
            "at most 1.0",
            again <= theirs,
        )
    )
    most = parts.peak(words, env=parts.environ(store), cwd=directory)
    rows.append(
        parts.Row(
            "peak memory of a capture again" + note, f"{most / 1e6:.0f} MB", "300 MB", most / 300e6, "under 1.0", most < 300e6
        )
    )
    parts.fresh(store)
    parts.fresh(directory / "repro")
    most = parts.peak(words, env=parts.environ(store), cwd=directory)
    what = "peak memory of a first capture, all processes together" + note
    rows.append(parts.Row(what, f"{most / 1e6:.0f} MB", "300 MB", most / 300e6, "under 1.0", most < 300e6))
    return rows


if __name__ == "__main__":
    options = parts.arguments(__doc__)
    parts.report(main(options.count, torch=not options.no_torch))
