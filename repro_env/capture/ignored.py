"""What git ignores and Python may need all the same: compiled extensions, generated modules, a package's own data.

Decided by names, places and sizes alone (docs/decisions/0008), so that a run, which looks at the live source again, decides
the same as the capture did.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

DATA = 10_000_000
"""Bytes of ignored data in a package, one file outside an ignored folder or all of such a folder, that are kept unasked."""
_EXTENSION = re.compile(r".+\.so(?:\.\d+)*")
"""`x.cpython-311-x86_64-linux-gnu.so`, `x.abi3.so`, `x.so`, `libx.so.1`: built in place and loaded all the same."""
_TAGGED = re.compile(r".+\.(?:cpython-[A-Za-z0-9_-]+|abi3)\.so")
"""What says by its name that Python imports it."""
_METADATA = re.compile(r".+\.(?:egg|dist)-info")
"""Folders in which an editable project keeps its name, version and entry points."""
_PRIVATE = re.compile(
    r".*(?:secret|credential|passw|token(?!i[sz])|private|service_?account|htpasswd)|(?:local_settings|settings_local|config_local|local_config)\b"
    r"|.*\.(?:pem|key|p12|pfx|jks|keystore|gpg|asc)$|id_(?:rsa|dsa|ecdsa|ed25519)|\.(?:netrc|pypirc|npmrc|aws|ssh)",
    re.IGNORECASE,
)
"""Git ignores such files so that nobody gets them: they are named, and kept only when asked for."""
_LEFTOVER = re.compile(
    r".*\.(?:log|tmp|temp|swp|swo|bak|orig|rej|pid|prof|lprof|pyc|pyo)|.*~|\.DS_Store|Thumbs\.db|\.coverage.*|events\.out\.tfevents.*"
)
"""What programs leave behind beside the code: no part of a package."""
_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")


MANY = 20_000
"""Files of an ignored directory that a live run sees at most."""


class Survey(msgspec.Struct):
    """What an ignored folder holds."""

    size: int = 0
    """Bytes of all files in it, bytecode apart; less than that where only what decides was asked for."""
    data: int = 0
    """Those outside of environments, caches and version control."""
    files: int = 0
    """Their number."""
    unread: bool = False
    """Something in it cannot be read."""
    extension: bool = False
    """Something that Python imports by its tag."""
    library: bool = False
    """Any shared library."""
    code: bool = False
    """Modules right in it, or packages: `import` finds them where it is on the path, and beside it as a namespace."""


class Places:
    """Which folders of a source Python imports from."""

    def __init__(self, root: str, dead: frozenset[str]) -> None:
        self._root = root
        self._dead = dead
        """Names of folders that hold no code of the source: caches, version control."""
        self.hollow: set[str] = set()
        """Folders of which all is ignored, and no pattern names them: what is in them counts as ignored by itself."""
        self._packages: dict[str, bool] = {"": False}
        self._surveys: dict[str, Survey] = {}

    def in_package(self, folder: str) -> bool:
        """Whether a folder is a package or lies in one. The source's root is none, whatever lies there."""
        known = self._packages.get(folder)
        if known is None:
            parent = folder.rpartition("/")[0]
            known = self.in_package(parent) or os.path.lexists(f"{self._root}/{folder}/__init__.py")
            self._packages[folder] = known
        return known

    def in_project(self, folder: str) -> bool:
        """Whether a folder is that of a Python project, or its `src`: single modules lie there."""
        parent, _, name = folder.rpartition("/")
        places = (folder, parent) if name == "src" else (folder,)
        return any(os.path.lexists(f"{self._root}/{place}/{mark}") for place in places for mark in _PROJECT)

    def survey(self, folder: str, *, measure: bool = False) -> Survey:
        """Look through a folder that is ignored as a whole. What cannot be read counts nothing."""
        known = self._surveys.get(folder)
        if known is None:
            known = self._surveys[folder] = _surveyed(f"{self._root}/{folder}", self._dead, measure=measure)
        return known

    def keeps_folder(self, folder: str, survey: Survey) -> bool:
        """Whether code in an ignored folder is looked for: it belongs to a package, or holds what Python imports."""
        if survey.extension or (survey.library and folder in self.hollow):
            return True
        return (
            self.in_package(folder)
            or (folder in self.hollow and self.in_project(folder))
            or _METADATA.fullmatch(folder.rpartition("/")[2]) is not None
        )

    def keeps(self, path: str, outer: str | None) -> bool:
        """Whether a file that git ignores is kept. `outer`: the outermost ignored folder that it lies in, or None."""
        folder, _, name = path.rpartition("/")
        inside, alone = self.in_package(folder), outer is None or outer in self.hollow
        metadata = any(_METADATA.fullmatch(part) for part in folder.split("/"))
        if _EXTENSION.fullmatch(name):
            return alone or inside or _TAGGED.fullmatch(name) is not None or (outer is not None and self.survey(outer).extension)
        if _PRIVATE.match(name):
            return False
        if _is_code(name, f"{self._root}/{path}"):
            return inside or (alone and self.in_project(folder))
        if not (inside or metadata) or _LEFTOVER.fullmatch(name):
            return False
        return self.survey(outer).data <= DATA if outer is not None else _size(f"{self._root}/{path}") <= DATA

    def is_data(self, path: str) -> bool:
        """Whether a live run sees a file that git ignores and that is not kept: no leftover, and `may_be_copied`."""
        return _LEFTOVER.fullmatch(path.rpartition("/")[2]) is None and self.may_be_copied(path)

    def may_be_copied(self, path: str) -> bool:
        """Whether a file is no secret by its name, is readable, and has a name that can be printed."""
        full = f"{self._root}/{path}"
        if _PRIVATE.match(path.rpartition("/")[2]) or not os.access(full, os.R_OK):
            return False
        text = path + (os.readlink(full) if os.path.islink(full) else "")  # noqa: PTH114, PTH115 - asked for every file
        return text.isprintable()

    def missed(self, path: str) -> bool:
        """Whether a single file that is not kept has to be named: code, or a package's data."""
        folder, _, name = path.rpartition("/")
        if _LEFTOVER.fullmatch(name):
            return False
        return name.endswith(".py") or self.in_package(folder)


