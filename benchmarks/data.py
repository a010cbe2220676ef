"""Data: fingerprinting 100,000 small files, with cold caches and again, against sha256sum over the same files.

`python benchmarks/data.py [--count N] [--files N]`; cold only as root, who alone can have the kernel forget files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import parts

_CACHES = Path("/proc/sys/vm/drop_caches")
_OURS = (
    "import sys; from pathlib import Path; from repro_env.environment.source import data; from repro_env.store.store import Store;"
    "data.fingerprint(Path(sys.argv[1]), '/data', Store.open(Path(sys.argv[2])).hashes)"
)


def tree(directory: Path, count: int) -> int:
    """`count` files of 2 to 20 kB in directories of 1,000, the same on every machine; their bytes."""
    numbers = random.Random(0)
    total = 0
    for number in range(count):
        path = directory / f"{number // 1000:03d}" / f"{number:06d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.randbytes(numbers.randint(2_000, 20_000)))
        total += path.stat().st_size
    return total


def forget() -> None:
    os.sync()
    _CACHES.write_text("3")


def ours(directory: Path, known: Path) -> float:
    return parts.run([sys.executable, "-c", _OURS, directory, known])


def theirs(directory: Path) -> float:
    """sha256sum, one process on each core."""
    start = time.perf_counter()
    words = f"find . -type f -print0 | xargs -0 -P {len(os.sched_getaffinity(0))} -n 500 sha256sum > /dev/null"
    subprocess.run(["sh", "-c", words], cwd=directory, check=True)
    return time.perf_counter() - start


def in_turn(
    count: int, first: Callable[[], float], second: Callable[[], float], before: Callable[[], object]
) -> tuple[float, float]:
    """Medians of two things measured in turn, so that another's load hits both."""
    pairs = []
    for _ in range(count):
        before()
        one = first()
        before()
        pairs.append((one, second()))
    return statistics.median(one for one, _ in pairs), statistics.median(other for _, other in pairs)


def main(count: int, files: int) -> list[parts.Row]:
    directory, known = parts.BUILD / "data", parts.BUILD / "store"
    size = tree(parts.fresh(directory), files)
    time.sleep(3)  # what was written just now is hashed and not remembered

    def first() -> float:
        parts.fresh(known)
        return ours(directory, known)

    rows = []
    if os.access(_CACHES, os.W_OK):
        mine, other = in_turn(count, first, lambda: theirs(directory), forget)
        rows.append(
            _row(f"first fingerprint of {files:,} files, {size / 1e6:,.0f} MB, cold", mine, other, "under 10 s", mine < 10)
        )
    mine, other = in_turn(count, first, lambda: theirs(directory), lambda: None)
    rows.append(_row("the same, files in memory", mine, other, "at most 1.0", mine <= other))
    mine, other = in_turn(count, lambda: ours(directory, known), lambda: theirs(directory), lambda: None)
    rows.append(_row("the same again, nothing changed", mine, other, "under 2 s", mine < 2))
    parts.fresh(directory)
    parts.fresh(known)
    return rows


def _row(what: str, mine: float, other: float, goal: str, good: bool) -> parts.Row:
    return parts.Row(what, f"{mine:.2f} s", f"sha256sum on all cores, {other:.2f} s", mine / other, goal, good)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3, help="measurements of each; the median counts")
    parser.add_argument("--files", type=int, default=100_000)
    options = parser.parse_args()
    before = parts.machine()
    rows = main(options.count, options.files)
    parts.report(rows)
    path = parts.ROOT / "benchmarks" / "results" / f"{before['date']}-data.json"
    path.write_text(json.dumps({"machine": before, "rows": [row._asdict() for row in rows]}, indent=2) + "\n")
    print("written to", path.relative_to(parts.ROOT))
