"""Find the shared libraries that Python code opens by name or path at run time (`ctypes.CDLL("libgmp.so.10")` and others)."""

from __future__ import annotations

import ast
import itertools
import math
import posixpath
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import Found, read_head

NEEDLES = (b"DLL(", b"cdll", b"library(", b"dlopen(")
"""Every file with a call that this module recognizes contains at least one of these."""
OPENERS = dict.fromkeys(("CDLL", "PyDLL", "LoadLibrary", "dlopen", "find_library", "load_library", "load_op_library"), 0)
"""Functions of ctypes, cffi, NumPy, PyTorch and TensorFlow -> the position of the library's name."""
SEARCH = "find_library"
_TABLES = ("cdll", "pydll")
"""`ctypes.cdll["libgmp.so.10"]`."""
_LARGE = 4 << 20
"""Bytes: a larger Python file counts as data."""
_MAX_VALUES = 64
"""Maximum number of values of one expression; with more, it counts as computed."""
_MAX_DEPTH = 30


class Call(msgspec.Struct, frozen=True):
    """A call in the code that opens or searches for a library."""

    path: str
    """Path of the file, relative to the root."""
    line: int
    search: bool
    """Whether the names are arguments of `find_library`: `gmp`, not `libgmp.so.10`."""
    names: tuple[str, ...]
    """The possible names that can be read from the code; paths relative to `__file__` are made absolute."""
    is_computed: bool
    """Whether there may be more names, which are known only at run time."""


def calls(root: Path, found: Sequence[Found]) -> tuple[Call, ...]:
    """Return every call in the Python files of `found`, which are below `root`. Unreadable and invalid files are skipped."""
    result: list[Call] = []
    for entry in found:
        if entry.kind == "file" and entry.path.endswith(".py") and entry.size <= _LARGE:
            text = read_head(root / entry.path, _LARGE)
            if any(needle in text for needle in NEEDLES):
                result += of_text(text, str(root), entry.path)
    return tuple(result)