def in_environment(root: Path, folder: str) -> bool:
    """Whether a folder of the source lies in a virtual or conda environment that is in the source too."""
    parts = folder.split("/")
    above = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
    return any((root / one / mark).exists() for one in above for mark in ("pyvenv.cfg", "conda-meta"))


def _is_code(name: str, full: str) -> bool:
    if name.endswith(".py"):
        return True
    return name.endswith(".pyc") and not os.path.lexists(full[:-1])  # a module without its source


def _surveyed(top: str, dead: frozenset[str], *, measure: bool) -> Survey:
    survey = Survey()
    pending = [(top, 0, False)]
    while pending:
        folder, depth, no_code = pending.pop()
        try:
            with os.scandir(folder) as listing:
                items = list(listing)
            names = {item.name for item in items}
            no_code = no_code or "pyvenv.cfg" in names or "conda-meta" in names
            if no_code and not measure:
                continue
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    if item.name != "__pycache__" and (measure or item.name not in dead):
                        pending.append((item.path, depth + 1, no_code or item.name in dead))
                elif item.is_file(follow_symlinks=False):
                    size = item.stat(follow_symlinks=False).st_size
                    survey.size += size
                    if not no_code:
                        survey.data += size
                        survey.files += 1
                        survey.extension = survey.extension or _TAGGED.fullmatch(item.name) is not None
                        survey.library = survey.library or _EXTENSION.fullmatch(item.name) is not None
                        survey.code = (
                            survey.code
                            or (depth == 0 and item.name.endswith(".py"))
                            or (depth == 1 and item.name == "__init__.py")
                        )
        except OSError:
            survey.unread = True
            continue
    return survey


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
