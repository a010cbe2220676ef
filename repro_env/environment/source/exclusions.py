"""Decide which paths of a source are left out of its snapshot, and record why. All rules are in this module.

The first rule that applies to a path decides:

1. The output of repro-env, version control data, `.env` files and paths that match --exclude are left out. A capture adds
   the build metadata of editable projects to --exclude.
2. Paths that match --include are captured. A capture adds the ignored paths on `sys.path` (`selection.imported`).
3. Caches, environments, captures, images and directories of runs are left out, and what is in a directory that is left out.
4. Paths that git ignores are left out, unless Python may need them: compiled extensions, generated modules, a package's own
   data (`_is_needed`). A live run sees other ignored files too, as data (`may_be_copied`).
5. All other paths are captured.

The rules depend only on names, directories and sizes (docs/decisions/0008), so a run, which reads the live source again,
makes the same decision as the capture.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.environment.git import repository
from repro_env.environment.git.command import NOT_TEXT
from repro_env.environment.system.tree import parent_directories
from repro_env.schema.environment import Excluded
from repro_env.schema.globs import Glob
from repro_env.schema.patterns import lazy

CACHES = frozenset(
    {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", "node_modules", ".tox", ".nox"}
)
STORES = frozenset({".git", ".hg", ".svn"})
"""Directories of version control."""
LIBRARY = lazy(r".+\.so(?:\.\d+)*")
"""`x.cpython-311-x86_64-linux-gnu.so`, `x.abi3.so`, `x.so`, `libx.so.1`: libraries that were built in place."""
EXTENSION = lazy(r".+\.(?:cpython-[A-Za-z0-9_-]+|abi3)\.so")
"""Extension modules with a tag of Python in their names."""
DATA = 10_000_000
"""Maximum bytes of ignored data in a package that are kept without --include: of a single file, or of an ignored directory."""
MANY = 20_000
"""Maximum number of files of an ignored directory that a live run sees."""
_VENV_PARTS = frozenset({"bin", "include", "lib", "lib64", "share", "pyvenv.cfg"})
_METADATA = lazy(r".+\.(?:egg|dist)-info")
"""Directories in which an editable project keeps its name, version and entry points."""
_PRIVATE = lazy(
    r".*(?:secret|credential|passw|token(?!i[sz])|private|service_?account|htpasswd)|(?:local_settings|settings_local|config_local|local_config)\b"
    r"|.*\.(?:pem|key|p12|pfx|jks|keystore|gpg|asc)$|id_(?:rsa|dsa|ecdsa|ed25519)|\.(?:netrc|pypirc|npmrc|aws|ssh)",
    re.IGNORECASE,
)
"""Files that are probably private. They are reported, and kept only with --include."""
_LEFTOVER = lazy(
    r".*\.(?:log|tmp|temp|swp|swo|bak|orig|rej|pid|prof|lprof|pyc|pyo)|.*~|\.DS_Store|Thumbs\.db|\.coverage.*|events\.out\.tfevents.*"
)
"""Temporary files and logs of programs, which are not part of a package."""
_RUN = lazy(r"[0-9]{8}T[0-9]{6}Z-.+-[0-9a-f]{8}")
"""The name of a run's directory."""
_MOST_ROWS = 200
"""Maximum number of rows with the same reason in `excluded`; more rows are summed up by directory."""
_GIT_IGNORED = "git-ignored"
_OWN_OUTPUT, _STORE, _CACHE = "written by repro-env, not measured", "version control data", "a cache"
_VENV, _CONDA = "a virtual environment", "a conda environment"
_RUNS = "a directory of runs"
USUAL_REASONS = frozenset({_OWN_OUTPUT, _STORE, _CACHE, _VENV, _CONDA, _RUNS})
"""Reasons that need no explanation, since no run needs these files from the source. Their sizes are not measured."""


