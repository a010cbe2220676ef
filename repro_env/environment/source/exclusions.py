"""Decide which paths of a source are left out of its snapshot, and record why."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from repro_env.environment.git import repository
from repro_env.environment.git.directory import NOT_TEXT
from repro_env.environment.source.globs import Glob
from repro_env.environment.source.ignoredfiles import DATA, MANY, ImportRules, file_size
from repro_env.schema.environment import Excluded

CACHES = frozenset(
    {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", "node_modules", ".tox", ".nox"}
)
STORES = frozenset({".git", ".hg", ".svn"})
_VENV_PARTS = frozenset({"bin", "include", "lib", "lib64", "share", "pyvenv.cfg"})
_MOST_ROWS = 200
"""Maximum number of rows with the same reason in `excluded`; more rows are summed up by directory."""
_GIT_IGNORED = "git-ignored"
_OWN_OUTPUT, _STORE, _CACHE = "written by repro-env, not measured", "version control data", "a cache"
_VENV, _CONDA = "a virtual environment", "a conda environment"
USUAL_REASONS = frozenset({_OWN_OUTPUT, _STORE, _CACHE, _VENV, _CONDA})
"""Reasons that need no explanation, since no run needs these files from the source. Their sizes are not measured."""


class Rules:
    """Decide for each path of `walk` whether to skip it, and record what is left out."""

    def __init__(
        self,
        root: Path,
        include: tuple[Glob, ...],
        exclude: tuple[Glob, ...],
        never: Sequence[Path],
        *,
        measure: bool = True,
        data: int = 0,
    ) -> None:
        """See `source.look` for `data`. `measure`: whether to determine the sizes of excluded paths that need an explanation."""
        self._measure = measure
        self._max_data = data
        self._data_directories: set[str] = set()
        """Git-ignored directories that are walked only for data: nothing in them is code."""
        self.data: dict[str, str] = {}
        """Git-ignored data: path of a file or symlink -> the outermost ignored path that it is in, which may be itself."""
        self.include, self.exclude = include, exclude
        self._root = str(root)
        self._is_environment = (root / "pyvenv.cfg").exists() or (root / "conda-meta").is_dir()
        ignored = repository.ignored(root)
        self._ignored = set(ignored.paths)
        self._problems = [ignored.problem]
        self._reasons: dict[str, str] = {}
        self._sizes: dict[str, int] = defaultdict(int)
        self.entered: dict[str, str] = {}
        """Directories that are left out but walked, because something in them may be kept: path -> the outermost of them."""
        self.ignored_directories: list[str] = []
        """Directories that git ignores completely."""
        self.missing: list[str] = []
        """Git-ignored paths that no rule keeps, although a run may need them: code, or data in a package."""
        self._import_rules = ImportRules(self._root, CACHES | STORES)
        self._import_rules.hollow |= ignored.hollow
        self._never = self._relative(never)
        self._parents_of_never = {path[:end] for path in self._never for end, char in enumerate(path) if char == "/"}
        for path in self._never:
            self._reasons[path] = _OWN_OUTPUT

    @property
    def problem(self) -> str:
        return next((problem for problem in self._problems if problem), "")

    def skip(self, path: str, is_dir: bool) -> bool:
        """Whether `walk` must skip this path."""
        if path in self._never:
            return True
        name = path.rpartition("/")[2]
        why = forbidden_reason(name) or ("--exclude" if _matches(self.exclude, path) else "")
        if why:
            return self._exclude(path, why, is_dir)
        if is_dir and os.path.lexists(f"{self._root}/{path}/.git"):
            self._add_nested_repository(path)
        outer = self.entered.get(path.rpartition("/")[0])
        why = self._reason(path, is_dir=is_dir) or (self._reasons[outer] if outer is not None else "")
        if not why or _matches(self.include, path):
            return False
        if why == _GIT_IGNORED:
            return self._skip_ignored(path, outer, is_dir)
        if is_dir and any(glob.may_match_below(path) for glob in self.include):
            self.entered[path] = outer or path
            self._reasons.setdefault(outer or path, why)
            return False
        if outer is None:
            return self._exclude(path, why, is_dir)
        self._sizes[outer] += self._size(path, is_dir)
        return True

    def _skip_ignored(self, path: str, outer: str | None, is_dir: bool) -> bool:
        """As `skip`, for a path that git ignores. `outer`: the outermost excluded directory that contains it, or None."""
        if not is_dir:
            if outer not in self._data_directories and self._import_rules.keeps(path, outer):
                return False
            if self._max_data and self._import_rules.is_data(path):
                self.data[path] = outer or path
                return False
            if outer is None:
                if self._import_rules.must_be_reported(path):
                    self.missing.append(path)
                return self._exclude(path, _GIT_IGNORED, is_dir)
            self._sizes[outer] += self._size(path, is_dir)
            return True
        if outer is None:
            self.ignored_directories.append(path)
            survey = self._import_rules.survey(path, measure=self._measure)
            keeps = self._import_rules.keeps_directory(path, survey)
            if (survey.data > DATA and self._import_rules.in_package(path)) or (survey.has_code and not keeps):
                self.missing.append(path)
            if not keeps and not any(not glob.anchored or glob.may_match_below(path) for glob in self.include):
                is_data = 0 < survey.data <= self._max_data and survey.files <= MANY and not survey.is_incomplete
                if not is_data or not path.isprintable():
                    self._reasons[path] = _GIT_IGNORED
                    self._sizes[path] = survey.size if self._measure else 0
                    return True
                self._data_directories.add(path)
            self._reasons.setdefault(path, _GIT_IGNORED)
        elif outer in self._data_directories and not path.isprintable():
            return True
        self.entered[path] = outer or path
        return False

    def is_only_parent(self, path: str) -> bool:
        """Whether this directory belongs to the snapshot only if something in it is kept."""
        return path in self.entered or path in self._parents_of_never

    def add_special(self, path: str) -> None:
        """Record a pipe, socket or device as excluded."""
        self._reasons[path] = "a pipe, socket or device"
        self._sizes[path] = 0

    def rows(self) -> tuple[Excluded, ...]:
        """Return the excluded paths, sorted."""
        rows = [
            (path, self._sizes.get(path, 0), why)
            for path, why in self._reasons.items()
            # A walked directory has no row if everything in it was kept.
            if path not in self.entered or path in self._sizes
        ]
        return tuple(Excluded(path=NOT_TEXT.sub("?", path), size=size, why=why) for path, size, why in _sum_up(rows))

    def _reason(self, path: str, *, is_dir: bool) -> str:
        """Return why a path is left out, unless a pattern of --include matches; empty if it is not left out."""
        if self._is_environment and path in _VENV_PARTS:
            return "part of the virtual environment at the source's root"
        return generated_reason(f"{self._root}/{path}", is_dir=is_dir) or (_GIT_IGNORED if path in self._ignored else "")

    def _exclude(self, path: str, why: str, is_dir: bool) -> bool:
        self._reasons[path] = why
        self._sizes[path] = 0 if why in USUAL_REASONS else self._size(path, is_dir)
        return True

    def _size(self, path: str, is_dir: bool) -> int:
        if not self._measure:
            return 0
        return self._import_rules.survey(path, measure=True).size if is_dir else file_size(f"{self._root}/{path}")

    def _add_nested_repository(self, path: str) -> None:
        """Add the ignored paths of a repository inside the source (a submodule, a clone), which has its own rules."""
        ignored = repository.ignored(Path(self._root, path))
        self._ignored |= {f"{path}/{inner}" for inner in ignored.paths}
        self._import_rules.hollow |= {f"{path}/{inner}" for inner in ignored.hollow}
        self._problems.append(ignored.problem)

    def _relative(self, never: Sequence[Path]) -> set[str]:
        root = os.path.realpath(self._root)
        paths = (os.path.relpath(os.path.realpath(path), root) for path in never)
        return {path for path in paths if path != "." and path != ".." and not path.startswith("../")}


def _matches(globs: Sequence[Glob], path: str) -> bool:
    """Whether a pattern matches. Marks every matching pattern as used."""
    matching = [glob for glob in globs if glob.matches(path)]
    for glob in matching:
        glob.hit = True
    return bool(matching)


def forbidden_reason(name: str) -> str:
    """Return why a path with this name is never copied, even with --include; empty if it may be copied."""
    if name in STORES:
        return _STORE
    return "may hold secrets" if name == ".env" or name.startswith(".env.") else ""


def generated_reason(full: str, *, is_dir: bool) -> str:
    """Return what a tool generated at an absolute path: a cache, an environment, a capture or an image; empty for other paths."""
    if is_dir and full.rpartition("/")[2] in CACHES:
        return _CACHE
    if (is_dir or os.path.islink(full)) and os.path.exists(f"{full}/pyvenv.cfg"):  # noqa: PTH110, PTH114 - called for every directory
        return _VENV
    if is_dir and os.path.isdir(f"{full}/conda-meta"):  # noqa: PTH112
        return _CONDA
    if is_dir and os.path.isfile(f"{full}/spec.json") and os.path.isdir(f"{full}/blobs"):  # noqa: PTH112, PTH113
        return "an earlier capture"
    if is_dir and os.path.isfile(f"{full}/oci-layout"):  # noqa: PTH113
        return "an image layout"
    if is_dir and os.path.isfile(f"{full}/CACHEDIR.TAG"):  # noqa: PTH113 - the Cache Directory Tagging Specification
        return _CACHE
    return ""


def _sum_up(rows: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Return the rows sorted by path. If a reason has too many rows, the deepest are summed up in their directories."""
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
