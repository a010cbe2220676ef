"""Compiles modules of an image with the image's own interpreter: `python compile.py WANTED OUT`.

WANTED is a JSON file: a list of [source, path, optimize]. For each the bytecode goes to OUT/path, marked as valid
without a look at the source: an image's files do not change. A source that is not there, or does not compile, is left out. Nothing of
the image is imported but its standard library; one worker per core.
"""

import json
import os
import py_compile
import signal
import sys
import warnings

_LONGEST = 900
"""Seconds after which something is wrong."""


def compile_all(wanted: "list[tuple[str, str, int]]", out: str) -> None:
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    for source, path, optimize in wanted:
        try:
            py_compile.compile(source, os.path.join(out, path), doraise=True, optimize=optimize, invalidation_mode=mode)
        except Exception:  # noqa: PERF203
            continue


def main() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warnings.simplefilter("ignore")
    with open(sys.argv[1], encoding="utf-8") as file:
        wanted = json.load(file)
    count = max(1, min(len(os.sched_getaffinity(0)), len(wanted) // 10))
    workers = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            signal.alarm(_LONGEST)
            compile_all(wanted[number::count], sys.argv[2])
            os._exit(0)
        workers.append(pid)
    for pid in workers:
        os.waitpid(pid, 0)


main()
