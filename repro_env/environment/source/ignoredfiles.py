"""Find files that git ignores but Python may need: compiled extensions, generated modules, a package's own data.

The decision depends only on names, directories and sizes (docs/decisions/0008), so a run, which reads the live source again,
makes the same decision as the capture.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

DATA = 10_000_000
"""Maximum bytes of ignored data in a package that are kept without --include: of a single file, or of an ignored directory."""
_EXTENSION = re.compile(r".+\.so(?:\.\d+)*")
"""`x.cpython-311-x86_64-linux-gnu.so`, `x.abi3.so`, `x.so`, `libx.so.1`: libraries that were built in place."""
_TAGGED = re.compile(r".+\.(?:cpython-[A-Za-z0-9_-]+|abi3)\.so")
"""Extension modules with a tag of Python in their names."""
_METADATA = re.compile(r".+\.(?:egg|dist)-info")
"""Directories in which an editable project keeps its name, version and entry points."""
_PRIVATE = re.compile(
    r".*(?:secret|credential|passw|token(?!i[sz])|private|service_?account|htpasswd)|(?:local_settings|settings_local|config_local|local_config)\b"
    r"|.*\.(?:pem|key|p12|pfx|jks|keystore|gpg|asc)$|id_(?:rsa|dsa|ecdsa|ed25519)|\.(?:netrc|pypirc|npmrc|aws|ssh)",
    re.IGNORECASE,
)
"""Files that are probably private. They are reported, and kept only with --include."""
_LEFTOVER = re.compile(
    r".*\.(?:log|tmp|temp|swp|swo|bak|orig|rej|pid|prof|lprof|pyc|pyo)|.*~|\.DS_Store|Thumbs\.db|\.coverage.*|events\.out\.tfevents.*"
)
"""Temporary files and logs of programs, which are not part of a package."""
_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")


MANY = 20_000
"""Maximum number of files of an ignored directory that a live run sees."""


class Survey(msgspec.Struct):
    """The content of an ignored directory."""

    size: int = 0
    """Bytes of all files except bytecode. Without `measure`, directories without code are not included."""
    data: int = 0
    """Bytes of the files outside of environments, caches and version control."""
    files: int = 0
    """Number of the files outside of environments, caches and version control."""
    is_incomplete: bool = False
    """Whether something in it cannot be read."""
    has_extension: bool = False
    """Whether it has an extension module with a tag in its name."""
    has_library: bool = False
    """Whether it has any shared library."""
    has_code: bool = False
    """Whether `import` finds modules in it: Python files, or packages directly below it."""


class ImportRules:
    """Decide which ignored files of a source Python may import or read."""

    def __init__(self, root: str, no_code: frozenset[str]) -> None:
        self._root = root
        self._no_code = no_code
        """Names of directories without code of the source: caches, version control."""
        self.hollow: set[str] = set()
        """Directories that no pattern names, but all of whose content is ignored. Each file in them counts as ignored itself."""
        self._packages: dict[str, bool] = {"": False}
        self._surveys: dict[str, Survey] = {}

    def in_package(self, directory: str) -> bool:
        """Whether a directory is a package or inside one. The source's root never counts as a package."""
        result = self._packages.get(directory)
        if result is None:
            parent = directory.rpartition("/")[0]
            result = self.in_package(parent) or os.path.lexists(f"{self._root}/{directory}/__init__.py")
            self._packages[directory] = result
        return result

    def in_project(self, directory: str) -> bool:
        """Whether a directory is the root of a Python project, or its `src`, which may contain single modules."""
        parent, _, name = directory.rpartition("/")
        candidates = (directory, parent) if name == "src" else (directory,)
        return any(os.path.lexists(f"{self._root}/{candidate}/{mark}") for candidate in candidates for mark in _PROJECT)

    def survey(self, directory: str, *, measure: bool = False) -> Survey:
        """Survey a directory that is ignored completely. Unreadable directories are not counted."""
        survey = self._surveys.get(directory)
        if survey is None:
            survey = self._surveys[directory] = _survey(f"{self._root}/{directory}", self._no_code, measure=measure)
        return survey

    def keeps_directory(self, directory: str, survey: Survey) -> bool:
        """Whether an ignored directory may contain files to keep: it belongs to a package, or has what Python imports."""
        if survey.has_extension or (survey.has_library and directory in self.hollow):
            return True
        return (
            self.in_package(directory)
            or (directory in self.hollow and self.in_project(directory))
            or _METADATA.fullmatch(directory.rpartition("/")[2]) is not None
        )

    def keeps(self, path: str, outer: str | None) -> bool:
        """Whether a file that git ignores is kept. `outer`: the outermost ignored directory that contains it, or None."""
        directory, _, name = path.rpartition("/")
        in_package, is_single = self.in_package(directory), outer is None or outer in self.hollow
        is_metadata = any(_METADATA.fullmatch(part) for part in directory.split("/"))
        if _EXTENSION.fullmatch(name):
            if is_single or in_package or _TAGGED.fullmatch(name):
                return True
            return outer is not None and self.survey(outer).has_extension
        if _PRIVATE.match(name):
            return False
        if _is_code(name, f"{self._root}/{path}"):
            return in_package or (is_single and self.in_project(directory))
        if not (in_package or is_metadata) or _LEFTOVER.fullmatch(name):
            return False
        return self.survey(outer).data <= DATA if outer is not None else file_size(f"{self._root}/{path}") <= DATA

    def is_data(self, path: str) -> bool:
        """Whether a live run sees an ignored file that is not kept: it is not a leftover of a program, and `may_be_copied`."""
        return _LEFTOVER.fullmatch(path.rpartition("/")[2]) is None and self.may_be_copied(path)

    def may_be_copied(self, path: str) -> bool:
        """Whether a file is readable, its name is printable, and the name does not suggest a secret."""
        full = f"{self._root}/{path}"
        if _PRIVATE.match(path.rpartition("/")[2]) or not os.access(full, os.R_OK):
            return False
        text = path + (os.readlink(full) if os.path.islink(full) else "")  # noqa: PTH114, PTH115 - called for every file
        return text.isprintable()

    def must_be_reported(self, path: str) -> bool:
        """Whether a single file that is not kept must be reported: code, or a package's data."""
        directory, _, name = path.rpartition("/")
        if _LEFTOVER.fullmatch(name):
            return False
        return name.endswith(".py") or self.in_package(directory)


