"""What the captured Python is, and how it starts. Which one it is, `capture.target` decides."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from repro_env.capture import target as targets
from repro_env.capture import variables
from repro_env.capture.target import Target
from repro_env.io import process
from repro_env.model import codec, redact
from repro_env.model.environment import Interpretation, Startup
from repro_env.model.errors import InterpreterError, SpecError

INSIDE = Path(__file__).resolve().parent.parent / "inside"
OLDEST = (3, 8)
TIMEOUT = 60.0
"""Seconds that a Python may take to start."""
PRINTED = 2000
"""Characters kept of what a start prints."""
_REPORT = 16 << 20
"""Bytes read of a probe's report."""
_FLOOD = 1 << 18
"""Bytes looked at of what a start prints."""
_ERROR = re.compile(r"\w*(?:Error|Exception)\b.*:|error:|not found")
_SCRATCH = "<scratch>"
"""Stands for our scratch folder: its name is another one each time."""


def interpret(python: Target | str, environ: Mapping[str, str]) -> Interpretation:
    """Ask a Python what it is, importing nothing of it.

    A string is one that `--python` takes. Raises `InterpreterError` saying why there is none, or why it cannot be captured.
    """
    target = targets.named(python, environ) if isinstance(python, str) else python
    path, named = target.path, target.named
    said = _ask(path, named, environ)
    _refuse(said, named)
    interpreter = said["facts"]["interpreter"]
    interpreter["banner"] = redact.line(interpreter["banner"])
    interpreter["openssl"] = redact.line(interpreter["openssl"])
    facts, layout = said["facts"], said["facts"]["layout"]
    layout["platlib"] = _unaliased(layout["prefix"], layout["platlib"])
    facts["command"] = _command(facts)
    if facts["kind"] != "venv":
        layout["python"] = facts["command"]
        real = os.path.realpath(layout["prefix"])
        layout["real"] = real if real != layout["prefix"] else None
    try:
        return codec.decode(json.dumps(said["facts"]).encode(), Interpretation, where=str(path))
    except SpecError as error:
        raise InterpreterError(
            f"describes itself with something that cannot be written down ({error.what})",
            where=named,
            hint="move the environment to a path without control characters or undecodable bytes",
        ) from None


def _unaliased(prefix: str, folder: str) -> str:
    """`lib64/…` where `lib64` is a symlink to `lib`: files have one path only, the real one."""
    real = os.path.realpath(f"{prefix}/{folder}")
    root = os.path.realpath(prefix)
    return os.path.relpath(real, root) if real.startswith(root + "/") else folder


def start_up(facts: Interpretation, environ: Mapping[str, str]) -> Startup:
    """Start the environment as the user does, in a scratch folder, and tell how it went. A crash or a hang is a fact."""
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        folder = Path(os.path.realpath(scratch))
        shutil.copyfile(INSIDE / "startup.py", folder / "startup.py")
        report = folder / "report"
        argv = [facts.command, str(folder / "startup.py"), str(report), "1" if environ.get("PYTHONDONTWRITEBYTECODE") else "0"]
        try:
            done = process.run(argv, env=own_environment(environ), cwd=folder, timeout=TIMEOUT, limit=_REPORT)
        except OSError as error:
            raise InterpreterError(f"does not start: {error.strerror}", where=facts.command) from None
        said = _read_report(report)
    hidden = variables.hidden(environ)
    done = msgspec.structs.replace(
        done, stdout=_placeless(done.stdout, folder, hidden), stderr=_placeless(done.stderr, folder, hidden)
    )
    printed = (done.stdout + done.stderr).decode("utf-8", "replace")
    return Startup(
        problem=_problem(done, said),
        printed=redact.line(printed).strip()[:PRINTED],
        sys_path=tuple(entry.replace(str(folder), _SCRATCH) for entry in said.get("sys_path", ())),
        flags=redact.line(said.get("flags", "")),
        mapped=tuple(sorted(path for path in said.get("mapped", ()) if redact.printable(path))),
        locale=redact.line(said.get("locale", "")),
        user_base=said.get("user_base", ""),
    )


def holds_us(facts: Interpretation) -> bool:
    """Whether repro-env itself is installed in the captured environment."""
    prefix = os.path.realpath(facts.layout.prefix)
    return os.path.realpath(sys.prefix) == prefix or Path(__file__).resolve().is_relative_to(prefix)


