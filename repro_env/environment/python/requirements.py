"""What a project says that it requires: `requirements.txt`, and the `dependencies` of `pyproject.toml`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from repro_env.io.files import read_regular
from repro_env.schema import toml

_MOST = 1 << 20
"""Maximum bytes of a file."""
_METADATA = re.compile(r"(?P<name>[^-]+)(?:-(?P<version>\d[^-]*))?(?:-py[\d.]+)?\.(?:dist|egg)-info")


def missing(directory: Path, python: str, sys_path: Sequence[str]) -> list[str]:
    """Return the requirements of the project in `directory` that an environment lacks, each with its file.

    `python`: the environment's version of Python. What cannot be compared, such as a URL, is left out.
    """
    stated = [*_in_requirements(directory, "requirements.txt", set()), *_in_pyproject(directory)]
    if not stated:
        return []
    from packaging.requirements import InvalidRequirement, Requirement  # slow to import

    versions = _installed(sys_path)
    target = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2]), "extra": ""}
    lacking = []
    for file, text in stated:
        try:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate(target):
                continue
            version = versions.get(canonicalize_name(requirement.name), "")
            if version is None:  # installed for development, without its version
                continue
            if not version:
                lacking.append(f"{requirement.name}{requirement.specifier} ({file})")
            elif not requirement.specifier.contains(version, prereleases=True):
                lacking.append(f"{requirement.name}{requirement.specifier} ({file}; {version} is installed)")
        except (InvalidRequirement, InvalidVersion):
            continue
    return list(dict.fromkeys(lacking))


def _installed(sys_path: Sequence[str]) -> dict[str, str | None]:
    """Return the versions of all distributions that Python can import, by name; None for those whose directory has no version."""
    versions: dict[str, str | None] = {}
    for directory in sys_path:
        names = os.listdir(directory) if os.path.isdir(directory) else []  # noqa: PTH112, PTH208
        for match in filter(None, map(_METADATA.fullmatch, names)):
            versions.setdefault(canonicalize_name(match["name"]), match["version"])
    return versions


def _in_requirements(directory: Path, name: str, done: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (file, requirement) of a file and of the files that it includes, all in the directory."""
    done.add(name)
    try:
        text = read_regular(directory / name, _MOST).decode("utf-8", "replace")
    except OSError:
        return
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        plain = re.split(r"(?:^|\s)#| --", line)[0].strip()
        included = re.fullmatch(r"(?:-r|--requirement)[ =]?\s*([\w.-]+)", line.strip())
        if included and included[1] not in done:
            yield from _in_requirements(directory, included[1], done)
        elif plain and not plain.startswith("-"):
            yield name, plain


def _in_pyproject(directory: Path) -> Iterator[tuple[str, str]]:
    try:
        table = toml.loads(read_regular(directory / "pyproject.toml", _MOST).decode("utf-8", "replace")).get("project")
    except (OSError, toml.TOMLDecodeError):
        return
    dependencies = table.get("dependencies") if isinstance(table, dict) else ()
    for text in dependencies if isinstance(dependencies, list) else ():
        if isinstance(text, str):
            yield "pyproject.toml", text
