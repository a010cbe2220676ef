"""Libraries that Python code opens by name or path when it runs (`ctypes.CDLL("libgmp.so.10")` and others)."""

from __future__ import annotations

import ast
import itertools
import posixpath
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import Found

NEEDLES = (b"DLL(", b"cdll", b"library(", b"dlopen(")
"""Every file with a call that this module recognizes contains at least one of these."""
OPENERS = dict.fromkeys(("CDLL", "PyDLL", "LoadLibrary", "dlopen", "find_library", "load_library", "load_op_library"), 0)
"""Functions of ctypes, cffi, NumPy, PyTorch and TensorFlow -> the position of the library's name."""
SEARCH = "find_library"
_TABLES = ("cdll", "pydll")
"""`ctypes.cdll["libgmp.so.10"]`."""
_LARGE = 4 << 20
"""Bytes: a larger Python file counts as data."""
_MOST = 64
"""The most values of one expression; with more of them it counts as computed."""
_DEEP = 30


class Call(msgspec.Struct, frozen=True):
    """One place in the code that opens or looks for a library."""

    path: str
    """Of the file, relative to the root that was read."""
    line: int
    search: bool
    """The name is one for `find_library`: `gmp`, not `libgmp.so.10`."""
    names: tuple[str, ...]
    """The possible names that can be read from the code; paths relative to `__file__` are made absolute."""
    is_computed: bool
    """Other names are possible, which are known only at run time."""


def calls(root: Path, found: Sequence[Found]) -> tuple[Call, ...]:
    """Every call in the Python files among `found`, which are below `root`. Files that cannot be read or parsed are skipped."""
    answer: list[Call] = []
    for one in found:
        if one.kind == "file" and one.path.endswith(".py") and one.size <= _LARGE:
            try:
                text = (root / one.path).read_bytes()
            except OSError:
                continue
            if any(needle in text for needle in NEEDLES):
                answer += of_text(text, str(root), one.path)
    return tuple(answer)


