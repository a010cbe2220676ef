"""The target: which Python a command captures or compares, and why.

The order: `--python`, `$VIRTUAL_ENV`, `$CONDA_PREFIX`, `$UV_PROJECT_ENVIRONMENT`, the project's `.venv`, conda's base
environment, `python3` on PATH. The first one that is there is taken; when it is broken, that is an error, and the next one
is not tried. Others that are there too and differ are named in notes.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.capture import gitask
from repro_env.io.files import read_regular
from repro_env.model.errors import InterpreterError

_SETTINGS = 1 << 20
"""Bytes read of a pyvenv.cfg."""
_BASE = ("base", "root")
"""Names of conda's base environment. Most shells activate it by themselves, so it says nothing about the project."""


class Candidate(msgspec.Struct, frozen=True):
    """An environment that a variable or a directory of the project names."""

    kind: Literal["variable", "project", "base", "path"]
    why: str
    """What names it, e.g. `$VIRTUAL_ENV`."""
    path: Path
    """The environment's directory, or its python."""
    real: str
    """Its prefix without symlinks: equal for two names of the same environment."""
    note: str = ""


class Target(msgspec.Struct, frozen=True):
    """The Python that is captured."""

    path: Path
    """The file to start."""
    why: str
    """What named it, e.g. `.venv of the project`."""
    named: str
    """How an error names it."""
    explicit: bool
    """An option or a variable named it; otherwise it was found."""
    notes: tuple[str, ...] = ()
    """Sentences about other environments that could have been meant."""

    @property
    def venv(self) -> Path | None:
        """The virtual environment's directory, as far as a look at the path shows: nothing is started."""
        prefix = self.path.parent.parent
        return prefix if (prefix / "pyvenv.cfg").is_file() else None


def choose(python: str | None, environ: Mapping[str, str], source: Path) -> Target:
    """Choose the target for the code in `source` (absolute, resolved). Raises `InterpreterError` when there is none.

    `python`: a binary, an environment's directory or a word on PATH; None chooses by the order above.
    """
    if python is not None:
        return named(python, environ)
    candidates = tuple(_candidates(environ, source))
    if not candidates:
        raise InterpreterError("no python3 on PATH", hint="activate an environment or name one with --python")
    first, notes = decide(candidates)
    called = str(first.path) if first.kind == "path" else f"{first.why} ({first.path})"
    if first.kind == "project":
        _refuse_tracked(first.path, called)
    return Target(existing(first.path, called), first.why, called, explicit=first.kind == "variable", notes=notes)


def captured(command: str, environ: Mapping[str, str], source: Path) -> Target:
    """The target of an earlier capture. A note says so when variables name another environment now."""
    path = existing(Path(command), command)
    active = next(_candidates(environ, source), None)
    notes: tuple[str, ...] = ()
    if active is not None and active.kind == "variable" and active.real != os.path.realpath(path.parent.parent):
        notes = (f"the captured environment is used, and not {active.path} ({active.why}), which a capture would take now",)
    return Target(path, "captured", command, explicit=True, notes=notes)


def named(python: str, environ: Mapping[str, str]) -> Target:
    """The target that `--python` names."""
    why = f"--python {python}"
    if "/" not in python and (not Path(python).is_dir() or python.startswith("python")):
        # As in a shell: `python3` never means a file or directory of that name in the working directory.
        found = shutil.which(python, path=environ.get("PATH"))
        if found is None:
            hint = f"to use the file in this directory: --python ./{python}" if Path(python).exists() else ""
            raise InterpreterError("no program of this name is on PATH", where=why, hint=hint)
        return Target(Path(found), why, why, explicit=True)
    return Target(existing(Path(python), why), why, why, explicit=True)


def decide(candidates: Sequence[Candidate]) -> tuple[Candidate, tuple[str, ...]]:
    """The first candidate, and a note on each of the others that is another environment.

    `python3` on PATH is never noted: it nearly always differs. Conda's base environment is noted when it is what `python3`
    on PATH belongs to, since a command typed into that shell would run there.
    """
    first, *others = candidates
    on_path = next((candidate.real for candidate in candidates if candidate.kind == "path"), "")
    notes = [first.note] if first.note else []
    for other in others:
        if other.real == first.real or other.kind == "path" or (other.kind == "base" and other.real != on_path):
            continue
        active = "is active, and `python` in this shell belongs to it" if other.kind == "base" else "is another environment"
        notes.append(f"{other.why} ({other.path}) {active}; to use that one instead: --python {other.path}")
    return first, tuple(notes)


def _refuse_tracked(venv: Path, called: str) -> None:
    """Refuse a `.venv` that came with a clone: its python is a program of whoever wrote the repository."""
    try:
        with gitask.opened(venv.parent) as repo:
            if not gitask.ask(repo, "ls-files", "-z", "--", venv.name):
                return
        reason = "is a part of the git repository, so its python is whatever the repository's authors chose"
    except gitask.NoRepositoryError:
        return
    except gitask.GitError as error:
        reason = f"may be a part of the git repository, which cannot be read: {error}"
    raise InterpreterError(reason, where=called, hint=f"if you trust it, name it: --python {venv}")


