"""The file that a command starts, checked before anything is rebuilt or recorded: a mistyped name needs no image."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from repro_env.oci.paths import is_below
from repro_env.runs.start.sourcedirectory import SourceDirectory
from repro_env.schema import redact
from repro_env.schema.errors import CommandMissingError
from repro_env.schema.patterns import lazy

_PYTHON = lazy(r"(?:.*/)?python[\d.]*")
_SHELL = lazy(r"(?:.*/)?(?:ba|da|z|k)?sh")
_LAUNCHER = lazy(r"(?:.*/)?(?:torchrun|deepspeed|accelerate|ipython\d?)")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of Python whose value is the next argument."""


def script_of(command: Sequence[str]) -> str:
    """Return the path of the file that a command starts, as typed; empty if the words do not tell it."""
    first, words = command[0], list(command[1:])
    if _PYTHON.fullmatch(first):
        while words and words[0].startswith("-") and not re.match(r"-[a-zA-Z]*[mc]|-$", words[0]):
            del words[: 2 if words[0] in _WITH_VALUE else 1]
        return words[0] if words and not words[0].startswith("-") else ""
    if _SHELL.fullmatch(first):
        return words[0] if words and words[0].endswith(".sh") else ""
    if _LAUNCHER.fullmatch(first):
        words = words[: words.index("-m")] if "-m" in words else words
        return next((word for word in words if word.endswith(".py") and not word.startswith("-")), "")
    return first if first.endswith(".py") or "/" in first else ""


def module_of(command: Sequence[str]) -> str:
    """Return the module that Python starts with `-m`; empty if it starts none."""
    words = list(command[1:] if _PYTHON.fullmatch(command[0]) else command)
    return words[1] if len(words) > 1 and words[0] == "-m" else ""


def check(command: Sequence[str], code: SourceDirectory, *, here: Path, workspace: str, others: Sequence[str]) -> None:
    """Raise `CommandMissingError` if the file that a command starts would have to be in the source, and is not.

    `here`: the working directory in the run. `others`: directories of the run whose files are from elsewhere (mounts, environments).
    A module counts only in a package of the working directory: others may be in the environment.
    """
    module = module_of(command)
    typed = module.replace(".", "/") or script_of(command)
    path = posixpath.normpath(posixpath.join(here, typed))
    if not typed or code.path is None or not is_below(path, workspace) or is_below(path, *others):
        return
    file = code.path / posixpath.relpath(path, workspace)
    in_package = "/" in typed and (file.parent / "__init__.py").is_file()
    if os.path.lexists(file) or (module and (not in_package or any(file.parent.glob(f"{file.name}.*")))):
        return
    near = [
        posixpath.join(posixpath.dirname(path), name) for name in _similar(file.with_name(f"{file.name}.py") if module else file)
    ]
    near += [posixpath.join(workspace, file.name)] * os.path.lexists(code.path / file.name)
    raise CommandMissingError(
        f"this {'module' if module else 'file'} is not in {redact.line(posixpath.dirname(path))}",
        where=redact.line(module or typed),
        hint=(f"did you mean {redact.line(posixpath.relpath(near[0], here))}? " if near else "")
        + "Paths are relative to the working directory",
    )


def _similar(file: Path) -> list[str]:
    """Return the name in the directory of a missing file that is most like its name."""
    import difflib

    names = os.listdir(file.parent) if file.parent.is_dir() else []  # noqa: PTH208
    return difflib.get_close_matches(file.name, sorted(names), 1, 0.7)