class Exclusions:
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
        self.unseen: dict[str, str] = {}
        """Git-ignored paths that a live run does not see, although they are neither caches nor leftovers -> why."""
        self.include, self.exclude = include, exclude
        self._root = str(root)
        self._is_environment = (root / "pyvenv.cfg").exists() or (root / "conda-meta").is_dir()
        answer = repository.look(root, never=never)
        self.git = answer.git
        """The state of the repository; changes in nested repositories count as changes."""
        self._ignored = set(answer.ignored)
        self.problems = [answer.problem]
        self._reasons: dict[str, str] = {}
        self._sizes: dict[str, int] = defaultdict(int)
        self.entered: dict[str, str] = {}
        """Directories that are left out but walked, because something in them may be kept: path -> the outermost of them."""
        self.ignored_directories: list[str] = []
        """Directories that git ignores completely."""
        self.missing: list[str] = []
        """Git-ignored paths that no rule keeps, although a run may need them: code, or data in a package."""
        self._only_parents: set[str] = set()
        """Directories that have something that is left out, and belong to the snapshot only if something in them is kept."""
        self._packages: dict[str, bool] = {"": False}
        self._surveys: dict[str, Survey] = {}
        self._never = never
        paths = (os.path.relpath(os.path.realpath(path), os.path.realpath(root)) for path in never)
        self._own = {path for path in paths if path != "." and path.split("/")[0] != ".."}
        for path in self._own:
            self._reasons[path] = _OWN_OUTPUT
            self._only_parents.update(parent_directories(path))

    def skip(self, path: str, is_dir: bool) -> bool:
        """Whether `walk` must skip this path."""
        if path in self._own:
            return True
        parent, _, name = path.rpartition("/")
        why = forbidden_reason(name) or ("--exclude" if _matches(self.exclude, path) else "")
        if why:
            return self._exclude(path, why, is_dir)
        if is_dir and os.path.lexists(f"{self._root}/{path}/.git"):
            self._add_nested_repository(path)
        outer = self.entered.get(parent)
        why = self._reason(path, is_dir=is_dir) or (self._reasons[outer] if outer is not None else "")
        if not why or _matches(self.include, path):
            return False
        if why == _GIT_IGNORED and not is_dir:
            return not self._is_kept(path, outer) and self._exclude(path, why, is_dir, outer)
        if why == _GIT_IGNORED:
            must_enter = self._must_enter_ignored(path, outer)
        else:
            must_enter = is_dir and any(glob.may_match_below(path) for glob in self.include)
        if not must_enter:
            return self._exclude(path, why, is_dir, outer)
        self.entered[path] = outer or path
        self._reasons.setdefault(outer or path, why)
        return False

    def is_only_parent(self, path: str) -> bool:
        """Whether this directory belongs to the snapshot only if something in it is kept."""
        return path in self.entered or path in self._only_parents

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

    def _must_enter_ignored(self, path: str, outer: str | None) -> bool:
        """Whether to walk a directory that git ignores. `outer`: the outermost excluded directory that contains it, or None."""
        if outer is not None:
            return outer not in self._data_directories or path.isprintable()
        self.ignored_directories.append(path)
        content = self._survey(path)
        may_be_needed = (
            content.has_extension or self._is_in_package(path) or _METADATA.fullmatch(path.rpartition("/")[2]) is not None
        )
        if (content.size > DATA and self._is_in_package(path)) or (content.has_code and not may_be_needed):
            self.missing.append(path)
        if may_be_needed or any(not glob.anchored or glob.may_match_below(path) for glob in self.include):
            return True
        if self._max_data and (why := content.obstacle(self._max_data)):
            self.unseen[path] = why
        elif self._max_data and path.isprintable():
            self._data_directories.add(path)
        return path in self._data_directories

    def data_of(self, path: str) -> str | None:
        """Return the outermost ignored path of data, for a path of it, also of a directory; None for other paths."""
        outer = self.entered.get(path)
        return self.data.get(path) or (outer if outer in self._data_directories else None)

    def _is_kept(self, path: str, outer: str | None) -> bool:
        """Whether a file that git ignores is in the snapshot, or is data. Records files that a run may need and will not have."""
        if outer not in self._data_directories and self._is_needed(path, outer):
            return True
        directory, _, name = path.rpartition("/")
        is_leftover = _LEFTOVER.fullmatch(name) is not None
        if self._max_data and not is_leftover:
            if may_be_copied(f"{self._root}/{path}", path):
                self.data[path] = outer or path
                return True
            self.unseen[path] = "private or unreadable"
        if outer is None and not is_leftover and (name.endswith(".py") or self._is_in_package(directory)):
            self.missing.append(path)
        return False

    def _is_needed(self, path: str, outer: str | None) -> bool:
        """Whether Python may import or read a file that git ignores. `outer` is as in `_must_enter_ignored`."""
        directory, _, name = path.rpartition("/")
        is_in_package = self._is_in_package(directory)
        if LIBRARY.fullmatch(name):
            if outer is None or is_in_package or EXTENSION.fullmatch(name):
                return True
            return self._survey(outer).has_extension
        if _PRIVATE.match(name):
            return False
        if name.endswith(".py"):
            return is_in_package
        is_metadata = any(_METADATA.fullmatch(part) for part in directory.split("/"))
        if not (is_in_package or is_metadata) or _LEFTOVER.fullmatch(name):
            return False
        return (_file_size(f"{self._root}/{path}") if outer is None else self._survey(outer).size) <= DATA

    def _is_in_package(self, directory: str) -> bool:
        """Whether a directory is a package or inside one. The source's root never counts as a package."""
        result = self._packages.get(directory)
        if result is None:
            parent = directory.rpartition("/")[0]
            result = self._is_in_package(parent) or os.path.lexists(f"{self._root}/{directory}/__init__.py")
            self._packages[directory] = result
        return result

    def _exclude(self, path: str, why: str, is_dir: bool, outer: str | None = None) -> bool:
        """Record a path that is left out, as part of `outer` if that is not None. Returns True."""
        if outer is None:
            self._reasons[path] = why
            if why == _GIT_IGNORED:
                self._only_parents.update(parent_directories(path))
        is_measured = self._measure and (outer is not None or why not in USUAL_REASONS)
        size = (self._survey(path).size if is_dir else _file_size(f"{self._root}/{path}")) if is_measured else 0
        self._sizes[path if outer is None else outer] += size
        return True

    def _survey(self, directory: str) -> Survey:
        if directory not in self._surveys:
            self._surveys[directory] = survey(f"{self._root}/{directory}")
        return self._surveys[directory]

    def _add_nested_repository(self, path: str) -> None:
        """Add what a repository inside the source (a submodule, a clone) ignores, since it has its own rules."""
        answer = repository.look(Path(self._root, path), never=self._never)
        self._ignored |= {f"{path}/{inner}" for inner in answer.ignored}
        self.problems.append(answer.problem)
        if self.git is not None and answer.git is not None:
            untracked = (*self.git.untracked, *(f"{path}/{inner}" for inner in answer.git.untracked))
            self.git = msgspec.structs.replace(self.git, dirty=self.git.dirty or answer.git.dirty, untracked=untracked)


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
    """Return what a tool generated at an absolute path: a cache, an environment, a capture, an image or runs; empty for other paths."""
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
    if is_dir and _holds_runs(full):
        return _RUNS
    if is_dir and os.path.isfile(f"{full}/CACHEDIR.TAG"):  # noqa: PTH113 - the Cache Directory Tagging Specification
        return _CACHE
    return ""