def of_text(text: bytes, root: str, path: str) -> list[Call]:
    """The calls in one file, in the order of their lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        return sorted(_File(tree, posixpath.join(root, path), path).calls(), key=lambda call: (call.line, call.names))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


class _Values(msgspec.Struct, frozen=True):
    texts: frozenset[str]
    is_whole: bool
    """No other value is possible."""


_NOTHING = _Values(frozenset(), True)
_COMPUTED = _Values(frozenset(), False)


class _File:
    """The calls of one module. Names are resolved for the whole file, without regard to scopes and the order of statements."""

    def __init__(self, tree: ast.Module, file: str, path: str) -> None:
        self._file, self._path = file, path
        self._nodes = list(ast.walk(tree))
        self._openers = dict(OPENERS)
        self._assigned: dict[str, list[ast.expr]] = defaultdict(list)
        self._parameters: set[str] = set()
        self._modules = {"util"}
        """Names of ctypes.util in this file, and of its function."""
        self._named: dict[str, _Values] = {}
        """Cache of the values of each name that was looked up."""
        for node in self._nodes:
            self._bind(node)
        self._forwarders()

    def calls(self) -> Iterator[Call]:
        for node in self._nodes:
            opened = self._opened(node)
            if opened is None:
                continue
            name, argument = opened
            values = self._values(argument, 0)
            computed = not values.is_whole and not self._is_parameter(argument)
            if values.texts or computed:
                line = getattr(node, "lineno", 0)
                yield Call(self._path, line, name == SEARCH, tuple(sorted(values.texts)), computed)

    def _opened(self, node: ast.AST) -> tuple[str, ast.expr] | None:
        """(the function's name, the expression that names the library)."""
        if isinstance(node, ast.Subscript) and _last(node.value) in _TABLES:
            return "CDLL", node.slice
        if not isinstance(node, ast.Call):
            return None
        name = _last(node.func)
        place = self._openers.get(name)
        if place is None or (name == SEARCH and not self._is_ctypes(node.func)):
            return None
        if name == "load_library" and len(node.args) == 2:  # numpy.ctypeslib.load_library(name, folder)
            return name, ast.BinOp(node.args[1], ast.Div(), node.args[0])
        if len(node.args) > place and not any(isinstance(one, ast.Starred) for one in node.args[: place + 1]):
            return name, node.args[place]
        return next(((name, one.value) for one in node.keywords if one.arg in ("name", "path", "library_filename")), None)

    def _is_ctypes(self, function: ast.expr) -> bool:
        """Whether it is the function of ctypes.util: compilers and build tools have others of that name."""
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
            self._modules |= {one.asname for one in node.names if one.name == "ctypes.util" and one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module in ("ctypes", "ctypes.util"):
            self._modules |= {one.asname or one.name for one in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self._parameters |= {one.arg for one in _positional(node.args) + node.args.kwonlyargs}

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._assigned[target.id].append(value)

    def _forwarders(self) -> None:
        """Find functions of this file that open the library named by a parameter, so that calls of them count too."""
        functions = [node for node in self._nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for function in functions:
            names = [one.arg for one in _positional(function.args)]
            for node in ast.walk(function):
                opened = self._opened(node)
                if opened and isinstance(opened[1], ast.Name) and opened[1].id in names and function.name not in self._openers:
                    method = names[0] in ("self", "cls")
                    self._openers[function.name] = names.index(opened[1].id) - method

    def _is_parameter(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._parameters

    def _values(self, node: ast.expr, depth: int) -> _Values:
        """The possible values of an expression, without running it."""
        if depth > _DEEP:
            return _COMPUTED
        again: Callable[[ast.expr], _Values] = lambda inner: self._values(inner, depth + 1)  # noqa: E731
        if isinstance(node, ast.Constant):
            return _Values(frozenset([node.value]), True) if isinstance(node.value, str) else _NOTHING
        if isinstance(node, ast.Name):
            if node.id == "__file__":
                return _Values(frozenset([self._file]), True)
            if node.id not in self._named:
                self._named[node.id] = _COMPUTED  # for a name that is defined by itself
                found = _union(map(again, self._assigned[node.id])) if node.id in self._assigned else _COMPUTED
                self._named[node.id] = _Values(found.texts, found.is_whole and node.id not in self._parameters)
            return self._named[node.id]
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return _union(map(again, node.elts))
        if isinstance(node, ast.IfExp):
            return _union((again(node.body), again(node.orelse)))
        if isinstance(node, ast.BoolOp):
            return _union(map(again, node.values))
        if isinstance(node, ast.JoinedStr):
            return _product(map(again, node.values), "".join)
        if isinstance(node, ast.FormattedValue):
            return again(node.value) if node.conversion == -1 and node.format_spec is None else _COMPUTED
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return _product((again(node.left), again(node.right)), "".join)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return _product((again(node.left), again(node.right)), _join)
        if isinstance(node, ast.Attribute) and node.attr == "parent":
            return _each(again(node.value), posixpath.dirname)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
            index = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return _each(again(node.value.value), lambda path: _above(path, index)) if isinstance(index, int) else _COMPUTED
        return self._result(node, again) if isinstance(node, ast.Call) else _COMPUTED

    def _result(self, node: ast.Call, again: Callable[[ast.expr], _Values]) -> _Values:
        """The possible values of a call: of functions on paths, and functions that return their argument."""
        name = _last(node.func)
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name == SEARCH:
            return _NOTHING  # this call is reported separately
        if name in ("str", "fspath", "abspath", "realpath", "Path", "PurePath", "expanduser") and len(node.args) == 1:
            return again(node.args[0])
        if name in ("resolve", "absolute", "as_posix") and inner is not None and not node.args:
            return again(inner)
        if name == "dirname" and len(node.args) == 1:
            return _each(again(node.args[0]), posixpath.dirname)
        if name == "join" and node.args and _last(inner) == "path":
            return _product(map(again, node.args), _join)
        if name == "joinpath" and inner is not None:
            return _product(map(again, (inner, *node.args)), _join)
        if name == "with_name" and inner is not None and len(node.args) == 1:
            return _product((_each(again(inner), posixpath.dirname), again(node.args[0])), _join)
        return _COMPUTED


def _positional(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args]


def _last(node: ast.expr | None) -> str:
    """The last name of `a.b.c`; empty for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _union(parts: Iterable[_Values]) -> _Values:
    held = list(parts)
    texts = frozenset().union(*(one.texts for one in held))
    return _Values(texts, all(one.is_whole for one in held)) if len(texts) <= _MOST else _COMPUTED


def _product(parts: Iterable[_Values], put: Callable[[Sequence[str]], str]) -> _Values:
    held = list(parts)
    count = 1
    for one in held:
        count *= len(one.texts)
    if not 0 < count <= _MOST:
        return _COMPUTED
    return _Values(
        frozenset(put(texts) for texts in itertools.product(*(sorted(one.texts) for one in held))),
        all(one.is_whole for one in held),
    )


def _each(values: _Values, change: Callable[[str], str]) -> _Values:
    return _Values(frozenset(map(change, values.texts)), values.is_whole)


def _join(parts: Sequence[str]) -> str:
    return posixpath.normpath(posixpath.join(*parts)) if any(parts) else ""


def _above(path: str, steps: int) -> str:
    for _ in range(min(steps, 40) + 1):
        path = posixpath.dirname(path)
    return path
