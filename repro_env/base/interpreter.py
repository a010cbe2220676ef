"""The interpreter as a file tree at its own absolute path: binary, libpython, standard library, headers.

Rule (base rule 1). In: the binary and every name beside it that leads to it; libpython and its names; the standard
library; the C headers and the Makefile that `sysconfig` reads; libraries that lie in the interpreter's own prefix and
are loaded by any of these. Out: `site-packages`, `dist-packages`, the standard library's tests, `__pycache__`, static
libraries and object files, Tcl/Tk scripts. A symlink to a file brings the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.base import closure, dpkg
from repro_env.base.tree import Hashes, LiveTree, Tree, real, within
from repro_env.io.files import walk
from repro_env.model.environment import Interpretation, Interpreter, SystemPackage
from repro_env.model.errors import InterpreterError

SHARED = ("/", "/usr", "/usr/local")
"""Prefixes that a Python shares with the rest of the system: what lies there is not its own."""
_TESTS = frozenset({"test", "tests", "idle_test"})
_SITE = frozenset({"site-packages", "dist-packages"})
_OBJECTS = (".a", ".o")


def interpreter_tree(facts: Interpretation, *, hashes: Hashes) -> Tree:
    """The interpreter's own layer. Raises `InterpreterError` when a part that Python needs is not there."""
    python = facts.interpreter
    tree = LiveTree()
    for path in (python.executable, python.prefix, python.stdlib, python.platstdlib, python.libpython):
        if path is not None and tree.follow(path) is None:
            raise InterpreterError("is part of this Python and is not there", where=path, hint="reinstall this Python")
    for path in _names(facts):
        tree.follow(path)
    for folder in dict.fromkeys((python.stdlib, python.platstdlib)):
        tree.below(folder, left_out)
    for folder in _headers(python):
        tree.below(folder, left_out)
    own = own_prefix(facts)
    loader = closure.host()
    if own:
        for path in closure.close(binaries(python), loader, program=python.executable).libraries:
            if within(real(path), [own]):
                tree.follow(path)
    entries, contents = tree.finish(hashes)
    return Tree(entries=entries, contents=contents, packages=_packages(python), unknown=tuple(sorted(loader.damaged)))


def own_prefix(facts: Interpretation) -> str:
    """The real prefix when it belongs to this Python alone, else empty."""
    prefix = real(facts.interpreter.prefix)
    return "" if prefix in SHARED else prefix


def binaries(python: Interpreter) -> list[str]:
    """The ELF files that are the interpreter: its binary, libpython, and every extension module of the standard library."""
    found = [python.executable, *([python.libpython] if python.libpython else [])]
    for folder in dict.fromkeys((python.stdlib, python.platstdlib)):
        root = real(folder)
        found += [f"{root}/{one.path}" for one in walk(Path(root), skip=left_out) if one.kind == "file" and ".so" in one.path]
    return list(dict.fromkeys(found))


def left_out(path: str, is_dir: bool) -> bool:
    """Whether a path below the standard library or the header folder stays out."""
    _, _, name = path.rpartition("/")
    if path in _SITE:
        return True
    return name == "__pycache__" or name in _TESTS if is_dir else name.endswith(_OBJECTS)


def _names(facts: Interpretation) -> list[str]:
    """Other paths by which the binary or libpython is reached: links beside them, and what the environment's own names lead to."""
    python = facts.interpreter
    found = []
    folder, _, _ = python.executable.rpartition("/")
    found += _leading(folder, "python", python.executable)
    if python.libpython:
        folder, _, _ = python.libpython.rpartition("/")
        found += _leading(folder, "libpython", python.libpython)
        if own_prefix(facts):
            found.append(f"{folder}/libpython3.so")
    if facts.is_venv:
        home = _home(facts.layout.prefix)
        if home:
            found += _leading(home, "python", python.executable)
        found += [path for path in (_beyond(facts.command, facts.layout.prefix),) if path]
    return found


def _leading(folder: str, start: str, target: str) -> list[str]:
    """Names in a folder that begin so and lead to the target."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []
    wanted = real(target)
    return [f"{folder}/{name}" for name in names if name.startswith(start) and real(f"{folder}/{name}") == wanted]


def _home(prefix: str) -> str:
    """`home` of pyvenv.cfg (PEP 405): the folder that Python takes its base prefix from, as it is spelled there."""
    try:
        text = Path(prefix, "pyvenv.cfg").read_text(errors="surrogateescape")
    except OSError:
        return ""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip().lower() == "home":
            return value.strip() if value.strip().startswith("/") else ""
    return ""


def _beyond(command: str, prefix: str) -> str:
    """The first path outside of the environment that its python leads to; empty when it is a file of its own."""
    inner = (prefix, real(prefix))
    for _ in range(40):
        if not within(command, inner):
            return command
        if not Path(command).is_symlink():
            return ""
        folder = real(command.rpartition("/")[0])
        command = os.path.normpath(Path(folder, Path(command).readlink()))
    return ""


def _headers(python: Interpreter) -> list[str]:
    """`include/python3.11`, and Debian's second one for the architecture."""
    name = python.stdlib.rpartition("/")[2]
    triplet = python.soabi.split("-", 2)[-1] if python.soabi.count("-") >= 2 else ""
    found = [f"{python.prefix}/include/{name}"]
    if triplet:
        found.append(f"{python.prefix}/include/{triplet}/{name}")
    return [folder for folder in found if Path(folder).is_dir()]


def _packages(python: Interpreter) -> tuple[SystemPackage, ...]:
    """The Debian packages that own the binary and the standard library, where it is Debian's Python."""
    if not (python.executable.startswith("/usr/bin/") and dpkg.present(Path("/"))):
        return ()
    owners = dpkg.Database().owners(real(part) for part in [*binaries(python), f"{python.stdlib}/os.py"])
    names = {package.name: package.version for found in owners.values() for package in found}
    return tuple(SystemPackage(name=name, version=names[name]) for name in sorted(names))