def in_environment(root: Path, directory: str) -> bool:
    """Whether a directory of the source is in a virtual or conda environment inside the source."""
    parts = directory.split("/")
    paths = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
    return any((root / path / mark).exists() for path in paths for mark in ("pyvenv.cfg", "conda-meta"))


def _is_code(name: str, full: str) -> bool:
    if name.endswith(".py"):
        return True
    return name.endswith(".pyc") and not os.path.lexists(full[:-1])  # a module without its source


def _survey(top: str, no_code: frozenset[str], *, measure: bool) -> Survey:
    survey = Survey()
    pending = [(top, 0, True)]
    while pending:
        directory, depth, may_have_code = pending.pop()
        try:
            with os.scandir(directory) as listing:
                items = list(listing)
            names = {item.name for item in items}
            may_have_code = may_have_code and "pyvenv.cfg" not in names and "conda-meta" not in names
            if not may_have_code and not measure:
                continue
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    if item.name != "__pycache__" and (measure or item.name not in no_code):
                        pending.append((item.path, depth + 1, may_have_code and item.name not in no_code))
                elif item.is_file(follow_symlinks=False):
                    size = item.stat(follow_symlinks=False).st_size
                    survey.size += size
                    if may_have_code:
                        survey.data += size
                        survey.files += 1
                        survey.has_extension |= _TAGGED.fullmatch(item.name) is not None
                        survey.has_library |= _EXTENSION.fullmatch(item.name) is not None
                        survey.has_code |= (depth == 0 and item.name.endswith(".py")) or (
                            depth == 1 and item.name == "__init__.py"
                        )
        except OSError:
            survey.is_incomplete = True
    return survey


def file_size(path: str) -> int:
    """Return the size of a file in bytes; 0 if it cannot be determined."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
