"""Find libraries of this machine that Python code opens at run time: `ctypes.CDLL("libgmp.so.10")` and others.

The code is parsed, never run. In a file that opens libraries, every string that names one counts, wherever it is.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.machine.gpus import is_driver
from repro_env.environment.system import loader
from repro_env.environment.system.tree import real, within
from repro_env.io.files import Found, fingerprint, read_head
from repro_env.schema import codec
from repro_env.schema.messages import shorten
from repro_env.store.hashes import settled
from repro_env.store.store import Store

_NEEDLES = (b"DLL(", b"cdll", b"library(", b"dlopen(")
"""Every file with a call that this module recognizes contains at least one of these."""
_OPENERS = frozenset(("CDLL", "PyDLL", "LoadLibrary", "dlopen", "load_library", "load_op_library"))
"""Functions of ctypes, cffi, NumPy, PyTorch and TensorFlow whose first argument is a name or path."""
_SEARCH = "find_library"
_NAME = re.compile(r"[^\s*?{}%\\]+\.so(?:\.\d+)*")
_LARGE = 4 << 20
"""Bytes: a larger Python file counts as data."""
_MAX_NAMES = 5


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
) -> Opened:
    """The libraries that code opens; `program` is the binary that runs it.

    `directories`: (directory, its files, whether a distribution lists a path). What packaged code computes does not depend on the
    machine. A name that is found nowhere is ignored: the code works without it on this machine too.
    """
    machine = loader.host(environ)
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
                f"{shorten(computed, _MAX_NAMES)}: the library that this code opens is known only when the code runs; "
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
    """The Python files that open libraries, cached until one of the files changes."""
    files = [file for file in files if file.kind == "file" and file.path.endswith(".py") and file.size <= _LARGE]
    key = codec.digest([str(root), fingerprint(files)])
    codes = store.facts.recall("opened", key, tuple[Code, ...])
    if codes is None:
        codes = tuple(code for file in files if (code := read(read_head(root / file.path, _LARGE), file.path)) is not None)
        if settled(files):
            store.facts.put("opened", key, codec.canonical(codes))
    return codes


def read(text: bytes, path: str) -> Code | None:
    """Return what a file says about libraries; None if it opens none or cannot be parsed."""
    if not any(needle in text for needle in _NEEDLES):
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
