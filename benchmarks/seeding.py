"""What the hooks inside a run cost each interpreter: CPU time of the same script with and without them, in one run.

    build/venv/bin/python benchmarks/seeding.py --python build/trainers/bin/python

User and system time of the whole process, from `wait4`. Three sides take turns: without hooks; with those for seeds alone
(no determinism mode); with all that `exec` puts in place by default. The least of each side counts: on a busy machine
everything else is other work. Bytecode is there on all sides, as in every run. Next to importing NumPy or torch a difference of milliseconds does
not show: there, what the hooks take after the import and at the end is timed inside, and added to what an empty script pays.
That counts what every script reads at its end twice: a bound from above.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

import parts

HOOKS = parts.ROOT / "repro_env" / "guest" / "seeds"
LIBRARIES = ("numpy", "torch")
GOAL = 15.0
"""Milliseconds of CPU an interpreter."""
SCRIPTS = {
    "nothing": "pass",
    "random drawn from": "import random; random.random()",
    "a child of multiprocessing, forked": """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=int)
child.start()
child.join()
""",
    "import numpy": "import numpy",
    "import torch": "import torch",
    "two explicit seeds, a thousand uuids": """
import random, uuid
random.seed(1)
random.Random(2)
for _ in range(1000):
    uuid.uuid4()
""",
}
INSIDE = """
import sys, time
seeds = sys.modules["_repro_env_seeds"]
plain, spent = seeds._run_hook, 0.0
def call(*args):
    global spent
    start = time.process_time()
    plain(*args)
    spent += time.process_time() - start
seeds._run_hook = call
import LIBRARY
start = time.process_time()
seeds.at_exit()
print((spent + time.process_time() - start) * 1000)
"""


def spent(python: str, script: str, env: dict[str, str]) -> float:
    """Milliseconds of CPU of one interpreter and the children that it waited for."""
    out = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    child = os.posix_spawn(python, [python, "-c", script], env, file_actions=[out])
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(f"{script!r} ended with {status}")
    return (usage.ru_utime + usage.ru_stime) * 1000


def sides(directory: Path) -> dict[str, dict[str, str]]:
    """Name -> environment."""
    plain = {"PATH": os.environ["PATH"], "HOME": str(directory), "PYTHONPYCACHEPREFIX": str(directory / "pyc")}
    seeds = {
        **plain,
        "PYTHONPATH": str(HOOKS),
        "PYTHONHASHSEED": "1",
        "REPRO_ENV_SEED": "1",
        "REPRO_ENV_REPORTS": str(directory / "reports.jsonl"),
        "REPRO_ENV_RANKS": "each",
        "REPRO_ENV_RUN": "benchmark",
    }
    threads = f"LOKY_MAX_CPU_COUNT={len(os.sched_getaffinity(0))} OMP_NUM_THREADS=2"  # as captured on this machine
    return {
        "plain": {**plain, "PYTHONHASHSEED": "1"},
        "seeds": seeds,
        "all": {**seeds, "REPRO_ENV_DETERMINISM": "warn", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "REPRO_ENV_THREADS": threads},
    }


def having(python: str, module: str) -> bool:
    return not os.spawnv(os.P_WAIT, python, [python, "-c", f"import importlib.util as u; u.find_spec({module!r}) or exit(1)"])


def main(python: str, count: int) -> list[parts.Row]:
    rows: list[parts.Row] = []
    start = 0.0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        environments = sides(directory)
        for what, script in SCRIPTS.items():
            library = script.removeprefix("import ")
            if library in LIBRARIES and not having(python, library):
                continue
            rounds = max(3, count // 4) if library == "torch" else count
            times: dict[str, list[float]] = {side: [] for side in environments}
            for number in range(rounds + 1):
                for side, env in environments.items():
                    (directory / "reports.jsonl").unlink(missing_ok=True)
                    took = spent(python, script, env)
                    if number:  # the first one compiles
                        times[side].append(took)
            least = {side: min(each) for side, each in times.items()}
            middle = {side: statistics.median(each) for side, each in times.items()}
            for side in ("seeds", "all"):
                more = least[side] - least["plain"]
                rows.append(
                    parts.Row(
                        f"{what}: {'hooks for seeds' if side == 'seeds' else 'all hooks'}, CPU (least of {rounds}; medians in brackets)",
                        f"{least[side]:.1f} ms ({middle[side]:.1f})",
                        f"without {least['plain']:.1f} ms ({middle['plain']:.1f}); {more:+.1f} ms",
                        least[side] / least["plain"],
                        f"at most {GOAL:.0f} ms more" if library not in LIBRARIES else "none: lost in the noise",
                        more <= GOAL or library in LIBRARIES,
                    )
                )
            if what == "nothing":
                start = least["all"] - least["plain"]
            if library in LIBRARIES:
                rows.append(inside(python, library, rounds, min(times["plain"]), start, environments["all"]))
    return rows


def inside(python: str, library: str, count: int, plain: float, start: float, env: dict[str, str]) -> parts.Row:
    """What the hooks take within an import and at the end, and what they cost an empty script."""
    code = INSIDE.replace("LIBRARY", library)
    times = [start + float(parts.output([python, "-c", code], env=env)) for _ in range(count)]
    return parts.Row(
        f"import {library}: all hooks, timed inside, and what they cost an empty script (least of {count}; medians in brackets)",
        f"{min(times):.1f} ms ({statistics.median(times):.1f})",
        f"without {plain:.1f} ms",
        1 + min(times) / plain,
        f"at most {GOAL:.0f} ms",
        min(times) <= GOAL,
    )


if __name__ == "__main__":
    made = parts.parser(__doc__)
    made.set_defaults(count=20)
    made.add_argument("--python", default=sys.executable, help="the interpreter, one with NumPy and torch for all rows")
    options = made.parse_args()
    table = main(str(Path(options.python).absolute()), options.count)
    parts.report(table)
    print("written to", parts.write(table, "seeding", goal="15 ms CPU an interpreter").relative_to(parts.ROOT))
