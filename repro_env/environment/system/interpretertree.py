"""Collect the interpreter as a file tree at its own absolute path: binary, libpython, standard library, headers.

Base rule 1. Included: the binary and all links to it in its directory; libpython and the links to it; the standard library;
the wheels of `ensurepip`; the C headers and the Makefile that `sysconfig` reads; libraries in the interpreter's own prefix that any of these load.
Excluded: `site-packages`, `dist-packages`, the tests of the standard library, `__pycache__`, static libraries, object files
and Tcl/Tk scripts. A symlink to a file includes that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from repro_env.environment.python.selection import settings
from repro_env.environment.system import elf, loader
from repro_env.environment.system.tree import LiveTree, Tree, links, list_names, real, within
from repro_env.io.files import walk
from repro_env.schema.environment import Interpretation, Interpreter
from repro_env.schema.errors import InterpreterError
from repro_env.store.hashes import FileHashes

SHARED = ("/", "/usr", "/usr/local")
"""Prefixes that a Python shares with the rest of the system: other files there are not part of it."""
WHEELS = "/usr/share/python-wheels"
"""Where `ensurepip` of Debian's and Fedora's Python finds pip (`WHEEL_PKG_DIR` of sysconfig). `python -m venv` needs it."""
_TESTS = frozenset({"test", "tests", "idle_test"})
_SITE = frozenset({"site-packages", "dist-packages"})
_OBJECTS = (".a", ".o")


def interpreter_tree(
    facts: Interpretation, environ: Mapping[str, str], hashes: FileHashes, read: loader.Reader = elf.read
) -> Tree:
    """The tree of the interpreter. Raises `InterpreterError` if a part that Python needs is missing.

    `environ`: the environment variables of Python, for LD_LIBRARY_PATH.
    """
    python = facts.interpreter
    tree = LiveTree()
    for part in (python.executable, python.prefix, *python.library, python.libpython):
        if part is not None and tree.follow(part) is None:
            raise InterpreterError("this part of the Python interpreter is missing", where=part, hint="reinstall this Python")
    for name in _names(facts):
        tree.follow(name)
    for directory in python.library:
        tree.add_directory(directory, is_excluded)
    headers, name = Path(python.prefix, "include"), python.stdlib.rpartition("/")[2]
    for path in (headers / name, *headers.glob(f"*-linux-gnu*/{name}")):  # Debian has a second directory
        tree.add_directory(str(path), is_excluded)
    if any(Path(directory, "ensurepip").is_dir() for directory in python.library) and not own_prefix(facts):
        tree.add_directory(WHEELS)
    own = own_prefix(facts)
    if own:
        for library in loader.host(environ, read).resolve(binaries(python), python.executable).libraries:
            if within(real(library), [own]):
                tree.follow(library)
    return tree.finish(hashes)


def own_prefix(facts: Interpretation) -> str:
    """The real prefix if it belongs to this Python alone, else empty."""
    prefix = real(facts.interpreter.prefix)
    return "" if prefix in SHARED else prefix


def binaries(python: Interpreter) -> list[str]:
    """The ELF files of the interpreter: its binary, libpython and the extension modules of the standard library."""
    paths = [python.executable, *([python.libpython] if python.libpython else [])]
    for directory in python.library:
        root = real(directory)
        paths += [
            f"{root}/{file.path}" for file in walk(Path(root), skip=is_excluded) if file.kind == "file" and ".so" in file.path
        ]
    return list(dict.fromkeys(paths))


def is_excluded(path: str, is_dir: bool) -> bool:
    """Whether a path, relative to the standard library or to the headers, is excluded."""
    _, _, name = path.rpartition("/")
    if path in _SITE:
        return True
    return name == "__pycache__" or name in _TESTS if is_dir else name.endswith(_OBJECTS)


def _names(facts: Interpretation) -> list[str]:
    """Other paths of the binary and of libpython: links in their directories, and links that the environment's python uses."""
    python = facts.interpreter
    paths = _links_to(python.executable.rpartition("/")[0], "python", python.executable)
    if python.libpython:
        directory = python.libpython.rpartition("/")[0]
        paths += _links_to(directory, "libpython", python.libpython)
        paths += [f"{directory}/libpython3.so"] if own_prefix(facts) else []
    if facts.is_venv:
        # The directory that Python derives its base prefix from (PEP 405), as it is spelled there.
        home = settings(Path(facts.layout.prefix)).get("home", "")
        paths += _links_to(home, "python", python.executable) if home.startswith("/") else []
        own = (facts.layout.prefix, real(facts.layout.prefix))
        paths += [path for path in links(facts.command) if not within(path, own)][:1]
    return paths


def _links_to(directory: str, start: str, target: str) -> list[str]:
    """The paths in a directory whose names begin with `start` and that lead to the target."""
    real_target, names = real(target), list_names(directory)
    return [f"{directory}/{name}" for name in names if name.startswith(start) and real(f"{directory}/{name}") == real_target]
