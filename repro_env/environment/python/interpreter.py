"""Collect facts about the captured Python and its start. `environment.python.selection` chooses the Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.environment.machine import variables
from repro_env.environment.python import selection as targets
from repro_env.environment.python.selection import Target
from repro_env.io import process
from repro_env.io.files import read_head
from repro_env.io.package import GUEST
from repro_env.schema import codec, redact
from repro_env.schema.environment import Interpretation
from repro_env.schema.errors import InterpreterError, SpecError, os_errors_as

OLDEST = (3, 8)
TIMEOUT = 60.0
"""Seconds that Python may take to start."""
_REPORT = 16 << 20
"""Maximum bytes read of a probe's report."""
_ERROR = re.compile(r"\w*(?:Error|Exception)\b.*:|error:|not found")
_SCRATCH = "<scratch>"


class StartupReport(msgspec.Struct, frozen=True):
    """The report of the start-up probe. Only its types are checked: the paths may have any characters."""

    problem: str = ""
    """Why Python did not start or report, in one line; empty if it did."""
    sys_path: tuple[str, ...] = ()
    user_base: str = ""
    """`site.getuserbase()` if the user's site-packages directory is in use (`ENABLE_USER_SITE`), otherwise empty."""
    mapped: tuple[str, ...] = ()
    """Sorted paths of the shared libraries that are loaded after importing the top-level extension modules."""
    locale: str = ""


def interpret(python: Target | str, environ: Mapping[str, str]) -> Interpretation:
    """Return the facts about a Python, without importing any of its packages.

    A string is interpreted like the value of `--python`. Raises `InterpreterError` if the Python is missing or not supported.
    """
    target = targets.from_option(python, environ) if isinstance(python, str) else python
    path, name = target.path, target.name
    answer = _probe(path, name, environ)
    _check_supported(answer, name)
    facts = answer.facts
    try:
        layout = facts["layout"]
        layout["platlib"] = _unaliased(layout["prefix"], layout["platlib"])
        facts["command"] = _command(facts)
        if facts["kind"] != "venv":
            layout["python"] = facts["command"]
            real = os.path.realpath(layout["prefix"])
            layout["real"] = real if real != layout["prefix"] else None
        return codec.decode(json.dumps(facts).encode(), Interpretation, where=str(path))
    except (SpecError, KeyError, TypeError) as error:
        raise InterpreterError(
            f"this Python reports a value that a spec cannot store ({error})",
            where=name,
            hint="move the environment to a path without control characters or undecodable bytes",
        ) from None


def _unaliased(prefix: str, directory: str) -> str:
    """Return the real path of `lib64/…` if `lib64` is a symlink to `lib`, so that each file has only one path."""
    real = os.path.realpath(f"{prefix}/{directory}")
    root = os.path.realpath(prefix)
    return os.path.relpath(real, root) if real.startswith(root + "/") else directory


def start_up(facts: Interpretation, environ: Mapping[str, str]) -> StartupReport:
    """Start Python as the user does, in a scratch directory, and return the result. A crash or timeout is not an error."""
    with os_errors_as(InterpreterError, "this Python did not start", where=facts.command):
        lines, problem = run_script(facts, ["startup.py"], environ, TIMEOUT)
    values, problem = parse_report(lines, problem)
    try:
        report = msgspec.convert({name: found[-1] for name, found in values.items() if found}, StartupReport)
    except msgspec.ValidationError:
        report, problem = StartupReport(), f"its report cannot be read; {problem}"
    mapped = tuple(sorted(filter(redact.printable, report.mapped)))
    return msgspec.structs.replace(report, problem=problem, mapped=mapped, locale=redact.line(report.locale))


def run_script(facts: Interpretation, names: Sequence[str], environ: Mapping[str, str], timeout: float) -> tuple[list[str], str]:
    """Run a script of `guest` as the user runs one, in a scratch directory. Return the lines of its report, and how it failed.

    `names`: the script, and the modules that it loads. The report is complete if its last line is `{"doing": ""}`.
    """
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        directory = Path(os.path.realpath(scratch))
        for name in names:
            shutil.copyfile(GUEST / name, directory / name)
        report = directory / "report"
        argv = [facts.command, str(directory / names[0]), str(report)]
        done = process.run(argv, env=own_environment(environ), cwd=directory, timeout=timeout, limit=_REPORT)
        # The path of the scratch directory differs each time.
        lines = read_head(report, _REPORT).decode("utf-8", "replace").replace(str(directory), _SCRATCH).splitlines()
        stderr = done.stderr.replace(os.fsencode(directory), _SCRATCH.encode())
    if done.timed_out:
        return lines, f"did not end within {timeout:.0f} s"
    if done.code < 0:
        return lines, f"was killed by signal {-done.code}"
    if done.code or lines[-1:] != ['{"doing": ""}']:
        last = redact.line(last_line(stderr), variables.hidden_values(environ))
        return lines, f"ended with exit code {done.code}" + (f" ({last})" if last else "")
    return lines, ""


