"""Capture: the first one against the machine's sha256 rate and against pip inspect; again with nothing changed; memory."""

from __future__ import annotations

import sys
from pathlib import Path

import parts


def first(python: Path, folder: Path, store: Path) -> float:
    """Seconds of a capture into an empty folder; the clock stops when the command has ended."""
    parts.fresh(folder / "repro")
    return parts.run([parts.TOOL, "capture", "--python", python], env=parts.environ(store), cwd=folder)


def index_alone(python: Path, store: Path) -> float:
    """Seconds to identify and prove every distribution, files already hashed: what the indexes cost."""
    code = (
        "import os, sys, time\n"
        "from repro_env.capture import distributions, python\n"
        "from repro_env.lock import identify\n"
        "from repro_env.model.talk import Silent\n"
        "from repro_env.store.store import Store\n"
        "facts = python.interpret(sys.argv[1], dict(os.environ)); scanned = distributions.scan(facts)\n"
        "start = time.perf_counter(); identify.identify(scanned.distributions, facts, store=Store.open(), talk=Silent())\n"
        "print(time.perf_counter() - start)\n"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", code, str(python)],
        env=parts.environ(store),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main(count: int, *, torch: bool) -> list[parts.Row]:
    folder = parts.environment(torch=torch)
    python = folder / ".venv" / "bin" / "python"
    store = parts.BUILD / "store"
    rate = parts.hash_rate()
    held = parts.size(folder / ".venv")

    bare = parts.BUILD / "bare"
    parts.fresh(bare).mkdir(parents=True)
    parts.run([python, "-m", "venv", "--without-pip", bare / ".venv"])
    (bare / "train.py").write_text("pass\n")
    base = first(bare / ".venv" / "bin" / "python", bare, parts.fresh(parts.BUILD / "bare-store"))
    index = index_alone(python, parts.fresh(store))  # what the indexes said is all that the store knows now
    total = first(python, folder, store)
    rows = []
    speed = held / max(total - base, 1e-9)
    rows.append(
        parts.Row(
            f"first capture of {held >> 20} MiB, less the same for a bare venv ({base:.1f} s: start, base, interpreter)"
            f" and without the indexes ({index:.1f} s before); every byte is hashed twice, as a file and in its layer",
            f"{speed / 1e6:.0f} MB/s ({total:.1f} s in all)",
            f"{rate / 1e6:.0f} MB/s (sha256, all cores)",
            speed / rate,
            "at least 0.60",
            speed / rate >= 0.6,
        )
    )
    inspect = [python, "-m", "pip", "--disable-pip-version-check", "inspect", "--local"]
    theirs = parts.median(count, lambda: parts.run(inspect))
    rows.append(
        parts.Row("the same against `pip inspect --local`", f"{total:.2f} s", f"{theirs:.2f} s", total / theirs, "none", True)
    )
    words = [parts.TOOL, "capture", "--python", python]
    again = parts.median(count, lambda: parts.run(words, env=parts.environ(store), cwd=folder))
    rows.append(
        parts.Row(
            "capture again, nothing changed, to its end, against `pip inspect --local`",
            f"{again:.2f} s",
            f"{theirs:.2f} s",
            again / theirs,
            "at most 1.0",
            again <= theirs,
        )
    )
    parts.fresh(store)
    most = parts.peak(words, env=parts.environ(store), cwd=folder)
    what = "peak memory of a first capture, all processes together" + (", torch in the environment" if torch else "")
    rows.append(parts.Row(what, f"{most / 1e6:.0f} MB", "300 MB", most / 300e6, "under 1.0", most < 300e6))
    return rows


if __name__ == "__main__":
    options = parts.arguments(__doc__)
    parts.report(main(options.count, torch=not options.no_torch))
