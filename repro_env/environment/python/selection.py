"""Choose the target: the Python that a command captures or compares.

The order is: `--python`, `$VIRTUAL_ENV`, `$CONDA_PREFIX`, `$UV_PROJECT_ENVIRONMENT`, the project's `.venv`, conda's base
environment, `python3` on PATH. The first that exists is used. If it is broken, that is an error, and no further candidate is
tried.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.git import command as gitask
from repro_env.environment.system.tree import chain
from repro_env.io.files import read_regular
from repro_env.schema.errors import InterpreterError
from repro_env.schema.messages import shorten

_SETTINGS = 1 << 20
"""Maximum bytes of a pyvenv.cfg."""
_BASE = ("base", "root")
"""Names of conda's base environment. Most shells activate it automatically, so it has a low priority."""
_IN_PROJECT, _ON_PATH = ".venv of the project", "python3 on PATH"


class Target(msgspec.Struct, frozen=True):
    """The Python that is captured."""

    path: Path
    """The file to start."""
    why: str
    """How it was found, e.g. `.venv of the project`."""
    name: str
    """Its name in error messages."""
    explicit: bool
    """Whether an option or a variable named it."""

    @property
    def venv(self) -> Path | None:
        """The virtual environment's directory, determined only from the path."""
        prefix = self.path.parent.parent
        return prefix if (prefix / "pyvenv.cfg").is_file() else None

    @property
    def is_own(self) -> bool:
        """Whether repro-env itself is installed in this environment."""
        links = [Path(link).parents[1] for link in (str(self.path), *chain(str(self.path)))]
        prefix = next((link for link in links if (link / "pyvenv.cfg").is_file()), links[-1])
        return os.path.realpath(prefix) == os.path.realpath(sys.prefix)

    @property
    def is_guess(self) -> bool:
        """Whether it was only found on this machine: neither an option nor a variable names it, and it is not in the project."""
        return not self.explicit and self.why != _IN_PROJECT

    def check_requirements(self, lacking: Sequence[str]) -> None:
        """Raise `InterpreterError` if it lacks what the project requires, and nothing says that it is the project's environment."""
        if lacking and (self.is_guess or (self.is_own and self.why.startswith("$"))):
            raise InterpreterError(
                f"this environment lacks what the project requires: {shorten(lacking, 3)}",
                where=self.name,
                hint=f"activate the project's environment or name it with --python ENV; if it is this one: --python {self.path}",
            )


def choose(python: str | None, environ: Mapping[str, str], source: Path) -> Target:
    """Choose the target for the code in `source` (absolute, resolved). Raises `InterpreterError` if there is none.

    `python`: a binary, an environment's directory or the name of a program on PATH; None chooses by the order above. The
    environment of repro-env itself is refused unless something names it.
    """
    target = find(python, environ, source)
    if target.is_guess and target.is_own:
        raise InterpreterError(
            "this is the environment of repro-env itself, and nothing says that it is also the project's",
            where=target.name,
            hint=f"activate the project's environment or name it with --python ENV; if it is this one: --python {target.path}",
        )
    return target


def find(python: str | None, environ: Mapping[str, str], source: Path) -> Target:
    """Return the target of `choose`, even if it is the environment of repro-env itself."""
    if python is not None:
        return from_option(python, environ)
    found = next(_candidates(environ, source), None)
    if found is None:
        raise InterpreterError(
            "found no Python environment and no python3 on PATH", hint="activate an environment, or name one with --python"
        )
    path, why, explicit = found
    name = str(path) if why == _ON_PATH else f"{why} ({path})"
    if why == _IN_PROJECT:
        _refuse_tracked(path, name)
    return Target(binary(path, name), why, name, explicit)


def captured(command: str) -> Target:
    """Return the target of an earlier capture."""
    return Target(binary(Path(command), command), "captured", command, explicit=True)


def from_option(python: str, environ: Mapping[str, str]) -> Target:
    """Return the target that the value of `--python` names."""
    why = f"--python {python}"
    if "/" not in python and (not Path(python).is_dir() or python.startswith("python")):
        # As in a shell, `python3` never means a file or directory of that name in the working directory.
        program = shutil.which(python, path=environ.get("PATH"))
        if program is None:
            hint = f"to use the file in this directory: --python ./{python}" if Path(python).exists() else ""
            raise InterpreterError("no program of this name is on PATH", where=why, hint=hint)
        return Target(Path(program), why, why, explicit=True)
    return Target(binary(Path(python), why), why, why, explicit=True)


def _refuse_tracked(venv: Path, name: str) -> None:
    """Raise `InterpreterError` if git tracks `.venv`: its python could be any program of the repository's authors."""
    try:
        with gitask.open_repository(venv.parent) as repo:
            if not gitask.git_output(repo, "ls-files", "-z", "--", venv.name):
                return
        reason = "is part of the git repository, so its python may be any program that the repository's authors chose"
    except gitask.NoRepositoryError:
        return
    except gitask.GitError as error:
        reason = f"may be part of the git repository, which cannot be read: {error}"
    raise InterpreterError(reason, where=name, hint=f"if you trust it, name it: --python {venv}")


