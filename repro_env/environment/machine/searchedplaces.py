"""Name the directories outside the project and the environment in which installed libraries search for files.

Runs do not have them: they have a home directory of their own, and only the packages of the machine that the image needs. Whoever
needs such files names them with `--data`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Container, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from repro_env.environment.machine import lists
from repro_env.oci.paths import is_below
from repro_env.schema import redact
from repro_env.schema.messages import shorten

_CONFIGURATION = ("~/.config", "~/.local/share", "~")
"""Where a library of any name keeps its files: `~/.config/NAME`, `~/.NAME`, `~/.NAMErc`, `~/.NAME.toml`."""
_NAME = re.compile(r"\.?(?P<name>[\w.-]+?)(?:rc|[._-]data|\.(?:toml|ya?ml|json|ini|cfg|conf))?", re.ASCII)
_OTHERS = frozenset(
    ("pip", "uv", "setuptools", "wheel", "conda", "mamba", "poetry", "pipx", "virtualenv", "black", "ruff", "mypy", "pytest")
)
"""Programs that install and check: no training reads their settings."""
_PRIVATE = frozenset(("keyring", "docker", "kaggle", "dvc", "git"))
"""Programs whose directories hold credentials."""
_SHOWN = 6
"""Places that the note names."""


def look(
    installed: AbstractSet[str], environ: Mapping[str, str], *, held: Collection[str], image: Container[str]
) -> tuple[str, ...]:
    """Return a note that names the places of these distributions that exist, or nothing.

    `held`: paths that runs have. `image`: the paths that its base has, without the first slash.
    """
    home = environ.get("HOME") or "/nonexistent"
    found: dict[str, str] = {}
    for path, what in (*_searched(installed, home, environ), *_named(installed, home)):
        is_held = _is_in_image(path, image) or is_below(path, *held) or any(is_below(held_path, path) for held_path in held)
        if not is_held and not is_below(path, *found) and path.isprintable() and redact.line(path) == path:
            found[path] = what
    if not found:
        return ()
    places = [f"{path} ({what})" for path, what in found.items()]
    return (
        f"not in runs, although libraries search there: {shorten(places, _SHOWN)} (to add one: capture --data {next(iter(found))})",
    )


def _searched(installed: AbstractSet[str], home: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for row in lists.sections("searchedplaces"):
        if installed.isdisjoint(row["distributions"].split()):
            continue
        for text in row["directories"].split():
            first, _, below = text.partition("/")
            for base in {"": ["/"], "~": [home]}.get(first) or environ.get(first[1:], "").split(os.pathsep):
                path = os.path.normpath(os.path.join(base, below))  # noqa: PTH118
                if path.startswith("/") and base and _has_content(path):
                    yield path, row.name


def _named(installed: AbstractSet[str], home: str) -> Iterator[tuple[str, str]]:
    """Yield the files and directories in the home directory that have the name of an installed distribution."""
    for directory in _CONFIGURATION:
        path = home + directory[1:]
        try:
            names = sorted(os.listdir(path))  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            match = _NAME.fullmatch(name)
            library = re.sub(r"[-_.]+", "-", match["name"]).lower() if match else ""
            is_marked = directory != "~" or name.startswith(".")
            if is_marked and library in installed and library not in _OTHERS | _PRIVATE and _has_content(f"{path}/{name}"):
                yield f"{path}/{name}", library


def _is_in_image(path: str, image: Container[str]) -> bool:
    """Whether the image has everything in a directory: it may have one of two packages of fonts."""
    if path[1:] not in image:
        return False
    return all(f"{directory}/{name}"[1:] in image for directory, _, names in os.walk(path) for name in names)


def _has_content(path: str) -> bool:
    """Whether a path is a file or a directory with something in it."""
    try:
        with os.scandir(path) as listing:
            return next(listing, None) is not None
    except NotADirectoryError:
        return Path(path).is_file()
    except OSError:
        return False
