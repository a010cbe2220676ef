"""What the project's own code asks of its surroundings: git, and variables by name. Found in its text; nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import Found

_LARGEST = 2_000_000
"""Bytes of a file of code that is read for this."""
_NEEDLE = re.compile(rb"git|setuptools_scm|versioneer|dulwich")
_MODULES = frozenset({"git", "pygit2", "dulwich", "setuptools_scm", "versioneer"})
"""Modules that ask git, or read a repository themselves."""
_BUILDS = frozenset({"setup.py", "versioneer.py", "noxfile.py"})
"""They run when the project is built, not when it is used."""


class Mentions(msgspec.Struct, frozen=True):
    git: tuple[str, ...] = ()
    """`path:line` of the first place in each file that asks git; sorted."""
    variables: frozenset[str] = frozenset()
    """Those of the names that stand in the code as a string."""


def look(root: Path, found: Sequence[Found], names: Iterable[str]) -> Mentions:
    """Search the Python files of a source tree. What cannot be read or parsed mentions nothing."""
    names = sorted(names)
    pattern = re.compile(b"[\"'](" + b"|".join(re.escape(name.encode()) for name in names) + b")[\"']") if names else None
    places: list[str] = []
    variables: set[str] = set()
    for one in found:
        if one.kind != "file" or not one.path.endswith(".py") or one.size > _LARGEST:
            continue
        try:
            text = (root / one.path).read_bytes()
        except OSError:
            continue
        if pattern is not None:
            variables |= {match.decode() for match in pattern.findall(text)}
        if one.path.rpartition("/")[2] not in _BUILDS and _NEEDLE.search(text) and (line := _asks_git(text)):
            places.append(f"{one.path}:{line}")
    return Mentions(tuple(sorted(places)), frozenset(variables))


def _asks_git(text: bytes) -> int:
    """The first line that asks git; 0 for none."""
    try:
        return min((node.lineno for node in _askers(ast.parse(text))), default=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0


def _askers(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    for node in ast.walk(tree):
        if (
            (isinstance(node, ast.Import) and any(alias.name.partition(".")[0] in _MODULES for alias in node.names))
            or (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in _MODULES)
            or (isinstance(node, (ast.List, ast.Tuple)) and node.elts and _text(node.elts[0]).rpartition("/")[2] == "git")
            or (isinstance(node, ast.Call) and any(_text(word).startswith("git ") for word in node.args))
        ):
            yield node


def _text(node: ast.expr) -> str:
    """A string, or the beginning of an f-string; empty for anything else."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
