"""`repro-env init`: write the files that check a captured project in CI, open it in an editor or run it on a cluster."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import msgspec

from repro_env.cli.ci import parse_exec
from repro_env.cli.ui import messages, page
from repro_env.cli.ui.options import DryRunOption, flag, value
from repro_env.delivery.builder import remote
from repro_env.delivery.documents.projectfiles import PATHS, Kind, Project, render
from repro_env.io.files import atomic_write
from repro_env.runs.records import records
from repro_env.schema.errors import DiskError, UsageError, os_errors_as
from repro_env.specs.argument import open_spec
from repro_env.store.specs.files import present


class _File(msgspec.Struct, frozen=True):
    option: str
    path: Path
    state: str
    """`new`, `same`, `differs` (another file is there), or why it cannot be written."""
    text: str = ""


def command(
    github: Annotated[bool, flag("--github", "Write a workflow of GitHub Actions.")] = False,
    gitlab: Annotated[bool, flag("--gitlab", "Write a pipeline of GitLab CI.")] = False,
    pre_commit: Annotated[bool, flag("--pre-commit", "Write a configuration of pre-commit.")] = False,
    devcontainer: Annotated[
        bool, flag("--devcontainer", "Write a devcontainer.json, with the pushed image or else the Dockerfile of the spec.")
    ] = False,
    slurm: Annotated[bool, flag("--slurm", "Write a script for sbatch.")] = False,
    exec_: Annotated[
        str,
        value(
            "WORDS",
            "Verify this command. WORDS are the arguments of `repro-env exec`, quoted as in a shell. Default: the command of the "
            "newest run in runs/ that ended with exit code 0.",
            "--exec",
        ),
    ] = "",
    action: Annotated[
        str, value("OWNER/NAME@COMMIT", "Use this commit of this repository of repro-env on GitHub (--github, --pre-commit).")
    ] = "",
    force: Annotated[bool, flag("--force", "Replace files that differ.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Write files for CI, pre-commit, editors and clusters, for the nearest repro/spec.json. Without an option, list them.

    \b
      repro-env init
      repro-env init --gitlab --exec 'train.py --epochs 1'
      repro-env init --github --action OWNER/NAME@COMMIT --dry-run

    The files are written to the top directory of the Git repository. The workflow and the pipeline compare the code with the
    capture after each push. When they are scheduled, they also run the command twice and compare the outputs.
    """
    given = dict(zip(PATHS, (github, gitlab, pre_commit, devcontainer, slurm), strict=True))
    chosen = [kind for kind in given if given[kind]]
    root, project = _project(exec_, action)
    files = [_file(kind, root, project, is_chosen=bool(chosen)) for kind in chosen or PATHS]
    write = bool(chosen) and not dry_run
    if write:
        if not force and (differing := [str(file.path) for file in files if file.state == "differs"]):
            hint = "--dry-run prints the new text; --force replaces the file"
            raise UsageError("this file exists and differs", where=", ".join(differing), hint=hint)
        for file in files:
            _write(file)
    if messages.answer_in_json({"command": project.command, "files": files}):
        return
    if not chosen:
        page.table([(file.option, str(file.path), file.state) for file in files], header=("OPTION", "FILE", "STATE")).print()
        messages.say(f"command: {project.command or 'none; name it with --exec'}")
    for file in files if chosen else ():
        messages.result(
            f"{file.path}: {'not changed' if file.state == 'same' else 'written'}" if write else file.text.rstrip("\n")
        )
    if write and project.directory == ".":
        messages.say("next: repro-env capture, because these files count as code; then commit them and repro/")


def _project(words: str, action: str) -> tuple[Path, Project]:
    """The top directory of the repository, and what the files name."""
    location = open_spec(None, tell=messages.say)
    directory = location.directory.parent
    root = next((path for path in (directory, *directory.parents) if os.path.lexists(path / ".git")), directory)
    if words and (context := parse_exec(words, verify=True)) and context.params["runs"]:
        raise UsageError("--exec must not contain --runs", hint="the pages are written from runs/, next to repro/")
    copies = remote.read(location.directory).copies
    return root, Project(
        name=directory.name,
        directory=_relative(directory, root),
        spec=_relative(location.directory, root),
        python=location.spec.identity.command,
        command=shlex.join(shlex.split(words)) or _recorded(directory / "runs"),
        action=action,
        image=f"{copies[0].repository}@{copies[0].image}" if copies else "",
        has_dockerfile="Dockerfile" in present(location.directory),
    )


def _relative(path: Path, root: Path) -> str:
    return f"./{path.relative_to(root)}" if path != root else "."


def _recorded(runs: Path) -> str:
    """The command of the newest successful run in the project's directory; empty if there is none."""
    for run in records.listing(runs)[0] if runs.is_dir() else ():
        start = run.start
        if run.ending == "exit 0" and start.command_is_exact and start.cwd == start.source.path:
            words = start.words or start.command
            is_program = words[0].startswith("-") and words[0] not in ("-m", "-c")
            return shlex.join(["--", *words] if is_program else words)
    return ""


def _file(kind: Kind, root: Path, project: Project, *, is_chosen: bool) -> _File:
    """A file and its state. Raises `UsageError` if it is chosen and cannot be written."""
    option, path = f"--{kind}", root / PATHS[kind]
    try:
        data = render(kind, project)
        if not path.parent.resolve().is_relative_to(root):
            raise UsageError("a symbolic link leads out of the repository", where=str(path.parent), hint="remove it")
        is_same = path.is_file() and path.read_bytes() == data
    except UsageError as error:
        if is_chosen:
            raise
        return _File(option, path, error.what)
    return _File(option, path, "same" if is_same else "differs" if os.path.lexists(path) else "new", data.decode())


def _write(file: _File) -> None:
    if file.state != "same":
        with os_errors_as(
            DiskError, "the file cannot be written", where=file.path, hint="check the permissions of its directory"
        ):
            file.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file.path, file.text.encode())
