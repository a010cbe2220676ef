"""The interpreter as a file tree at its own absolute path: binary, libpython, standard library, headers.

Rule (base rule 1). In: the binary and every name beside it that leads to it; libpython and its names; the standard
library; the C headers and the Makefile that `sysconfig` reads; libraries that lie in the interpreter's own prefix and
are loaded by any of these. Out: `site-packages`, `dist-packages`, the standard library's tests, `__pycache__`, static
libraries and object files, Tcl/Tk scripts. A symlink to a file brings the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from repro_env.base import checks, closure, libpath
from repro_env.base.checks import Check
from repro_env.base.packages import Database, Package
from repro_env.base.tree import Hashes, LiveTree, Tree, real, within
from repro_env.io.files import walk
from repro_env.model import redact
from repro_env.model.environment import Interpretation, Interpreter, SystemPackage
from repro_env.model.errors import InterpreterError
from repro_env.store.facts import FactCache

SHARED = ("/", "/usr", "/usr/local")
"""Prefixes that a Python shares with the rest of the system: what lies there is not its own."""
PACKAGED = ("/usr", "/opt", "/bin")
"""Where packages of the system put interpreters: for one elsewhere the database is not asked."""
_TESTS = frozenset({"test", "tests", "idle_test"})
_SITE = frozenset({"site-packages", "dist-packages"})
_OBJECTS = (".a", ".o")


def interpreter_tree(
    facts: Interpretation,
    *,
    hashes: Hashes,
    system: Database | None = None,
    environ: Mapping[str, str] | None = None,
    known: FactCache | None = None,
) -> Tree:
    """The interpreter's own layer. Raises `InterpreterError` when a part that Python needs is not there.

    `system`: the machine's packages, to name those that own it and what was edited since; `environ`: where Python is
    started, for LD_LIBRARY_PATH; `known`: as `checks.edited` takes it.
    """
    python = facts.interpreter
    tree = LiveTree()
    for part in (python.executable, python.prefix, python.stdlib, python.platstdlib, python.libpython):
        if part is not None and tree.follow(part) is None:
            raise InterpreterError("is part of this Python and is not there", where=part, hint="reinstall this Python")
    for name in _names(facts):
        tree.follow(name)
    for folder in dict.fromkeys((python.stdlib, python.platstdlib)):
        tree.below(folder, left_out)
    for folder in _headers(python):
        tree.below(folder, left_out)
    own = own_prefix(facts)
    loader = closure.host(libpath.read(environ or {}).folders)
    if own:
        for library in closure.close(binaries(python), loader, program=python.executable).libraries:
            if within(real(library), [own]):
                tree.follow(library)
    entries, contents = tree.finish(hashes)
    owners = _owners(python, system)
    compared, gone = _compared(tree, python, system, owners)
    return Tree(
        entries=entries,
        contents=contents,
        packages=tuple(SystemPackage(name=system.shown(one), version=one.version) for one in owners) if system else (),
        edited=checks.edited(compared, {entry.path: entry.sha256 for entry in entries}, known),
        unknown=tuple(sorted(map(redact.line, {*loader.damaged, *gone}))),
    )


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


def _owners(python: Interpreter, system: Database | None) -> tuple[Package, ...]:
    """The packages that own the binary and the standard library, sorted, where it is the system's own Python."""
    if system is None or not within(python.executable, PACKAGED):
        return ()
    owners = system.owners(real(part) for part in [*binaries(python), f"{python.stdlib}/os.py"])
    return tuple(sorted({one for found in owners.values() for one in found}, key=lambda one: one.order))


def _compared(
    tree: LiveTree, python: Interpreter, system: Database | None, owners: Iterable[Package]
) -> tuple[list[Check], list[str]]:
    """The interpreter's files to hold against their packages, and a line for each file of the standard library that is gone."""
    compared, gone = [], []
    stdlib = (python.stdlib, python.platstdlib)
    for package in owners if system else ():
        assert system is not None  # noqa: S101
        for path, digest in system.checksums(package).items():
            folder, _, name = path.rpartition("/")
            found = tree.found(f"{real(folder)}/{name}")
            if found is not None and found.kind == "file":
                compared.append(Check(f"/{found.path}", digest, package.name))
            elif found is not None and found.kind == "link":
                compared.append(Check(f"/{found.path}", "", package.name))
            elif within(path, stdlib) and not _is_left_out(path, stdlib) and not os.path.lexists(path):
                gone.append(f"{path} ({package.name}) is not there")
    return compared, gone


def _is_left_out(path: str, folders: Iterable[str]) -> bool:
    """Whether a file below one of the folders, or a folder that it lies in, stays out."""
    folder = next(one for one in folders if within(path, (one,)))
    parts = path[len(folder) + 1 :].split("/")
    return left_out("/".join(parts), False) or any(left_out("/".join(parts[:depth]), True) for depth in range(1, len(parts)))
