"""The commands `repro-env kernel install` and `start`: kernels of Jupyter that run in the captured environment."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.api import execute, rebuild
from repro_env.io.files import atomic_write
from repro_env.runs.execution import imageprogram, recording, streams
from repro_env.runs.execution.recording import FinishedRun
from repro_env.runs.start.report import announce
from repro_env.runs.start.request import RunOptions, secrets_of
from repro_env.sandbox import notebook
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import CommandMissingError, DiskError, UsageError, os_errors_as
from repro_env.schema.progress import Tell
from repro_env.schema.run import StandardStreams
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened, current_directory, project_of
from repro_env.store.store import Store

_NAME = re.compile(r"[a-z0-9._-]{1,100}")
"""Names that all parts of Jupyter accept."""
_STREAMS = StandardStreams(stdin="null", stdout="pipe", stderr="pipe")


class Installed(Frozen, frozen=True, kw_only=True):
    """The result of `install`."""

    name: str
    display_name: str
    directory: Path
    """Of the kernel spec."""


def install(
    opened: Opened,
    name: str = "",
    *,
    spec: str,
    words: Sequence[str] = (),
    prefix: Path | None = None,
    environ: Mapping[str, str],
    store: Store,
    tell: Tell,
) -> Installed:
    """Write a kernel spec for Jupyter, and build the image if the store does not have it, since Jupyter waits a minute for a kernel.

    `spec`: how the kernel spec names the spec. `words`: options of `exec`. `prefix`: of the environment of Jupyter; None for the user's
    directory. Raises `UsageError`, `CommandMissingError`, `DiskError`, and what `rebuild` raises.
    """
    _check(opened.spec)
    project = project_of(opened).name
    more = f", {name}" if name else ""
    name = name or f"repro-env-{re.sub(r'[^a-z0-9._-]+', '-', project.lower()).strip('-') or 'project'}"
    if not _NAME.fullmatch(name):
        hint = "use at most 100 of the characters a to z, 0 to 9 and . _ -"
        raise UsageError("this is not a name of a kernel", where=f'--name "{name}"', hint=hint)
    made = Installed(
        name=name,
        display_name=f"{project} (repro-env{more})",
        directory=(_data_directory(environ) if prefix is None else prefix / "share" / "jupyter") / "kernels" / name,
    )
    tool = [str(path)] if (path := Path(sys.executable).with_name("repro-env")).is_file() else [sys.executable, "-m", "repro_env"]
    argv = [*tool, "kernel", "start", "--spec", spec, "--connection", "{connection_file}", *words]
    facts = {"argv": argv, "display_name": made.display_name, "language": "python", "interrupt_mode": "message"}
    file = made.directory / "kernel.json"
    hint = "choose a directory that you can write to with --prefix"
    with os_errors_as(DiskError, "the kernel spec cannot be written", where=file, hint=hint):
        if file.exists() and b'"--connection"' not in file.read_bytes():
            raise UsageError("this kernel spec is not from repro-env", where=str(file), hint="choose another name with --name")
        rebuild.rebuild(opened, store=store, tell=tell)
        made.directory.mkdir(parents=True, exist_ok=True)
        atomic_write(file, msgspec.json.format(msgspec.json.encode(facts)) + b"\n")
    return made


def _data_directory(environ: Mapping[str, str]) -> Path:
    """Return the user's data directory of Jupyter (`jupyter --data-dir`)."""
    data = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(environ.get("JUPYTER_DATA_DIR") or Path(data, "jupyter"))


def _check(spec: Spec) -> None:
    names = {package.name for package in (*spec.identity.artifacts, *spec.observed.system_packages)}
    if not names & {"ipykernel", "python3-ipykernel"}:
        hint = "install ipykernel in the environment, and capture again"
        raise CommandMissingError("the captured environment has no ipykernel, which runs the code of notebooks", hint=hint)


def start(
    opened: Opened, connection: Path, options: RunOptions, report: Callable[[FinishedRun], int], *, store: Store, tell: Tell
) -> int:
    """Run a kernel, and record its run. Returns the exit status; `report` returns it for a run that is recorded.

    Raises `UsageError` for the connection file, `RunError` if a port is in use, and what `execute.run` raises.
    """
    _check(opened.spec)
    facts = notebook.read(connection)
    options = msgspec.structs.replace(options.with_command(notebook.COMMAND, current_directory()), streams=_STREAMS)

    def record(control: int) -> int:
        made = execute.prepare(options, opened, compiles=True, store=store, tell=tell)
        announce(made, tell)
        hidden = secrets_of(options) | {facts.key}
        runner = imageprogram.runner(opened.spec, options, store, bytecode=made.bytecode, hidden=hidden - {""})
        with streams.silent((1,)):  # what cells print goes to Jupyter, and the kernel itself prints how to stop it by hand
            return report(recording.run(made, notebook.KernelRunner(runner, facts, control), tell))

    return notebook.attend(facts, record)