def of_text(text: bytes, root: str, path: str) -> list[Call]:
    """Return the calls in one file, sorted by line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        return sorted(_File(tree, posixpath.join(root, path), path).calls(), key=lambda call: (call.line, call.names))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


class _Values(msgspec.Struct, frozen=True):
    texts: frozenset[str]
    is_complete: bool
    """Whether no other value is possible."""


_NOTHING = _Values(frozenset(), True)
_COMPUTED = _Values(frozenset(), False)


class _File:
    """Finds the calls in a module. Scopes and the order of statements are ignored when names are resolved."""

    def __init__(self, tree: ast.Module, file: str, path: str) -> None:
        self._file, self._path = file, path
        self._nodes = list(ast.walk(tree))
        self._openers = dict(OPENERS)
        self._assigned: dict[str, list[ast.expr]] = defaultdict(list)
        self._parameters: set[str] = set()
        self._modules = {"util"}
        """The names of ctypes.util and of its function in this file."""
        self._cache: dict[str, _Values] = {}
        """Name -> its values."""
        for node in self._nodes:
            self._bind(node)
        self._find_forwarders()

    def calls(self) -> Iterator[Call]:
        for node in self._nodes:
            call = self._opening_call(node)
            if call is None:
                continue
            name, argument = call
            values = self._values(argument, 0)
            is_computed = not values.is_complete and not self._is_parameter(argument)
            if values.texts or is_computed:
                line = getattr(node, "lineno", 0)
                yield Call(self._path, line, name == SEARCH, tuple(sorted(values.texts)), is_computed)

    def _opening_call(self, node: ast.AST) -> tuple[str, ast.expr] | None:
        """Return (name of the function, expression for the library's name), or None if the node opens no library."""
        if isinstance(node, ast.Subscript) and _last(node.value) in _TABLES:
            return "CDLL", node.slice
        if not isinstance(node, ast.Call):
            return None
        name = _last(node.func)
        position = self._openers.get(name)
        if position is None or (name == SEARCH and not self._is_ctypes(node.func)):
            return None
        if name == "load_library" and len(node.args) == 2:  # numpy.ctypeslib.load_library(name, directory)
            return name, ast.BinOp(node.args[1], ast.Div(), node.args[0])
        if len(node.args) > position and not any(isinstance(argument, ast.Starred) for argument in node.args[: position + 1]):
            return name, node.args[position]
        keywords = ("name", "path", "library_filename")
        return next(((name, keyword.value) for keyword in node.keywords if keyword.arg in keywords), None)

    def _is_ctypes(self, function: ast.expr) -> bool:
        """Whether `find_library` is the function of ctypes.util; compilers and build tools have functions of the same name."""
        if isinstance(function, ast.Attribute):
            return _last(function.value) in self._modules
        return SEARCH in self._modules

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, ast.Call(ast.Name("computed"), [], []))
        elif isinstance(node, (ast.For, ast.comprehension)):
            self._assign(node.target, node.iter)
        elif isinstance(node, ast.Import):
            self._modules |= {alias.asname for alias in node.names if alias.name == "ctypes.util" and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module in ("ctypes", "ctypes.util"):
            self._modules |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self._parameters |= {parameter.arg for parameter in _positional(node.args) + node.args.kwonlyargs}

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._assigned[target.id].append(value)

    def _find_forwarders(self) -> None:
        """Find the functions of this file that open the library named by a parameter, so that calls of them count too."""
        functions = [node for node in self._nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for function in functions:
            names = [parameter.arg for parameter in _positional(function.args)]
            for node in ast.walk(function):
                call = self._opening_call(node)
                if call and isinstance(call[1], ast.Name) and call[1].id in names and function.name not in self._openers:
                    is_method = names[0] in ("self", "cls")
                    self._openers[function.name] = names.index(call[1].id) - is_method

    def _is_parameter(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._parameters

    def _values(self, node: ast.expr, depth: int) -> _Values:
        """Return the possible values of an expression, without running it."""
        if depth > _MAX_DEPTH:
            return _COMPUTED
        values_of: Callable[[ast.expr], _Values] = lambda inner: self._values(inner, depth + 1)  # noqa: E731
        if isinstance(node, ast.Constant):
            return _Values(frozenset([node.value]), True) if isinstance(node.value, str) else _NOTHING
        if isinstance(node, ast.Name):
            if node.id == "__file__":
                return _Values(frozenset([self._file]), True)
            if node.id not in self._cache:
                self._cache[node.id] = _COMPUTED  # for a name that is assigned from itself
                values = _union(map(values_of, self._assigned[node.id])) if node.id in self._assigned else _COMPUTED
                self._cache[node.id] = _Values(values.texts, values.is_complete and node.id not in self._parameters)
            return self._cache[node.id]
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return _union(map(values_of, node.elts))
        if isinstance(node, ast.IfExp):
            return _union((values_of(node.body), values_of(node.orelse)))
        if isinstance(node, ast.BoolOp):
            return _union(map(values_of, node.values))
        if isinstance(node, ast.JoinedStr):
            return _product(map(values_of, node.values), "".join)
        if isinstance(node, ast.FormattedValue):
            return values_of(node.value) if node.conversion == -1 and node.format_spec is None else _COMPUTED
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return _product((values_of(node.left), values_of(node.right)), "".join)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return _product((values_of(node.left), values_of(node.right)), _join)
        if isinstance(node, ast.Attribute) and node.attr == "parent":
            return _map(values_of(node.value), posixpath.dirname)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
            index = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return _map(values_of(node.value.value), lambda path: _parent(path, index)) if isinstance(index, int) else _COMPUTED
        return self._result(node, values_of) if isinstance(node, ast.Call) else _COMPUTED

    def _result(self, node: ast.Call, values_of: Callable[[ast.expr], _Values]) -> _Values:
        """Return the possible values of a call of a function on paths, or of a function that returns its argument."""
        name = _last(node.func)
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name == SEARCH:
            return _NOTHING  # this call is reported separately
        if name in ("str", "fspath", "abspath", "realpath", "Path", "PurePath", "expanduser") and len(node.args) == 1:
            return values_of(node.args[0])
        if name in ("resolve", "absolute", "as_posix") and inner is not None and not node.args:
            return values_of(inner)
        if name == "dirname" and len(node.args) == 1:
            return _map(values_of(node.args[0]), posixpath.dirname)
        if name == "join" and node.args and _last(inner) == "path":
            return _product(map(values_of, node.args), _join)
        if name == "joinpath" and inner is not None:
            return _product(map(values_of, (inner, *node.args)), _join)
        if name == "with_name" and inner is not None and len(node.args) == 1:
            return _product((_map(values_of(inner), posixpath.dirname), values_of(node.args[0])), _join)
        return _COMPUTED


def _positional(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args]


def _last(node: ast.expr | None) -> str:
    """Return the last name of `a.b.c`; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _union(parts: Iterable[_Values]) -> _Values:
    parts = list(parts)
    texts = frozenset().union(*(part.texts for part in parts))
    return _Values(texts, all(part.is_complete for part in parts)) if len(texts) <= _MAX_VALUES else _COMPUTED


def _product(parts: Iterable[_Values], combine: Callable[[Sequence[str]], str]) -> _Values:
    parts = list(parts)
    if not 0 < math.prod(len(part.texts) for part in parts) <= _MAX_VALUES:
        return _COMPUTED
    return _Values(
        frozenset(combine(texts) for texts in itertools.product(*(sorted(part.texts) for part in parts))),
        all(part.is_complete for part in parts),
    )


def _map(values: _Values, function: Callable[[str], str]) -> _Values:
    return _Values(frozenset(map(function, values.texts)), values.is_complete)


def _join(parts: Sequence[str]) -> str:
    return posixpath.normpath(posixpath.join(*parts)) if any(parts) else ""


def _parent(path: str, index: int) -> str:
    """Return `Path(path).parents[index]`."""
    for _ in range(min(index, 40) + 1):
        path = posixpath.dirname(path)
    return path
