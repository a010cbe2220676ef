"""Compile modules with the image's own interpreter: `python compile.py OUT ROOT DIRECTORY...`.

ROOT is prepended to the directories; it is empty for those of the image itself. OUT gets the file `names`: where the bytecode of each
module below them is, in the layout of PYTHONPYCACHEPREFIX, sorted, with zero bytes between; and packs of bytecode in the same order,
`0`, `1` and so on, each complete when it appears. In a pack, eight bytes precede the name and the bytecode of a module: the length of
each. Neither contains ROOT. The bytecode contains the hash of its source, which Python checks at each import (PEP 552). Tests and
files that Python cannot compile are skipped; any other error gives exit code 1. It imports only the standard library of the image.

A child process compiles the modules of a pack, and as many children run as there are cores. So the number of cores does not decide which
modules are compiled in the same process, whose objects marshal may share.
"""

import marshal
import os
import sys
import warnings
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash

PACK = 100
"""Modules in a pack."""
CHECKED_HASH = (3).to_bytes(4, "little")


def find_modules(directories: "list[str]") -> "list[str]":
    """The paths of all source files. If two names are the same directory, as lib64 and lib, the first is used."""
    paths = {}
    for directory in {os.path.realpath(path): path for path in reversed(directories)}.values():
        for parent, names, files in os.walk(directory):
            names[:] = [name for name in names if name not in ("__pycache__", "test", "tests")]
            paths.update(dict.fromkeys(os.path.join(parent, file) for file in files if file.endswith(".py")))
    return [path for path in paths if os.path.isfile(path)]


def compile_all(modules: "list[tuple[str, str]]", root: str) -> bytes:
    """The pack of modules. Each one has the name of its bytecode, and its path in the image."""
    pack = []
    for name, path in modules:
        with open(root + path, "rb") as file:
            source = file.read()
        try:
            code = compile(source, path, "exec", dont_inherit=True)
        except Exception:  # a wrong syntax has many exceptions
            continue
        encoded, data = os.fsencode(name), MAGIC_NUMBER + CHECKED_HASH + source_hash(source) + marshal.dumps(code)
        pack += [len(encoded).to_bytes(4, "little"), len(data).to_bytes(4, "little"), encoded, data]
    return b"".join(pack)


def write(path: str, data: bytes) -> None:
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.rename(path + ".new", path)


def main() -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    warnings.simplefilter("ignore")
    out, root = sys.argv[1:3]
    paths = [path[len(root) :] for path in find_modules([root + directory for directory in sys.argv[3:]])]
    sys.pycache_prefix = "/"
    modules = sorted((cache_from_source(path)[1:], path) for path in paths)
    write(os.path.join(out, "names"), b"\0".join(os.fsencode(name) for name, _ in modules))
    packs = [modules[start : start + PACK] for start in range(0, len(modules), PACK)]
    statuses = []
    for number, pack in enumerate(packs):
        if number >= len(os.sched_getaffinity(0)):
            statuses.append(os.wait()[1])
        if os.fork() == 0:
            try:
                write(os.path.join(out, str(number)), compile_all(pack, root))
            except BaseException:
                os._exit(1)
            os._exit(0)
    while len(statuses) < len(packs):
        statuses.append(os.wait()[1])
    sys.exit(any(statuses))


main()
