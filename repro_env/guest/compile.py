"""Compile the modules of an image with the image's own interpreter: `python compile.py OUT KNOWN DIRECTORY...`.

The bytecode of each module below the directories is written to OUT, in the layout of PYTHONPYCACHEPREFIX. It contains the
hash of its source, which Python checks at each import (PEP 552). If KNOWN, a directory with the same layout, has the bytecode of
the same source, it is copied. Tests and files with syntax errors are skipped; any other error gives exit code 1. There is one
worker for each core. It imports only the standard library of the image.
"""

import os
import py_compile
import shutil
import sys
import warnings
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash


def find_modules(directories: "list[str]") -> "list[str]":
    """The sorted paths of all source files. If two names are the same directory, as lib64 and lib, the first is used."""
    paths = {}
    for directory in {os.path.realpath(path): path for path in reversed(directories)}.values():
        for parent, names, files in os.walk(directory):
            names[:] = [name for name in names if name not in ("__pycache__", "test", "tests")]
            paths.update(dict.fromkeys(os.path.join(parent, file) for file in files if file.endswith(".py")))
    return sorted(path for path in paths if os.path.isfile(path))


def copy_known(path: str, known: str) -> bool:
    """Copy the bytecode of a source file, if there is some. Return whether it was copied."""
    target = cache_from_source(path)
    old = known + target[len(sys.pycache_prefix or "") :]
    try:
        with open(old, "rb") as file, open(path, "rb") as source:
            if file.read(16) != MAGIC_NUMBER + b"\3\0\0\0" + source_hash(source.read()):
                return False
    except FileNotFoundError:
        return False
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(old, target)
    return True


def compile_all(paths: "list[str]", known: str) -> None:
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    for path in paths:
        try:
            if copy_known(path, known):
                continue
            py_compile.compile(path, doraise=True, invalidation_mode=mode)
        except py_compile.PyCompileError:
            continue


def main() -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    warnings.simplefilter("ignore")
    sys.pycache_prefix = sys.argv[1]
    paths = find_modules(sys.argv[3:])
    count = max(1, min(len(os.sched_getaffinity(0)), len(paths)))
    workers = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                compile_all(paths[number::count], sys.argv[2])
            except BaseException:
                os._exit(1)
            os._exit(0)
        workers.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in workers]
    sys.exit(any(statuses))


main()