def _candidates(environ: Mapping[str, str], source: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yield all existing environments in order of priority: (directory or python, how it was found, whether a variable names it)."""
    directories = project_directories(source, environ)
    if environ.get("VIRTUAL_ENV"):
        prefix = Path(environ["VIRTUAL_ENV"]).absolute()
        # A temporary environment of `uv run --with` extends the one that is captured.
        extended = settings(prefix).get("extends-environment", "")
        is_temporary = extended.startswith("/")
        yield (
            (Path(extended), "the environment that $VIRTUAL_ENV extends", True)
            if is_temporary
            else (prefix, "$VIRTUAL_ENV", True)
        )
    conda = Path(environ["CONDA_PREFIX"]).absolute() if environ.get("CONDA_PREFIX") else None
    is_base = environ.get("CONDA_DEFAULT_ENV") in _BASE
    if conda is not None and not is_base:
        yield conda, "$CONDA_PREFIX", True
    root = uv_root(directories)
    if environ.get("UV_PROJECT_ENVIRONMENT") and root is not None:  # uv ignores it outside projects
        yield root / environ["UV_PROJECT_ENVIRONMENT"], "$UV_PROJECT_ENVIRONMENT", True
    paths = (directory / ".venv" for directory in directories)
    venv = next((path for path in paths if path.is_dir() or path.is_symlink()), None)
    if venv is not None:
        yield venv, _IN_PROJECT, False
    if conda is not None and is_base:
        yield conda, "conda's base environment", False
    path = environ.get("PATH", os.defpath)
    if environ.get("UV") and sys.prefix != sys.base_prefix:  # `uvx repro-env` puts its own environment first
        path = os.pathsep.join(entry for entry in path.split(os.pathsep) if Path(entry) != Path(sys.prefix, "bin"))
    python = shutil.which("python3", path=path)
    if python is not None:
        yield Path(python).absolute(), _ON_PATH, False


def project_directories(source: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the directories from `source` up to the project's root, both included.

    The root is the top of the git work tree; without git, the outermost directory with a `pyproject.toml` or `uv.lock`;
    without these, `source`. The search ends below the home directory, at the boundary of a file system, and below a
    directory that every user may write to, since other users may have put files there.
    """
    home = environ.get("HOME", "")
    directories: list[Path] = []
    root = 0
    try:
        device = source.stat().st_dev
        for directory in (source, *source.parents):
            status = directory.stat()
            is_home = str(directory) == os.path.realpath(home)
            if directories and (is_home or status.st_dev != device or status.st_mode & stat.S_IWOTH):
                break
            directories.append(directory)
            if os.path.lexists(directory / ".git"):
                return tuple(directories)
            if any((directory / name).is_file() for name in ("pyproject.toml", "uv.lock")):
                root = len(directories) - 1
    except OSError:  # an unreadable parent directory is outside the project
        pass
    return tuple(directories[: root + 1]) or (source,)


def uv_root(directories: Sequence[Path]) -> Path | None:
    """Return the root of the uv workspace: the directory of its lock file, else of the nearest `pyproject.toml`."""
    for name in ("uv.lock", "pyproject.toml"):
        for directory in directories:
            if (directory / name).is_file():
                return directory
    return None


def binary(path: Path, name: str) -> Path:
    """Return the binary of a path, which may be an environment's directory. Raises `InterpreterError` if it cannot be started.

    `name`: its name in error messages.
    """
    hint = "name a Python binary or an environment's directory with --python"
    if name.startswith("$"):
        hint = f"recreate that environment, unset the variable, or {hint}"
    path = Path(os.path.abspath(path))  # noqa: PTH100 - not resolved: a venv's python is a symlink out of the venv
    if path.is_dir():
        candidates = [path / "bin" / filename for filename in ("python", "python3")]
        path = next((candidate for candidate in candidates if os.path.lexists(candidate)), candidates[0])
        if not os.path.lexists(path):
            raise InterpreterError("this directory does not contain bin/python", where=name, hint=hint)
    if path.is_symlink() and not path.exists():
        what = f"the environment is broken: {path.name} is a symlink to {chain(str(path))[-1]}, which does not exist"
        raise InterpreterError(what, where=name, hint="install that Python again, or recreate the environment")
    if not path.exists():
        raise InterpreterError("this path does not exist", where=name, hint=hint)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InterpreterError("this is not an executable file", where=name, hint=hint)
    prefix = path.parent.parent
    if (prefix / "bin" / "activate").exists() and not (prefix / "pyvenv.cfg").exists() and not (prefix / "conda-meta").exists():
        raise InterpreterError("the environment is broken: it has no pyvenv.cfg", where=name, hint="recreate the environment")
    return path


def settings(prefix: Path) -> dict[str, str]:
    """Return the settings of a `pyvenv.cfg`, with names in lower case. It is empty if the file cannot be read."""
    try:
        lines = read_regular(prefix / "pyvenv.cfg", _SETTINGS).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}
