"""What the benchmarks share: environments, timing, memory, and one row for each ratio."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("REPRO_ENV_BENCH") or ROOT / "build" / "bench")
"""Where everything is made. Name a directory on tmpfs to leave the disk out."""
TOOL = Path(sys.executable).with_name("repro-env")


class Row(NamedTuple):
    """One ratio, with both its sides, the goal, and where each side's clock stops."""

    what: str
    ours: str
    theirs: str
    ratio: float
    goal: str
    good: bool

    @property
    def line(self) -> str:
        return f"| {self.what} | {self.ours} | {self.theirs} | {self.ratio:.2f} | {self.goal} | {'yes' if self.good else 'no'} |"


HEAD = "| what | ours | against | ratio | goal | met |\n|---|---|---|---|---|---|"


HIDDEN = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Without the last, every start of Python would compile again what a user's Python has compiled once: ours and pip's."""


def environ(store: Path | None = None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return {**kept, **({"REPRO_ENV_STORE": str(store)} if store else {}), **(more or {})}


def run(words: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> float:
    """Seconds of one process from start to end. Its failure ends the benchmark."""
    start = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in words], env=environ() if env is None else env, cwd=cwd, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return took


def processor(words: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path = ROOT) -> float:
    """Seconds of processor time of a process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(words, env=env, cwd=cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def limit(what: str, found: float, most: float, unit: str = "s") -> Row:
    """A row whose other side is a number that was agreed on."""
    return Row(what, f"{found:.2f} {unit}", f"{most:g} {unit}", found / most, f"at most {most:g} {unit}", found <= most)


def output(words: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path = ROOT) -> str:
    """What a command prints. Its failure ends the benchmark."""
    done = subprocess.run([str(word) for word in words], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))[:200]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def in_turn(count: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each of several measurements, taken in turn so that all see the same load; a round before does not count."""
    rounds = [[measure() for measure in measures] for _ in range(count + 1)]
    return [statistics.median(times) for times in zip(*rounds[1:], strict=True)]


def median(count: int, measure: Callable[[], float], before: Callable[[], object] = lambda: None) -> float:
    """Median of `count` measurements, `before` each (not timed)."""
    times = []
    for _ in range(count):
        before()
        times.append(measure())
    return statistics.median(times)


def fresh(path: Path) -> Path:
    """A directory that is not there."""
    if path.is_dir():
        for directory, _, _ in os.walk(path):
            Path(directory).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def environment(*, torch: bool) -> Path:
    """`build/bench/<name>/.venv` with the example's locked packages, and torch for the CPU if wanted; made once."""
    directory = BUILD / ("torch" if torch else "example")
    subprocess.run([ROOT / "lockfiles" / "venv.sh", directory / ".venv", "example"], check=True, cwd=ROOT)
    python = directory / ".venv" / "bin" / "python"
    if torch and subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "torch==2.13.0"], check=True)
    shutil.copy(ROOT / "examples" / "digits" / "train.py", directory / "train.py")
    return directory


def wide() -> Path:
    """`build/bench/wide/.venv`: the 185 distributions of lockfiles/ml185.txt and torch for the CPU; made once."""
    directory = BUILD / "wide"
    lock = ROOT / "lockfiles" / "ml185.txt"
    stamp = directory / "stamp"
    if stamp.is_file() and stamp.read_text() == lock.read_text():
        return directory
    fresh(directory).mkdir(parents=True)
    python = directory / ".venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", directory / ".venv"], check=True)
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    subprocess.run([*pip, "torch==2.13.0"], check=True)
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", lock], check=True)
    shutil.copy(ROOT / "examples" / "digits" / "train.py", directory / "train.py")
    stamp.write_text(lock.read_text())
    return directory


def size(directory: Path) -> int:
    """Bytes of the files below, bytecode apart."""
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def hash_rate() -> float:
    """Bytes a second that this machine hashes with sha256, one process on each core, data in memory."""
    cores = len(os.sched_getaffinity(0))
    each = 512 << 20
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(_hash, [1 << 20] * cores))  # start the workers
        start = time.perf_counter()
        list(pool.map(_hash, [each] * cores))
        return cores * each / (time.perf_counter() - start)


def _hash(count: int) -> str:
    block, hasher = bytes(1 << 20), hashlib.sha256()
    for _ in range(count // len(block)):
        hasher.update(block)
    return hasher.hexdigest()


def peak(words: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, children: bool = True) -> int:
    """Bytes: the most memory that a command held at one time, with all its children or without (sum of PSS, looked at every 20 ms)."""
    child = subprocess.Popen(
        [str(word) for word in words],
        env=env,
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            most[0] = max(most[0], sum(map(_pss, _family(child.pid) if children else [child.pid])))

    watcher = threading.Thread(target=look)
    watcher.start()
    code = child.wait()
    over.set()
    watcher.join()
    if code:
        sys.exit(f"{' '.join(map(str, words))} ended with {code}")
    return most[0]


def _family(process: int) -> list[int]:
    """A process and all below it, in whatever session."""
    found = [process]
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _family(int(child))
    except OSError:
        pass
    return found


def _pss(process: int) -> int:
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def parser(document: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--count", type=int, default=5, help="measurements of each quick thing; the median counts")
    return made


def arguments(document: str | None) -> argparse.Namespace:
    made = parser(document)
    made.add_argument("--no-torch", action="store_true", help="leave torch out of the measured environment")
    return made.parse_args()


def machine() -> dict[str, str]:
    release = platform.freedesktop_os_release() if hasattr(platform, "freedesktop_os_release") else {}
    models = [
        line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "os": release.get("PRETTY_NAME", "unknown"),
        "kernel": platform.release(),
        "cpu": models[0] if models else "unknown",
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else "plain user",
        "load at start": str(os.getloadavg()[0]),
    }


def report(rows: Sequence[Row]) -> None:
    print(HEAD)
    for row in rows:
        print(row.line)


def write(rows: Sequence[Row], name: str = "", **more: object) -> Path:
    """A file in benchmarks/results/, of this name or of the day."""
    directory = ROOT / "benchmarks" / "results"
    directory.mkdir(exist_ok=True)
    facts = machine()
    path = directory / f"{name or facts['date']}.json"
    path.write_text(json.dumps({"machine": facts, **more, "rows": [row._asdict() for row in rows]}, indent=2) + "\n")
    return path
