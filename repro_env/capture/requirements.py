"""The files in which a project says what it needs. They are facts: nothing is installed from them.

Their hashes let a check without any environment (`check --project`) tell that the capture is older than what the
project asks for now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from repro_env.io.files import Found, read_regular, sha256_of
from repro_env.model import redact
from repro_env.model.spec import FileDigest

_NAMES = (
    "requirements*.txt", "requirements*.in", "*requirements.txt", "*requirements.in", "constraints*.txt", "constraints*.in",
    "pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "Pipfile.lock", "poetry.lock", "uv.lock", "uv.toml", "pdm.lock",
    "pylock.toml", "pylock.*.toml", "pixi.toml", "pixi.lock", "environment*.yml", "environment*.yaml", "conda-lock.yml",
    "*.conda-lock.yml", "conda-*.lock", ".python-version", ".tool-versions", "runtime.txt", "apt.txt",
)  # fmt: skip
_FOLDERS = ("requirements", "requirement", "reqs", "deps", "dependencies", "constraints", "env", "envs", "environments", "conda",
            "binder", ".binder")  # fmt: skip
"""Folders at the source's root that such files are put into."""
_OWN_FOLDERS = frozenset({"requirements", "requirement", "reqs", "constraints"})
"""Those in which every `.txt` and `.in` is one."""
_INCLUDE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)(?:\s*=\s*|\s+|(?=[^\s-]))(\S.*?)\s*(?:\s#.*)?$")
_LARGEST = 4 << 20
"""Bytes of a list of requirements that is read for what it includes."""


class Looked(msgspec.Struct, frozen=True):
    files: tuple[FileDigest, ...]
    """Sorted by path."""
    problems: tuple[str, ...]
    """What they name and the snapshot does not hold: one line each."""


def look(root: Path, found: Sequence[Found]) -> Looked:
    """Such files among `found`, the listing of the snapshot, and the lists that they include."""
    held = {one.path: one for one in found}
    pending = [path for path, one in held.items() if is_one(path) and _is_file(one, held)]
    digests: dict[str, str] = {}
    problems: set[str] = set()
    while pending:
        path = pending.pop()
        if path in digests:
            continue
        try:
            digests[path] = "sha256:" + sha256_of(root / _real(path, held))
            included = _included(root, path, held) if path.endswith((".txt", ".in")) else []
        except OSError as error:
            problems.add(f"{path}, which says what the project needs, cannot be read: {error.strerror}")
            continue
        for name, target in included:
            if target is not None:
                pending.append(target)
            else:
                problems.add(f"{path} includes {name}, which is not in the snapshot")
    files = tuple(FileDigest(path=path, sha256=digests[path]) for path in sorted(digests))
    return Looked(files, tuple(sorted(redact.line(problem) for problem in problems)))


def is_one(path: str) -> bool:
    """Whether a path below the source's root is, by its name and place, such a file."""
    folder, _, name = path.rpartition("/")
    if folder and folder not in _FOLDERS:
        return False
    return any(fnmatchcase(name, glob) for glob in _NAMES) or (folder in _OWN_FOLDERS and name.endswith((".txt", ".in")))


def _is_file(one: Found, held: Mapping[str, Found]) -> bool:
    return held[_real(one.path, held)].kind == "file"


def _real(path: str, held: Mapping[str, Found]) -> str:
    """Where a symlink inside the snapshot leads, by one step; another path as it is."""
    one = held[path]
    if one.kind != "link":
        return path
    target = os.path.normpath(os.path.join(os.path.dirname(path), one.target))  # noqa: PTH118, PTH120
    return target if target in held else path


def _included(root: Path, path: str, held: Mapping[str, Found]) -> list[tuple[str, str | None]]:
    """(as it is written, path in the snapshot or None) of each `-r` and `-c` of a list."""
    if held[_real(path, held)].size > _LARGEST:
        return []
    try:
        text = read_regular(root / _real(path, held), _LARGEST, below=root).decode("utf-8", "replace")
    except OSError:
        return []  # changed since it was listed; the snapshot will say so
    rows = [match[1] for line in text.splitlines() if (match := _INCLUDE.match(line))]
    result: list[tuple[str, str | None]] = []
    for name in rows:
        name = name.strip("\"'")
        below = os.path.normpath(os.path.join(os.path.dirname(path), name.removeprefix("file:")))  # noqa: PTH118, PTH120
        below = os.path.relpath(below, root) if below.startswith("/") else below
        result.append((name, below if below in held and _is_file(held[below], held) else None))
    return result
