"""Collect the interpreter as a file tree at its own absolute path: binary, libpython, standard library, headers.

Base rule 1. Included: the binary and all links to it in its directory; libpython and the links to it; the standard library;
the C headers and the Makefile that `sysconfig` reads; libraries in the interpreter's own prefix that any of these load.
Excluded: `site-packages`, `dist-packages`, the tests of the standard library, `__pycache__`, static libraries, object files
and Tcl/Tk scripts. A symlink to a file includes that file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from repro_env.environment.python.selection import settings
from repro_env.environment.system import loader
from repro_env.environment.system.packages import Database, Package, PackagedFile, find_edited
from repro_env.environment.system.tree import LiveTree, Tree, list_names, real, within
from repro_env.io.files import walk
from repro_env.io.hashes import FileHashes
from repro_env.schema import redact
from repro_env.schema.environment import Interpretation, Interpreter, SystemPackage
from repro_env.schema.errors import InterpreterError

SHARED = ("/", "/usr", "/usr/local")
"""Prefixes that a Python shares with the rest of the system: other files there are not part of it."""
PACKAGED = ("/usr", "/opt", "/bin")
"""Where system packages install interpreters; the package database is not queried for others."""
_TESTS = frozenset({"test", "tests", "idle_test"})
_SITE = frozenset({"site-packages", "dist-packages"})
_OBJECTS = (".a", ".o")


def interpreter_tree(
    facts: Interpretation,
    *,
    hashes: FileHashes,
    system: Database | None = None,
    environ: Mapping[str, str] | None = None,
) -> Tree:
    """The tree of the interpreter. Raises `InterpreterError` if a part that Python needs is missing.

    `system`: the machine's packages, to name the owners and the edited files; `environ`: the environment variables of Python,
    for LD_LIBRARY_PATH.
    """
    python = facts.interpreter
    tree = LiveTree()
    for part in (python.executable, python.prefix, python.stdlib, python.platstdlib, python.libpython):
        if part is not None and tree.follow(part) is None:
            raise InterpreterError("this part of the Python interpreter is missing", where=part, hint="reinstall this Python")
    for name in _names(facts):
        tree.follow(name)
    for directory in dict.fromkeys((python.stdlib, python.platstdlib)):
        tree.add_directory(directory, is_excluded)
    for directory in _headers(python):
        tree.add_directory(directory, is_excluded)
    own = own_prefix(facts)
    machine = loader.host(environ or {})
    if own:
        for library in machine.resolve(binaries(python), python.executable).libraries:
            if within(real(library), [own]):
                tree.follow(library)
    entries, contents = tree.finish(hashes)
    owners = _owners(python, system)
    packaged, missing = _packaged_files(tree, python, system, owners)
    return Tree(
        entries=entries,
        contents=contents,
        packages=tuple(SystemPackage(name=system.display_name(owner), version=owner.version) for owner in owners)
        if system
        else (),
        edited=find_edited(packaged, {f"/{entry.path}": entry.sha256 for entry in entries}),
        unknown=tuple(sorted(map(redact.line, {*machine.damaged, *missing}))),
    )


def own_prefix(facts: Interpretation) -> str:
    """The real prefix if it belongs to this Python alone, else empty."""
    prefix = real(facts.interpreter.prefix)
    return "" if prefix in SHARED else prefix


def binaries(python: Interpreter) -> list[str]:
    """The ELF files of the interpreter: its binary, libpython and the extension modules of the standard library."""
    paths = [python.executable, *([python.libpython] if python.libpython else [])]
    for directory in dict.fromkeys((python.stdlib, python.platstdlib)):
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


def is_excluded_below(path: str, directory: str) -> bool:
    """Whether a file below the standard library `directory`, or a directory between them, is excluded."""
    parts = path[len(directory) + 1 :].split("/")
    return is_excluded("/".join(parts), False) or any(
        is_excluded("/".join(parts[:depth]), True) for depth in range(1, len(parts))
    )


def _names(facts: Interpretation) -> list[str]:
    """Other paths of the binary and of libpython: links in their directories, and links that the environment's python uses."""
    python = facts.interpreter
    paths = []
    directory, _, _ = python.executable.rpartition("/")
    paths += _links_to(directory, "python", python.executable)
    if python.libpython:
        directory, _, _ = python.libpython.rpartition("/")
        paths += _links_to(directory, "libpython", python.libpython)
        if own_prefix(facts):
            paths.append(f"{directory}/libpython3.so")
    if facts.is_venv:
        # The directory that Python derives its base prefix from (PEP 405), as it is spelled there.
        home = settings(Path(facts.layout.prefix)).get("home", "")
        if home.startswith("/"):
            paths += _links_to(home, "python", python.executable)
        paths += [path for path in (_first_outside(facts.command, facts.layout.prefix),) if path]
    return paths


def _links_to(directory: str, start: str, target: str) -> list[str]:
    """The paths in a directory whose names begin with `start` and that lead to the target."""
    real_target, names = real(target), list_names(directory)
    return [f"{directory}/{name}" for name in names if name.startswith(start) and real(f"{directory}/{name}") == real_target]


def _first_outside(command: str, prefix: str) -> str:
    """The first path outside the environment that its python links to; empty if it is a regular file."""
    inner = (prefix, real(prefix))
    for _ in range(40):
        if not within(command, inner):
            return command
        if not Path(command).is_symlink():
            return ""
        directory = real(command.rpartition("/")[0])
        command = os.path.normpath(Path(directory, Path(command).readlink()))
    return ""


def _headers(python: Interpreter) -> list[str]:
    """`include/python3.11`, and Debian's architecture-specific second directory."""
    name = python.stdlib.rpartition("/")[2]
    triplet = python.soabi.split("-", 2)[-1] if python.soabi.count("-") >= 2 else ""
    directories = [f"{python.prefix}/include/{name}"]
    if triplet:
        directories.append(f"{python.prefix}/include/{triplet}/{name}")
    return [directory for directory in directories if Path(directory).is_dir()]


def _owners(python: Interpreter, system: Database | None) -> tuple[Package, ...]:
    """The packages that own the binary and the standard library, sorted; empty if this is not the system's Python."""
    if system is None or not within(python.executable, PACKAGED):
        return ()
    owners = system.owners(real(part) for part in [*binaries(python), f"{python.stdlib}/os.py"])
    return tuple(sorted({package for packages in owners.values() for package in packages}))


def _packaged_files(
    tree: LiveTree, python: Interpreter, system: Database | None, owners: Iterable[Package]
) -> tuple[list[PackagedFile], list[str]]:
    """The interpreter's files with their packages' checksums, and a line for each missing file of the standard library."""
    packaged, missing = [], []
    stdlib = (python.stdlib, python.platstdlib)
    for package in owners if system else ():
        assert system is not None  # noqa: S101
        for path, digest in system.checksums(package).items():
            directory, _, name = path.rpartition("/")
            found = tree.get(f"{real(directory)}/{name}")
            if found is not None and found.kind in ("file", "link"):
                packaged.append(PackagedFile(f"/{found.path}", digest if found.kind == "file" else "", package.name))
                continue
            root = next((root for root in stdlib if within(path, (root,))), None)
            if root and not is_excluded_below(path, root) and not os.path.lexists(path):
                missing.append(f"{path} ({package.name}) is missing")
    return packaged, missing