def _holds_runs(full: str) -> bool:
    """Whether a directory is one of runs, wherever `--runs` has put it: it has a link to the latest one, or jobs."""
    try:
        return _RUN.fullmatch(os.readlink(f"{full}/latest")) is not None  # noqa: PTH115 - called for every directory
    except OSError:
        return os.path.isdir(f"{full}/.jobs")  # noqa: PTH112


def may_be_copied(full: str, path: str) -> bool:
    """Whether a live run may see a file or symlink: it is readable, its path is printable, and its name suggests no secret."""
    if _PRIVATE.match(path.rpartition("/")[2]):
        return False
    if os.path.islink(full):  # noqa: PTH114 - called for every file
        return (path + os.readlink(full)).isprintable()  # noqa: PTH115
    return path.isprintable() and os.access(full, os.R_OK)


def _file_size(path: str) -> int:
    """Return the size of a file in bytes; 0 if it cannot be determined."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _sum_up(rows: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Return the rows sorted by path. If a reason has too many rows, they are summed up in the directories of the source."""
    by_reason: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, size, why in rows:
        by_reason[why].append((path, size))
    result = []
    for why, paths in by_reason.items():
        sizes: dict[str, list[int]] = defaultdict(list)
        for path, size in paths:
            sizes[path.split("/")[0] if len(paths) > _MOST_ROWS else path].append(size)
        result += [
            (path, sum(found), why if len(found) == 1 else f"{why} ({len(found)} paths in it)") for path, found in sizes.items()
        ]
    return sorted(result)


class Survey(msgspec.Struct):
    """The content of a directory, without the environments, caches and version control in it."""

    size: int = 0
    """Bytes of all files."""
    files: int = 0
    """Files and symlinks."""
    is_incomplete: bool = False
    """Whether something in it cannot be read."""
    has_extension: bool = False
    """Whether it has an extension module with a tag in its name."""
    has_code: bool = False
    """Whether `import` finds modules in it: Python files, or packages directly below it."""

    def obstacle(self, limit: int) -> str:
        """Return why a live run does not see this directory; empty if it does, even if there are no bytes in it."""
        if self.size > limit:
            return f"{self.size / 1e6:,.0f} MB"
        return f"{self.files:,} files" if self.files > MANY else "part of it cannot be read" if self.is_incomplete else ""


def survey(top: str) -> Survey:
    """Survey a directory. Unreadable directories are not counted."""
    result = Survey()
    pending = [(top, 0)]
    while pending:
        directory, depth = pending.pop()
        try:
            with os.scandir(directory) as listing:
                items = list(listing)
            names = {item.name for item in items}
            if "pyvenv.cfg" in names or "conda-meta" in names:
                continue
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    if item.name not in CACHES and item.name not in STORES:
                        pending.append((item.path, depth + 1))
                elif item.is_symlink():
                    result.files += 1
                elif item.is_file(follow_symlinks=False):
                    result.size += item.stat(follow_symlinks=False).st_size
                    result.files += 1
                    result.has_extension |= EXTENSION.fullmatch(item.name) is not None
                    result.has_code |= (depth == 0 and item.name.endswith(".py")) or (depth == 1 and item.name == "__init__.py")
        except OSError:
            result.is_incomplete = True
    return result
