"""Find lines in the project's own code that call git, name a variable or name a path. The code is searched, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import Found, read_head

_LARGEST = 2_000_000
"""Maximum bytes of a file; larger files are not searched."""
_GIT_WORD = re.compile(rb"git|setuptools_scm|versioneer|dulwich")
_PATH = re.compile(rb"(?:[\"'](?:\./)?|[\"'}]/(?=\.\./))((?:\.\./){0,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,60})(?=[/\"'])")
"""The start of a possible path, at the start of a string or after one (`here + "/../data"`). Hidden names do not match."""
_JOINED = re.compile(rb"[\"']\.\.\\?[\"']\)?\s*[,/]\s*\\?[\"']([A-Za-z0-9_][A-Za-z0-9_.-]{0,60})")
"""`"..", "data"` and `Path("..") / "data"`: the name of a sibling of the working directory."""
_SETTINGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".sh")
"""Suffixes of files with unquoted paths, for example the configuration of Hydra."""
_VALUE = re.compile(
    rb"(?:^|[\s\"'=:,\[]|\}/)(?:\./)?((?:\.\./){1,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}|[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}(?=/))",
    re.MULTILINE,
)
"""The start of a possible path in such a file, also after a reference (`${root}/../data`)."""
_GIT_MODULES = frozenset({"git", "pygit2", "dulwich", "setuptools_scm", "versioneer"})
"""Modules that call git or read a repository themselves."""
_BUILD_SCRIPTS = frozenset({"setup.py", "versioneer.py", "noxfile.py"})
"""Files that run when the project is built, not when it is used."""


class Mentions(msgspec.Struct, frozen=True):
    git: tuple[str, ...] = ()
    """`path:line` of the first call of git in each file; sorted."""
    variables: frozenset[str] = frozenset()
    """The variables whose names occur in the code as a string."""
    paths: frozenset[str] = frozenset()
    """The start of each path in strings and settings: `data` of `data/x.csv`, and `../data` of `../data/x.csv`."""


def look(root: Path, found: Sequence[Found], names: Iterable[str]) -> Mentions:
    """Search the Python files of a source tree, and for paths also its notebooks and settings.

    `names`: the names of variables to search for. Files that cannot be read or parsed are skipped.
    """
    names = sorted(names)
    pattern = re.compile(b"[\"'](" + b"|".join(re.escape(name.encode()) for name in names) + b")[\"']") if names else None
    git_calls: list[str] = []
    variables: set[str] = set()
    paths: set[str] = set()
    for entry in found:
        path = entry.path
        if entry.kind != "file" or not path.endswith((".py", ".ipynb", *_SETTINGS)) or entry.size > _LARGEST:
            continue
        text = read_head(root / path, _LARGEST)
        if path.endswith(_SETTINGS):
            paths |= {match.decode() for match in _VALUE.findall(text)}
            continue
        paths |= {match.decode() for match in _PATH.findall(text)} | {f"../{name.decode()}" for name in _JOINED.findall(text)}
        if not path.endswith(".py"):
            continue
        if pattern is not None:
            variables |= {match.decode() for match in pattern.findall(text)}
        if path.rpartition("/")[2] not in _BUILD_SCRIPTS and _GIT_WORD.search(text) and (line := _line_of_git_call(text)):
            git_calls.append(f"{path}:{line}")
    return Mentions(tuple(sorted(git_calls)), frozenset(variables), frozenset(paths))


def _line_of_git_call(text: bytes) -> int:
    """Return the number of the first line that calls git; 0 if there is none."""
    try:
        return min((node.lineno for node in _git_calls(ast.parse(text))), default=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0


def _git_calls(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    for node in ast.walk(tree):
        if (
            (isinstance(node, ast.Import) and any(alias.name.partition(".")[0] in _GIT_MODULES for alias in node.names))
            or (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in _GIT_MODULES)
            or (isinstance(node, (ast.List, ast.Tuple)) and node.elts and _text(node.elts[0]).rpartition("/")[2] == "git")
            or (isinstance(node, ast.Call) and any(_text(argument).startswith("git ") for argument in node.args))
        ):
            yield node


def _text(node: ast.expr) -> str:
    """Return the value of a string, or the start of an f-string; empty for any other expression."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
