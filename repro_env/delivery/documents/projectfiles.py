"""The files that check a captured project in CI, open it in an editor or run it on a cluster.

Each value that comes from the project is escaped for its grammar. A value that a grammar cannot express is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from repro_env.delivery.documents import templates
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import UsageError
from repro_env.version import __version__

Kind = Literal["github", "gitlab", "pre-commit", "devcontainer", "slurm"]
PATHS: Mapping[Kind, str] = {
    "github": ".github/workflows/repro-env.yml",
    "gitlab": ".gitlab-ci.yml",
    "pre-commit": ".pre-commit-config.yaml",
    "devcontainer": ".devcontainer/devcontainer.json",
    "slurm": "repro-env.sbatch",
}
"""The file of each kind, relative to the root of the repository."""
_CHECKOUT = "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1"
_UPLOAD = "actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0"
_ACTION = re.compile(r"\w[\w.-]*/\w[\w.-]*@\w[\w./-]*", re.ASCII)


class Project(Frozen, frozen=True, kw_only=True):
    """What the files name."""

    name: str
    directory: str
    """The project relative to the root of the repository: `.` or `./DIRECTORY`."""
    spec: str
    """The directory of the spec, likewise."""
    python: str
    """The environment's Python in the image."""
    command: str = ""
    """Words of `repro-env exec`, quoted as in a shell; empty without a command."""
    action: str = ""
    """The repository of repro-env on GitHub and its commit: `OWNER/NAME@COMMIT`."""
    image: str = ""
    """The pushed image as HOST/NAME@sha256:DIGEST."""
    has_dockerfile: bool = True


def render(kind: Kind, project: Project) -> bytes:
    """Return the file. Raises `UsageError` if the project lacks a value, or if the file cannot express one."""
    if kind in ("github", "gitlab", "slurm") and not project.command:
        what = f"--{kind} requires --exec WORDS, because no run in runs/ ended with exit code 0"
        raise UsageError(what, hint="name a command that takes minutes, for example: --exec 'train.py --epochs 1'")
    if kind in ("github", "pre-commit") and not _ACTION.fullmatch(project.action):
        what = f"--{kind} requires --action OWNER/NAME@COMMIT"
        raise UsageError(what, hint="name the repository of repro-env on GitHub and a commit that you have reviewed")
    if kind == "devcontainer" and not (project.image or project.has_dockerfile):
        raise UsageError(f"{project.spec} has neither a Dockerfile nor a remote.json", hint="push the image: repro-env push REF")
    for value in (project.name, project.directory, project.command, project.python):
        if not value.isprintable() or (kind == "devcontainer" and "${" in value):
            what = f"the file of --{kind} cannot contain this name or command: {value!r}"
            raise UsageError(what, hint="rename the directory, or write the command to a script")
    return templates.render(
        f"project/{kind}.j2",
        name=project.name,
        directory=project.directory,
        spec=project.spec,
        python=project.python,
        command=project.command,
        action=project.action,
        image=project.image,
        version=__version__,
        checkout=_CHECKOUT,
        upload=_UPLOAD,
    )