def parse_report(lines: Iterable[str], problem: str) -> tuple[dict[str, list[Any]], str]:
    """Return the values of each key in a report, in order, and the problem with the step in which it occurred.

    Reading stops at the first invalid line, as after a crash. Code of the environment can write to the report too.
    """
    values: dict[str, list[Any]] = defaultdict(list)
    for line in lines:
        try:
            row = dict(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            problem = problem or "its report was damaged"
            break
        for name, value in row.items():
            values[name].append(value)
    steps = values["doing"]
    if problem:
        problem += (f" during {steps[-1]}" if steps[-1] else "") if steps else " before the probe started"
    return values, redact.line(problem)


def _probe(path: Path, name: str, environ: Mapping[str, str]) -> _Answer:
    """Return the answer of the static probe. It runs in the working directory, which a version manager's `python3` may use."""
    hint = "name a different Python with --python"
    argv = [str(path), "-I", "-S", "-B", "-X", "utf8", str(GUEST / "probe.py")]
    with os_errors_as(InterpreterError, "this program did not start", where=name, hint=hint):
        done = process.run(argv, env=environ, timeout=TIMEOUT, limit=_REPORT)
    if done.timed_out:
        raise InterpreterError(f"this program did not start within {TIMEOUT:.0f} s", where=name, hint=hint)
    try:
        return msgspec.convert(json.loads(done.stdout.rpartition(b"\n")[2]), type=_Answer)
    except (ValueError, RecursionError, msgspec.ValidationError):
        if b"Unknown option: -I" in done.stderr:
            raise InterpreterError("this Python is too old; repro-env supports Python 3.8 and later", where=name) from None
        reason = last_line(done.stderr) or f"exit code {done.code}, {'no message' if done.code else 'but no valid answer'}"
        raise InterpreterError(f"this program did not start as a Python: {reason}", where=name, hint=hint) from None


class _Answer(msgspec.Struct):
    """The parts of the probe's answer that are used before all of it is checked. A program that is not Python may print anything."""

    version: tuple[int, int, int]
    prefix: str
    implementation: str
    facts: dict[str, Any] = {}
    """Empty if the Python is not for Linux."""


def _check_supported(answer: _Answer, name: str) -> None:
    """Raise `InterpreterError` if the Python is not a CPython for Linux, or too old."""
    where = f"{name}: {redact.line(answer.prefix)}"
    version = ".".join(str(part) for part in answer.version)
    if answer.implementation != "cpython":
        raise InterpreterError(f"this is {redact.line(answer.implementation)}, but repro-env supports only CPython", where=where)
    if answer.version < OLDEST:
        raise InterpreterError(
            f"this is Python {version}, which is too old; repro-env supports Python 3.8 and later", where=where
        )
    if not answer.facts:
        raise InterpreterError("this is not a Python for Linux", where=where)


def _command(facts: Mapping[str, Any]) -> str:
    """Return the same path of the environment's python for all names with which it can be started."""
    started, is_venv = str(facts["command"]), facts["kind"] == "venv"
    directories = [f"{facts['layout']['prefix']}/bin"]
    if not is_venv:
        directories += [f"{facts['interpreter']['prefix']}/bin", started.rpartition("/")[0]]
    for directory in directories:
        for name in ("python", "python3"):
            path = Path(directory, name)
            # In a shared directory, `python` may be a different interpreter.
            is_same = is_venv or os.path.realpath(path) == os.path.realpath(started)
            if path.is_file() and os.access(path, os.X_OK) and is_same:
                return str(path)
    return started


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment, for a process that starts in a different directory and must not write bytecode."""
    own = dict(environ)
    own["PYTHONDONTWRITEBYTECODE"] = "1"
    if environ.get("PYTHONPATH"):
        own["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in environ["PYTHONPATH"].split(os.pathsep))
    return own


def last_line(output: bytes) -> str:
    """Return the last line with an error message, else the last line. A fatal error of Python ends with a list of threads."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    return redact.line((errors or lines)[-1].strip())[:500] if lines else ""
