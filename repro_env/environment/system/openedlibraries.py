"""Find libraries of this machine that Python code opens at run time: `ctypes.CDLL("libgmp.so.10")` and others.

The code is parsed, never run. In a file that opens libraries, every string that names one counts, wherever it is.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from repro_env.environment.machine.gpus import is_driver
from repro_env.environment.secrets.engine import hyperscan
from repro_env.environment.system import elf, loader
from repro_env.environment.system.tree import real, within
from repro_env.io.files import Found, read_head
from repro_env.schema import codec
from repro_env.schema.messages import shorten
from repro_env.store.hashes import FileFacts
from repro_env.store.store import Store

_MENTION = re.compile(
    rb"\b(?:CDLL|PyDLL|LoadLibrary|dlopen|load_library|load_op_library|find_library|cdll|pydll)\b[\s\\)]*[(\[#]"
)
"""Every file with a call that this module recognizes contains one of these names, before a bracket or a comment."""
_OPENERS = frozenset(("CDLL", "PyDLL", "LoadLibrary", "dlopen", "load_library", "load_op_library"))
"""Functions of ctypes, cffi, NumPy, PyTorch and TensorFlow whose first argument is a name or path."""
_SEARCH = "find_library"
_NAME = re.compile(r"[^\s*?{}%\\]+\.so(?:\.\d+)*")
_FEW = 20
"""Files that a process searches without Hyperscan."""
_SEARCHED = itertools.count()
_LARGE = 4 << 20
"""Bytes: a larger Python file counts as data."""


class Code(msgspec.Struct, frozen=True):
    """A file that opens libraries."""

    path: str
    """Path relative to the root."""
    names: tuple[str, ...]
    """Names and paths of libraries."""
    searched: tuple[str, ...]
    """Arguments of `find_library`: `gmp`, not `libgmp.so.10`."""
    computed: int
    """The first line that opens a library whose name is computed at run time; 0 if there is none."""


_KIND = "opened-libraries"
"""Kind of these facts, by directory."""


class Opened(msgspec.Struct, frozen=True):
    libraries: tuple[str, ...] = ()
    """Absolute paths as the loader spells them, sorted."""
    unknown: tuple[str, ...] = ()
    """One line for each directory with code that opens a library that cannot be determined."""


def of_environment(
    program: str,
    directories: Iterable[tuple[Path, Sequence[Found], Callable[[str], bool]]],
    environ: Mapping[str, str],
    store: Store,
    read: loader.Reader = elf.read,
) -> Opened:
    """The libraries that code opens; `program` is the binary that runs it.

    `directories`: (directory, its files, whether a distribution lists a path). What packaged code computes does not depend on the
    machine. A name that is found nowhere is ignored: the code works without it on this machine too.
    """
    machine = loader.host(environ, read)
    libraries: set[str] = set()
    unknown = []
    for root, files, is_packaged in directories:
        own = {file.path.rpartition("/")[2] for file in files}
        computed = []
        for code in _codes(root, files, store):
            found = [library for name in code.searched for library in machine.search(name, program)]
            for name in code.names:
                # A relative path depends on the working directory; the project's is the most likely one.
                path = name if "/" not in name or name.startswith("/") else str(root / name)
                found += machine.find(path, program)
            libraries.update(found)
            is_known = found or any(name.rpartition("/")[2] in own for name in code.names)
            if code.computed and not is_known and not is_packaged(code.path):
                computed.append(f"{root / code.path}:{code.computed}")
        if computed:
            unknown.append(
                f"{shorten(computed, 5)}: the library that this code opens is known only when the code runs; "
                "to include a library outside the environment, capture with --with LIBRARY"
            )
    return Opened(tuple(sorted(libraries)), tuple(unknown))


def of_source(
    root: Path, files: Sequence[Found], environ: Mapping[str, str], store: Store, other_directories: Iterable[Path]
) -> Opened:
    """The libraries that the source's code opens.

    Those in the source or in `other_directories`, and those that this Python has loaded, are left out.
    """
    program = real(sys.executable)
    opened = of_environment(program, [(root, files, lambda _: False)], environ, store)
    already_loaded = set(map(real, loader.host(environ).resolve([program], program).libraries))
    own = [*map(str, other_directories), str(root)]
    own += map(real, own[:])
    libraries = (
        path
        for path in opened.libraries
        if real(path) not in already_loaded and not is_driver(path) and not within(path, own) and not within(real(path), own)
    )
    return Opened(tuple(libraries), opened.unknown)


def _codes(root: Path, files: Sequence[Found], store: Store) -> Sequence[Code]:
    """The Python files that open libraries. The store keeps for each file what it says, until the file changes."""
    files = [file for file in files if file.kind == "file" and file.path.endswith(".py") and file.size <= _LARGE]
    name = codec.digest(str(root))  # refuses a path that is not UTF-8, which no spec can have
    kept = FileFacts[Code | None](store.facts, _KIND, name, Code | None, lambda path: read(read_head(path, _LARGE), ""))
    found = [(file.path, kept.of(file.key, f"{root}/{file.path}")) for file in files]
    kept.save()
    return [msgspec.structs.replace(code, path=path) for path, code in found if code is not None]


def read(text: bytes, path: str) -> Code | None:
    """Return what a file says about libraries; None if it opens none or cannot be parsed."""
    if not _mentions(text):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    calls = list(_calls(nodes))
    if not calls:
        return None
    names = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {name for name in names if _NAME.fullmatch(name)}
    searched: set[str] = set()
    lines = []
    for function, argument in calls:
        if not isinstance(argument, ast.Constant):
            lines.append(argument.lineno)
        elif isinstance(argument.value, str) and "\0" not in argument.value:
            (searched if function == _SEARCH else names).add(argument.value)
    return Code(path, tuple(sorted(names)), tuple(sorted(searched)), min(lines, default=0))


def _mentions(text: bytes) -> bool:
    """Whether a file may open libraries. Hyperscan takes a tenth of the time that `re` takes, but time to start."""
    if next(_SEARCHED) < _FEW or hyperscan() is None:
        return _MENTION.search(text) is not None
    database, scratch = _database(threading.get_ident())
    found: list[int] = []
    database.scan(text, match_event_handler=lambda number, *_: found.append(number), scratch=scratch)
    return bool(found)


@cache
def _database(thread: int) -> tuple[Any, Any]:  # noqa: ARG001
    """Return what to search with, and the memory for one thread to do it."""
    module = hyperscan()
    database = module.Database(mode=module.HS_MODE_BLOCK)
    database.compile(expressions=[_MENTION.pattern], ids=[0], flags=[module.HS_FLAG_SINGLEMATCH])
    return database, module.Scratch(database)


def _calls(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """(name of a function that opens or searches for a library, expression for the library's name)."""
    for node in nodes:
        if isinstance(node, ast.Subscript) and _last(node.value) in ("cdll", "pydll"):
            yield "CDLL", node.slice
        elif isinstance(node, ast.Call) and _last(node.func) in (*_OPENERS, _SEARCH):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if arguments and not isinstance(arguments[0], ast.Starred):
                yield _last(node.func), arguments[0]


def _last(node: ast.expr) -> str:
    """The last name of `a.b.c`; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
