"""Places in the project's own code that call git or name a variable. The code is searched, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import Found

_LARGEST = 2_000_000
"""Bytes: larger files are not searched."""
_NEEDLE = re.compile(rb"git|setuptools_scm|versioneer|dulwich")
_PATH = re.compile(rb"(?:[\"'](?:\./)?|[\"'}]/(?=\.\./))((?:\.\./){0,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,60})(?=[/\"'])")
"""The beginning of what may be a path, at the start of a string or behind one (`here + "/../data"`); nothing hidden."""
_JOINED = re.compile(rb"[\"']\.\.\\?[\"']\)?\s*[,/]\s*\\?[\"']([A-Za-z0-9_][A-Za-z0-9_.-]{0,60})")
"""`"..", "data"` and `Path("..") / "data"`, the latter the name of something beside the working directory."""
_SETTINGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".sh")
"""Files that name paths without quotes; Hydra's configuration, for example."""
_VALUE = re.compile(
    rb"(?:^|[\s\"'=:,\[]|\}/)(?:\./)?((?:\.\./){1,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}|[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}(?=/))",
    re.MULTILINE,
)
"""The beginning of what may be a path in such a file, also after a reference (`${root}/../data`)."""
_MODULES = frozenset({"git", "pygit2", "dulwich", "setuptools_scm", "versioneer"})
"""Modules that call git, or read a repository themselves."""
_BUILDS = frozenset({"setup.py", "versioneer.py", "noxfile.py"})
"""They run when the project is built, not when it is used."""


class Mentions(msgspec.Struct, frozen=True):
    git: tuple[str, ...] = ()
    """`path:line` of the first place in each file that calls git; sorted."""
    variables: frozenset[str] = frozenset()
    """The names that are in the code as a string."""
    paths: frozenset[str] = frozenset()
    """Beginnings of paths in strings and settings: `data` of `data/x.csv`, and `../data` of `../data/x.csv`."""


def look(root: Path, found: Sequence[Found], names: Iterable[str]) -> Mentions:
    """Search the Python files of a source tree, and its notebooks and settings for paths. Files that cannot be read or parsed are skipped."""
    names = sorted(names)
    pattern = re.compile(b"[\"'](" + b"|".join(re.escape(name.encode()) for name in names) + b")[\"']") if names else None
    places: list[str] = []
    variables: set[str] = set()
    paths: set[str] = set()
    for one in found:
        if one.kind != "file" or not one.path.endswith((".py", ".ipynb", *_SETTINGS)) or one.size > _LARGEST:
            continue
        try:
            text = (root / one.path).read_bytes()
        except OSError:
            continue
        if one.path.endswith(_SETTINGS):
            paths |= {match.decode() for match in _VALUE.findall(text)}
            continue
        paths |= {match.decode() for match in _PATH.findall(text)} | {f"../{name.decode()}" for name in _JOINED.findall(text)}
        if not one.path.endswith(".py"):
            continue
        if pattern is not None:
            variables |= {match.decode() for match in pattern.findall(text)}
        if one.path.rpartition("/")[2] not in _BUILDS and _NEEDLE.search(text) and (line := _asks_git(text)):
            places.append(f"{one.path}:{line}")
    return Mentions(tuple(sorted(places)), frozenset(variables), frozenset(paths))


def _asks_git(text: bytes) -> int:
    """The first line that calls git; 0 if there is none."""
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