def _ask(path: Path, named: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the static probe says. In the caller's folder, since a version manager's `python3` decides by it."""
    _check_home(path, named)
    try:
        done = process.run([str(path), "-I", "-S", "-B", str(INSIDE / "probe.py")], env=environ, timeout=TIMEOUT, limit=_REPORT)
    except OSError as error:
        raise InterpreterError(f"does not start: {error.strerror}", where=named, hint="name a python with --python") from None
    if done.timed_out:
        raise InterpreterError(f"does not start within {TIMEOUT:.0f} s", where=named, hint="name another python with --python")
    try:
        said = json.loads(done.stdout.rpartition(b"\n")[2])
        msgspec.convert(said, type=_Said)
    except (ValueError, RecursionError, msgspec.ValidationError):
        if b"Unknown option: -I" in done.stderr:
            raise InterpreterError("is too old: Python 3.8 and later are captured", where=named) from None
        last = (
            last_line(done.stderr) or f"exit code {done.code}, {'no message' if done.code else 'and it does not say what it is'}"
        )
        raise InterpreterError(f"does not start as a Python: {last}", where=named, hint="name a python with --python") from None
    return cast("dict[str, Any]", said)


class _OfInterpreter(msgspec.Struct):
    banner: str
    openssl: str
    prefix: str


class _OfLayout(msgspec.Struct):
    prefix: str
    platlib: str


class _Facts(msgspec.Struct):
    interpreter: _OfInterpreter
    layout: _OfLayout
    command: str
    kind: str


class _Said(msgspec.Struct):
    """What is used of the probe's answer before all of it is checked: a program that is no Python may print anything."""

    version: tuple[int, int, int]
    prefix: str
    implementation: str
    facts: _Facts | msgspec.UnsetType = msgspec.UNSET


def _check_home(path: Path, named: str) -> None:
    """A venv made with `--copies` still has its binary when the Python below it is gone; its own words say nothing useful."""
    home = targets.settings(path.parent.parent).get("home")
    if home is not None and not Path(home).is_dir():
        raise InterpreterError(
            f"the environment is broken: its Python was in {redact.line(home)}, which is gone",
            where=named,
            hint="install that Python again, or make the environment again",
        )


def _refuse(said: Mapping[str, Any], named: str) -> None:
    """What a later version captures is told apart from what no version will."""
    where = f"{named}: {redact.line(str(said['prefix']))}"
    version = ".".join(str(part) for part in said["version"])
    if said["implementation"] != "cpython":
        raise InterpreterError(f"is {redact.line(str(said['implementation']))}, only CPython is captured", where=where)
    if tuple(said["version"]) < OLDEST:
        raise InterpreterError(f"is Python {version}, too old: 3.8 and later are captured", where=where)
    if "facts" not in said:
        raise InterpreterError("is not a Python for Linux", where=where)


def _command(facts: Mapping[str, Any]) -> str:
    """One spelling of the environment's own python, however it was named."""
    started = str(facts["command"])
    folders = [f"{facts['layout']['prefix']}/bin"]
    if facts["kind"] != "venv":
        folders += [f"{facts['interpreter']['prefix']}/bin", started.rpartition("/")[0]]
    for folder in folders:
        for name in ("python", "python3"):
            path = Path(folder, name)
            # In a folder that others share, `python` may be another one.
            same = facts["kind"] == "venv" or os.path.realpath(path) == os.path.realpath(started)
            if path.is_file() and os.access(path, os.X_OK) and same:
                return str(path)
    return started


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's, for a process that starts in another folder and leaves no bytecode behind."""
    own = dict(environ)
    own["PYTHONDONTWRITEBYTECODE"] = "1"
    if environ.get("PYTHONPATH"):
        own["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in environ["PYTHONPATH"].split(os.pathsep))
    return own


class _Report(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the start-up probe's report, as far as it can be believed: what runs at start can write there too."""

    sys_path: list[str] | msgspec.UnsetType = msgspec.UNSET
    flags: str | msgspec.UnsetType = msgspec.UNSET
    locale: str | msgspec.UnsetType = msgspec.UNSET
    user_base: str | msgspec.UnsetType = msgspec.UNSET
    mapped: list[str] | msgspec.UnsetType = msgspec.UNSET
    importing: str | msgspec.UnsetType = msgspec.UNSET


def _read_report(report: Path) -> dict[str, Any]:
    """All lines of the probe's report in one, later ones first; what a crash cut, or somebody else wrote, is dropped."""
    said: dict[str, Any] = {}
    for row in head_of(report, _REPORT).splitlines():
        try:
            found = msgspec.convert(json.loads(row), type=_Report)
        except (ValueError, RecursionError, msgspec.ValidationError):
            break
        said |= {name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not msgspec.UNSET}
    return said


def head_of(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file, none when there is no such file or it is something else: a pipe must not hang us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def _placeless(output: bytes, folder: Path, hidden: Iterable[str]) -> bytes:
    """What a start printed, without our scratch folder and without secrets; the middle of a flood is dropped."""
    if len(output) > _FLOOD:
        output = output[: _FLOOD // 2].rpartition(b"\n")[0] + b"\n" + output[-_FLOOD // 2 :].partition(b"\n")[2]
    text = output.replace(os.fsencode(folder), _SCRATCH.encode()).decode("utf-8", "replace")
    return redact.secretless(text, hidden).encode("utf-8", "replace")


def _problem(done: process.Done, said: Mapping[str, Any]) -> str:
    at = (
        f" while importing {said['importing']}"
        if said.get("importing")
        else ""
        if "sys_path" in said
        else " before our first line"
    )
    if done.timed_out:
        return redact.line(f"did not end within {TIMEOUT:.0f} s{at}")
    if done.code < 0:
        return redact.line(f"was killed by signal {-done.code}{at}")
    if done.code or "importing" not in said or said["importing"]:
        last = last_line(done.stderr)
        return redact.line(f"ended with exit code {done.code}{at}" + (f": {last}" if last else ""))
    return ""


def last_line(output: bytes) -> str:
    """The last line that names an error, else the last one: a dying Python ends with its thread list."""
    rows = [row for row in output.decode("utf-8", "replace").splitlines() if row.strip()]
    errors = [row for row in rows if _ERROR.search(row)]
    return redact.line((errors or rows)[-1].strip())[:500] if rows else ""
