"""Outputs that tools of the host would execute by themselves. What a run wrote is data: it never becomes code of the host.

Such a tool finds its file by the name or the directory: Git its hooks, direnv `.envrc`, editors their tasks, pytest `conftest.py`,
make its `Makefile`, a shell what is on PATH, Python what is in an environment.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from repro_env.schema.patterns import lazy

_DATA = frozenset(
    {".aim", ".cache", ".complete", ".done", ".guild", ".hydra", ".ipynb_checkpoints", ".keras", ".local", ".mlflow", ".neptune"}
)
"""Names of directories and files with a dot that libraries write results to, and that no tool executes anything from."""
_NAMES = lazy(
    # git: githooks(5). Their directory may have any name (core.hooksPath).
    r"(?:pre|post)-(?:applypatch|auto-gc|checkout|commit|index-change|merge|merge-commit|push|rebase|receive|rewrite|update)"
    r"|(?:prepare-)?commit-msg|applypatch-msg|push-to-checkout|reference-transaction|proc-receive|fsmonitor-watchman|sendemail-validate"
    # Python and its tools
    r"|__init__\.py|(?:site|user)customize\.py|conftest\.py|setup\.(?:py|cfg)|pyproject\.toml|pytest\.(?:ini|toml)|tox\.(?:ini|toml)|noxfile\.py"
    r"|pyvenv\.cfg|[^/]*\.(?:pth|pyc|egg-link)"
    # Other tools that look for a file of this name in the directory
    r"|(?:gnu)?makefile|cmakelists\.txt|justfile|taskfile\.ya?ml|rakefile|jenkinsfile|vagrantfile|package\.json|binding\.gyp"
    r"|dockerfile|containerfile|(?:docker-)?compose(?:\.override)?\.ya?ml|lefthook\.ya?ml|mise\.toml|devenv\.nix|flake\.nix|shell\.nix"
    r"|repro-env\.ignore",
    re.IGNORECASE,
)


def reason(path: str, copy: Path) -> str:
    """Return why an output is not copied: which tool would execute it; empty if none would.

    `path`: of the output; absolute if the run wrote it outside the project. `copy`: the absolute path of its copy.
    """
    parts = PurePosixPath(path).parts
    if ".git" in {part.lower() for part in (*parts, *copy.parts)}:
        return "Git would execute it or read its settings"
    dotted = [part for part in parts if part.startswith(".") and part.lower() not in _DATA]
    if dotted and (not path.startswith("/") or dotted[-1] == parts[-1]):
        return (
            "it is a file for a tool, as its name begins with a dot" if dotted[-1] == parts[-1] else f"{dotted[-1]} is a tool's"
        )
    if _NAMES.fullmatch(parts[-1]):
        return "tools find and execute a file of this name"
    if parts[-1].endswith((".py", ".so")) and not copy.exists() and any(copy.parent.glob("*.py")):
        return "Python code next to it could import it"
    directory = os.path.realpath(copy.parent)
    if directory in {os.path.realpath(entry) for entry in os.environ.get("PATH", "").split(":") if entry}:
        return "its directory is on PATH"
    inside = [Path(directory), *Path(directory).parents]
    return "it would be in a Python environment" if any(map(_is_environment, inside)) else ""


def _is_environment(directory: Path) -> bool:
    return (directory / "pyvenv.cfg").is_file() or (directory / "conda-meta").is_dir() or directory.name == "site-packages"
