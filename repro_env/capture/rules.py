"""What of a source is left out of its snapshot, and the account of it."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from repro_env.capture import git
from repro_env.capture.globs import Glob
from repro_env.capture.ignored import DATA, MANY, Places
from repro_env.model.environment import Excluded

CACHES = frozenset(
    {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", "node_modules", ".tox", ".nox"}
)
STORES = frozenset({".git", ".hg", ".svn"})
_VENV_PARTS = frozenset({"bin", "include", "lib", "lib64", "share", "pyvenv.cfg"})
_MOST_ROWS = 200
"""Rows with one reason in `excluded`; above it they are summed up by folder."""
_GIT_IGNORED = "git-ignored"
_OURS, _STORE, _CACHE = "written by repro-env, not measured", "the version control's own store", "a cache"
_VENV, _CONDA = "a virtual environment", "a conda environment"
USUAL = frozenset({_OURS, _STORE, _CACHE, _VENV, _CONDA})
"""Reasons that nobody needs to read about: no run wants these files from the source."""
_NOT_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class Rules:
    """Decides path by path, as `walk` asks, and keeps the account of what is left out."""

    def __init__(
        self,
        root: Path,
        include: tuple[Glob, ...],
        exclude: tuple[Glob, ...],
        never: Sequence[Path],
        *,
        measure: bool = True,
        unmeasured: Path | None = None,
        data: int = 0,
    ) -> None:
        """`data`: as `source.look`."""
        self._measure = measure
        self._most = data
        self._apart: set[str] = set()
        """Git-ignored directories that are entered for data alone: nothing in them is code."""
        self.data: dict[str, str] = {}
        """Git-ignored data: path of a file or symlink -> the outermost ignored path that it is in, which may be itself."""
        self._unmeasured = None if unmeasured is None else os.path.realpath(unmeasured)
        self.include, self.exclude = include, exclude
        self._root = str(root)
        self._venv_root = (root / "pyvenv.cfg").exists() or (root / "conda-meta").is_dir()
        ignored = git.ignored(root)
        self._ignored = set(ignored.paths)
        self._problems = [ignored.problem]
        self._reasons: dict[str, str] = {}
        self._sizes: dict[str, int] = defaultdict(int)
        self.entered: dict[str, str] = {}
        """Folders that are left out but walked, since something in them may be kept: path -> the outermost one."""
        self.ignored_folders: list[str] = []
        """Folders that git ignores as a whole."""
        self.missed: list[str] = []
        """What git ignores and a run may need all the same: code, or data in a package, that no rule keeps."""
        self._places = Places(self._root, CACHES | STORES)
        self._places.hollow |= ignored.hollow
        self._never = self._relative(never)
        self._above_never = {path[:end] for path in self._never for end, char in enumerate(path) if char == "/"}
        for path in self._never:
            self._reasons[path] = _OURS

    @property
    def problem(self) -> str:
        return next((problem for problem in self._problems if problem), "")

    def skip(self, path: str, is_dir: bool) -> bool:
        """For `walk`: True leaves the path out."""
        if path in self._never:
            return True
        name = path.rpartition("/")[2]
        why = forbidden(name) or self._excluded(path)
        if why:
            return self._leave(path, why, is_dir)
        if is_dir and os.path.lexists(f"{self._root}/{path}/.git"):
            self._ask_nested(path)
        outer = self.entered.get(path.rpartition("/")[0])
        why = self._soft(path, is_dir=is_dir) or (self._reasons[outer] if outer is not None else "")
        if not why or self._included(path):
            return False
        if why == _GIT_IGNORED:
            return self._skip_ignored(path, outer, is_dir)
        if is_dir and any(glob.may_match_below(path) for glob in self.include):
            self.entered[path] = outer or path
            self._reasons.setdefault(outer or path, why)
            return False
        if outer is None:
            return self._leave(path, why, is_dir)
        self._sizes[outer] += self._size(path, is_dir)
        return True

    def _skip_ignored(self, path: str, outer: str | None, is_dir: bool) -> bool:
        if not is_dir:
            if outer not in self._apart and self._places.keeps(path, outer):
                return False
            if self._most and self._places.is_data(path):
                self.data[path] = outer or path
                return False
            if outer is None:
                if self._places.missed(path):
                    self.missed.append(path)
                return self._leave(path, _GIT_IGNORED, is_dir)
            self._sizes[outer] += self._size(path, is_dir)
            return True
        if outer is None:
            self.ignored_folders.append(path)
            survey = self._places.survey(path, measure=self._measure)
            keeps = self._places.keeps_folder(path, survey)
            if (survey.data > DATA and self._places.in_package(path)) or (survey.code and not keeps):
                self.missed.append(path)
            if not keeps and not any(not glob.anchored or glob.may_match_below(path) for glob in self.include):
                if not 0 < survey.data <= self._most or survey.files > MANY or survey.unread or not path.isprintable():
                    self._reasons[path] = _GIT_IGNORED
                    self._sizes[path] = survey.size if self._measure else 0
                    return True
                self._apart.add(path)
            self._reasons.setdefault(path, _GIT_IGNORED)
        elif outer in self._apart and not path.isprintable():
            return True
        self.entered[path] = outer or path
        return False

    def only_passed(self, path: str) -> bool:
        """Whether this folder belongs to the snapshot only for what in it is kept."""
        return path in self.entered or path in self._above_never

    def other(self, path: str) -> None:
        """Account for something that is no file, folder or symlink."""
        self._reasons[path] = "a pipe, socket or device"
        self._sizes[path] = 0

    def rows(self) -> tuple[Excluded, ...]:
        rows = [
            (path, self._sizes.get(path, 0), why)
            for path, why in self._reasons.items()
            # A walked folder of which everything was kept has no row.
            if path not in self.entered or path in self._sizes
        ]
        return tuple(Excluded(path=_NOT_TEXT.sub("?", path), size=size, why=why) for path, size, why in _summed(rows))

    def _soft(self, path: str, *, is_dir: bool) -> str:
        if self._venv_root and path in _VENV_PARTS:
            return "part of the virtual environment at the source's root"
        return product(f"{self._root}/{path}", is_dir=is_dir) or (_GIT_IGNORED if path in self._ignored else "")

    def _excluded(self, path: str) -> str:
        hits = [glob for glob in self.exclude if glob.matches(path)]
        for glob in hits:
            glob.hit = True
        return "--exclude" if hits else ""

    def _included(self, path: str) -> bool:
        hits = [glob for glob in self.include if glob.matches(path)]
        for glob in hits:
            glob.hit = True
        return bool(hits)

    def _leave(self, path: str, why: str, is_dir: bool) -> bool:
        self._reasons[path] = why
        self._sizes[path] = self._size(path, is_dir)
        return True

    def _size(self, path: str, is_dir: bool) -> int:
        if not self._measure or (is_dir and self._unmeasured == os.path.realpath(f"{self._root}/{path}")):
            return 0
        return _total(f"{self._root}/{path}") if is_dir else _size(f"{self._root}/{path}")

    def _ask_nested(self, path: str) -> None:
        """A repository inside the source (a submodule, a clone) has rules of its own."""
        ignored = git.ignored(Path(self._root, path))
        self._ignored |= {f"{path}/{one}" for one in ignored.paths}
        self._places.hollow |= {f"{path}/{one}" for one in ignored.hollow}
        self._problems.append(ignored.problem)

    def _relative(self, never: Sequence[Path]) -> set[str]:
        root = os.path.realpath(self._root)
        paths = (os.path.relpath(os.path.realpath(path), root) for path in never)
        return {path for path in paths if path != "." and path != ".." and not path.startswith("../")}


def forbidden(name: str) -> str:
    """Why a path with this name is never copied, whatever the user asks for; empty if it may be."""
    if name in STORES:
        return _STORE
    return "may hold secrets" if name == ".env" or name.startswith(".env.") else ""


def product(full: str, *, is_dir: bool) -> str:
    """What a tool made at an absolute path and can make again: a cache, an environment, a capture, an image; empty for anything else."""
    if is_dir and full.rpartition("/")[2] in CACHES:
        return _CACHE
    if (is_dir or os.path.islink(full)) and os.path.exists(f"{full}/pyvenv.cfg"):  # noqa: PTH110, PTH114 - asked for every folder
        return _VENV
    if is_dir and os.path.isdir(f"{full}/conda-meta"):  # noqa: PTH112
        return _CONDA
    if is_dir and os.path.isfile(f"{full}/spec.json") and os.path.isdir(f"{full}/blobs"):  # noqa: PTH112, PTH113
        return "an earlier capture"
    if is_dir and os.path.isfile(f"{full}/oci-layout"):  # noqa: PTH113
        return "an image layout"
    return ""


def _summed(rows: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Sorted by path. Of a reason with too many rows, the deepest are summed up in their folder until few are left."""
    by_reason: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for path, size, why in rows:
        by_reason[why][path] = (size, 1)
    result = []
    for why, paths in by_reason.items():
        while len(paths) > _MOST_ROWS and (depth := max(path.count("/") for path in paths)):
            shallower: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
            for path, (size, count) in paths.items():
                key = path.rpartition("/")[0] if path.count("/") == depth else path
                shallower[key] = (shallower[key][0] + size, shallower[key][1] + count)
            paths = dict(shallower)
        result += [(path, size, why if count == 1 else f"{why} ({count} paths in it)") for path, (size, count) in paths.items()]
    return sorted(result)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size if not os.path.islink(path) else 0  # noqa: PTH114
    except OSError:
        return 0


def _total(folder: str) -> int:
    """Bytes of the files below, bytecode apart: that comes and goes by itself."""
    total = 0
    pending = [folder]
    while pending:
        total += _add(pending.pop(), pending)
    return total


def _add(folder: str, pending: list[str]) -> int:
    """Bytes of the files of one folder; its folders go to `pending`. One that cannot be read counts nothing."""
    total = 0
    try:
        with os.scandir(folder) as listing:
            for item in listing:
                if item.is_file(follow_symlinks=False):
                    total += item.stat(follow_symlinks=False).st_size
                elif item.is_dir(follow_symlinks=False) and item.name != "__pycache__":
                    pending.append(item.path)
    except OSError:
        pass
    return total