def _candidates(environ: Mapping[str, str], source: Path) -> Iterator[Candidate]:
    """All environments that are named or found, in the order of choice."""
    directories = project_directories(source, environ)
    if environ.get("VIRTUAL_ENV"):
        yield _of_virtual_env(Path(environ["VIRTUAL_ENV"]).absolute())
    conda = Path(environ["CONDA_PREFIX"]).absolute() if environ.get("CONDA_PREFIX") else None
    base = environ.get("CONDA_DEFAULT_ENV") in _BASE
    if conda is not None and not base:
        yield Candidate("variable", "$CONDA_PREFIX", conda, os.path.realpath(conda))
    root = uv_root(directories)
    if environ.get("UV_PROJECT_ENVIRONMENT") and root is not None:  # uv ignores it outside projects
        path = root / environ["UV_PROJECT_ENVIRONMENT"]
        yield Candidate("variable", "$UV_PROJECT_ENVIRONMENT", path, os.path.realpath(path))
    for directory in directories:
        path = directory / ".venv"
        if path.is_dir() or path.is_symlink():
            yield Candidate("project", ".venv of the project", path, os.path.realpath(path))
            break
    if conda is not None and base:
        yield Candidate("base", "conda's base environment", conda, os.path.realpath(conda))
    found, note = _on_path(environ)
    if found is not None:
        yield Candidate("path", "python3 on PATH", found, os.path.realpath(found.parent.parent), note)


def _of_virtual_env(prefix: Path) -> Candidate:
    """`uv run --with` activates a temporary environment that extends the project's own; the latter is meant."""
    extended = settings(prefix).get("extends-environment", "")
    if extended.startswith("/"):
        path = Path(extended)
        note = f"$VIRTUAL_ENV is a temporary environment of `uv run --with`; what it adds to {path} is left out"
        return Candidate("variable", "the environment that $VIRTUAL_ENV extends", path, os.path.realpath(path), note)
    return Candidate("variable", "$VIRTUAL_ENV", prefix, os.path.realpath(prefix))


def _on_path(environ: Mapping[str, str]) -> tuple[Path | None, str]:
    """`python3` on PATH, and a note. `uvx repro-env` puts repro-env's own environment first on PATH: that one is skipped."""
    path = environ.get("PATH", os.defpath)
    found = shutil.which("python3", path=path)
    own = Path(sys.prefix, "bin")
    if found is None or not environ.get("UV") or sys.prefix == sys.base_prefix or Path(found).parent != own:
        return (None if found is None else Path(found).absolute()), ""
    others = os.pathsep.join(entry for entry in path.split(os.pathsep) if Path(entry) != own)
    found = shutil.which("python3", path=others)
    return (
        None if found is None else Path(found).absolute()
    ), f"{sys.prefix} is first on PATH, but is repro-env's own environment"


def project_directories(source: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The directories from `source` up to the project's root, both included.

    The root is the top of the git work tree; without git, the outermost directory with a `pyproject.toml` or `uv.lock`;
    without these, `source`. The search ends below the home directory, at the edge of a file system, and below a directory
    that every user may write to: what others put there is not the project's.
    """
    home = environ.get("HOME", "")
    found: list[Path] = []
    last = 0
    try:
        device = source.stat().st_dev
        for directory in (source, *source.parents):
            status = directory.stat()
            if found and (str(directory) == os.path.realpath(home) or status.st_dev != device or status.st_mode & stat.S_IWOTH):
                break
            found.append(directory)
            if os.path.lexists(directory / ".git"):
                return tuple(found)
            if any((directory / name).is_file() for name in ("pyproject.toml", "uv.lock")):
                last = len(found) - 1
    except OSError:  # a directory above that may not be read is above the project
        pass
    return tuple(found[: last + 1]) or (source,)


def uv_root(directories: Sequence[Path]) -> Path | None:
    """The root of the uv workspace: where its lock file is; without one the nearest `pyproject.toml`."""
    for name in ("uv.lock", "pyproject.toml"):
        for directory in directories:
            if (directory / name).is_file():
                return directory
    return None


def existing(path: Path, called: str) -> Path:
    """The binary itself, for a binary or for an environment's directory. What a look can show is checked before the start."""
    hint = "name a python, or an environment's directory, with --python"
    if called.startswith("$"):
        hint = f"make that environment again, unset the variable, or {hint}"
    path = Path(os.path.abspath(path))  # noqa: PTH100 - not resolved: a venv's python is a symlink out of the venv
    if path.is_symlink() and not path.exists():
        raise InterpreterError(f"is a symlink to {_broken_end(path)}, which is gone", where=called, hint=hint)
    if not os.path.lexists(path):
        raise InterpreterError("there is no such file or directory", where=called, hint=hint)
    if path.is_dir():
        binaries = [path / "bin" / name for name in ("python", "python3")]
        path = next((binary for binary in binaries if os.path.lexists(binary)), binaries[0])
        if not os.path.lexists(path):
            raise InterpreterError("is a directory without bin/python", where=called, hint=hint)
    if not path.exists():
        raise InterpreterError(
            f"the environment is broken: {path.name} points to {_broken_end(path)}, which is gone",
            where=called,
            hint="install that Python again, or make the environment again",
        )
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InterpreterError("is not an executable file", where=called, hint=hint)
    prefix = path.parent.parent
    if (prefix / "bin" / "activate").exists() and not (prefix / "pyvenv.cfg").exists() and not (prefix / "conda-meta").exists():
        raise InterpreterError(
            "the environment is broken: its pyvenv.cfg is gone", where=called, hint="make the environment again"
        )
    return path


def settings(prefix: Path) -> dict[str, str]:
    """What a `pyvenv.cfg` says, by its names in lower case; nothing when there is none, or it is no file that can be read."""
    try:
        lines = read_regular(prefix / "pyvenv.cfg", _SETTINGS).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def _broken_end(path: Path) -> str:
    """The first link of a chain that leads nowhere."""
    for _ in range(40):
        if not path.is_symlink():
            break
        path = Path(os.path.normpath(path.parent / path.readlink()))
    return str(path)
