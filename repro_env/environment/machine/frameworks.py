"""Find out which numeric libraries the captured environment really loads, with PyTorch's settings and threads.

Loading takes seconds, so the result is cached until something that it depends on changes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from repro_env.environment.machine import variables
from repro_env.environment.python.distributions import InstalledDistribution
from repro_env.environment.python.interpreter import parse_report, run_script
from repro_env.io.files import entry_at
from repro_env.io.package import GUEST
from repro_env.schema import codec, redact
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Interpretation
from repro_env.schema.frameworks import Frameworks
from repro_env.schema.text import AbsPath, Line
from repro_env.store.facts import FactCache

TIMEOUT = 120.0
"""Seconds for all imports: from a cold network file system PyTorch alone takes more than one minute."""
KIND = "frameworks"
"""Kind of the cached facts."""
_FILES = ("frameworks.py", "numericlibraries.py")
"""The script and the module that it loads."""
_IRRELEVANT = re.compile(
    r"PATH|SLURM_\w+|MASTER_\w+|\w*RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|PMI_\w+|OMPI_\w+|TORCHELASTIC_\w+|PYTHONHASHSEED"
)
"""Variables that do not affect an import, so the cached result is valid for any value."""


class Report(Frozen, frozen=True, kw_only=True):
    """The facts from the process that imported the modules. The owners of the libraries are not determined yet."""

    facts: Frameworks
    mapped: tuple[AbsPath, ...] = ()
    """Every shared library of that process, sorted."""
    deferred: tuple[AbsPath, ...] = ()
    """Libraries that a mapped library loads by name on first use."""
    keys: tuple[Line, ...] = ()
    """A key for each mapped file, in the same order, which changes when the file changes."""


def look(facts: Interpretation, environ: Mapping[str, str], *, state: str, machine: Any, cache: FactCache) -> Report:
    """Import the numeric modules in a separate process and return its report. A crash or a timeout is reported as a problem.

    `state` changes when a file of the environment does; `machine` describes this machine (any value that can be encoded).
    If both are unchanged, and the mapped libraries too, the cached report is returned.
    """
    key = _key(facts, environ, state, machine)
    cached = cache.recall(KIND, key, Report)
    if cached is not None and cached.keys == tuple(_stat_key(path) for path in cached.mapped):
        return cached
    try:
        lines, problem = run_script(facts, _FILES, environ, TIMEOUT)
    except OSError as error:
        lines, problem = [], f"Python did not start: {error.strerror}"
    report = read(lines, problem, variables.hidden_values(environ))
    if not report.facts.problem:
        cache.put(KIND, key, codec.canonical(report))
    return report


def read(lines: Iterable[str], problem: str = "", hidden: Collection[str] = ()) -> Report:
    """Parse the output lines of `guest/frameworks.py`. An incomplete last line, as after a crash, is ignored.

    `problem`: how the process itself failed. `hidden`: values that no text may repeat.
    """
    try:
        return _read(lines, problem, hidden)
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError):
        return Report(facts=Frameworks(problem=redact.line("; ".join(filter(None, ("its report cannot be read", problem))))))


def _read(lines: Iterable[str], problem: str, hidden: Collection[str]) -> Report:
    values, problem = parse_report(lines, problem)
    for row in (*values["library"], *values["threads"]):
        row |= redact.all_texts(row) | {"path": row["path"] if codec.fits(row["path"], AbsPath) else None}
    facts = {
        "problem": redact.line("; ".join(filter(None, (problem, *values["failed"]))), hidden),
        "architectures": redact.all_texts([name for names in values["architectures"] for name in names]),
        "devices": redact.all_texts(values["device"]),
        "libraries": sorted(
            (row for row in values["library"] if row["path"] is not None), key=lambda row: (row["name"], row["path"])
        ),
        "threads": sorted(values["threads"], key=lambda row: (row["library"], row["path"] or "")),
        "unknown": sorted({redact.line(line, hidden) for line in values["unknown"]}),
    }
    facts |= {name: redact.line(values[name][-1]) for name in ("torch", "cpu_capability", "cuda") if values[name]}
    mapped, deferred = (
        [path for paths in values[name] for path in sorted(paths) if codec.fits(path, AbsPath)] for name in ("mapped", "deferred")
    )
    keys = [_stat_key(path) for path in mapped]
    return msgspec.convert({"facts": facts, "mapped": mapped, "deferred": deferred, "keys": keys}, Report)


def owners(installed: Iterable[InstalledDistribution], prefix: Path) -> dict[str, str]:
    """Return the owner of each shared library of the environment, from RECORD: absolute path -> `wheel NAME VERSION`.

    In the paths, symlinks of the directory are resolved, but not a symlink with the library's name.
    """
    owner_of: dict[str, str] = {}
    real_directories: dict[str, str] = {}
    for dist in installed:
        for path in dist.paths(str(prefix), ".so"):
            directory, _, name = path.rpartition("/")
            if ".so" in name and "\0" not in path:
                if directory not in real_directories:
                    real_directories[directory] = os.path.realpath(prefix / directory)
                owner_of[f"{real_directories[directory]}/{name}"] = f"wheel {dist.facts.name} {dist.facts.version}"
    return owner_of


def _key(facts: Interpretation, environ: Mapping[str, str], state: str, machine: Any) -> str:
    groups = variables.sort(environ)
    names = [variable.name for variable in (*groups.replayed, *groups.recorded) if not _IRRELEVANT.fullmatch(variable.name)]
    scripts = [hashlib.sha256((GUEST / name).read_bytes()).hexdigest() for name in _FILES]
    return codec.digest([scripts, facts, state, machine, [[name, redact.line(environ[name])] for name in names]])


def _stat_key(path: str) -> str:
    try:
        return str(entry_at(os.path.realpath(path), path).key)
    except OSError:
        return ""
