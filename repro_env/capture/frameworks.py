"""What PyTorch and the numeric libraries are when the captured environment really loads them.

Loading takes seconds, so what was seen is kept, and seen again only when something that it depends on has changed.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from repro_env.capture import variables
from repro_env.capture.distributions import InstalledDistribution
from repro_env.capture.python import INSIDE, head_of, last_line, own_environment
from repro_env.io import process
from repro_env.model import codec, redact
from repro_env.model.accelerator import Frameworks, How, Library, Seen, Threads
from repro_env.model.codec import Frozen
from repro_env.model.environment import Interpretation
from repro_env.model.errors import SpecError
from repro_env.model.text import AbsPath, Line

TIMEOUT = 120.0
"""Seconds for all imports: from a cold network file system PyTorch alone takes more than one minute."""
_REPORT = 16 << 20
"""Bytes read of the report."""
KIND = "frameworks"
"""Of the kept facts."""
MODULES = ("torch", "numpy", "scipy", "jax", "tensorflow")
"""What is imported, if it is there: without any of them nothing is started."""
_NAMES = frozenset((*MODULES, "jaxlib", "pytorch", "tensorflow-cpu"))
_SCRIPT = INSIDE / "frameworks.py"
_QUESTIONS = INSIDE / "numeric"
"""What the script needs beside it."""
_DRIVER = re.compile(
    r"lib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[\w.-]+|(?:GLX|EGL|GLESv1_CM|GLESv2|vdpau)_nvidia|dxcore|d3d12(?:core)?)\.so(?:\.[\w.]+)?"
)
"""Libraries that come with a kernel driver and fit it alone (NVIDIA's container runtime puts just these in; WSL2 has the last)."""
_PART_OF_ENVIRONMENT = ("wheel ", "conda ")
_UNMOVING = re.compile(
    r"PATH|SLURM_\w+|MASTER_\w+|\w*RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|PMI_\w+|OMPI_\w+|TORCHELASTIC_\w+|PYTHONHASHSEED"
)
"""Variables that no import looks at: another one of them is no reason to import again."""
_COMPILERS = {"gcc": {"gcc", "cc", "clang"}, "g++": {"g++", "c++", "clang++"}}
"""What does as well as each."""

T = TypeVar("T")


class Cache(Protocol):
    """`store.facts.FactCache`, which lies above."""

    def recall(self, kind: str, key: str, into: type[T]) -> T | None: ...

    def put(self, kind: str, key: str, value: bytes) -> None: ...


class Report(Frozen, frozen=True, kw_only=True):
    """What was seen in the process that imported everything; whose the files are is not known yet."""

    facts: Frameworks
    mapped: tuple[AbsPath, ...] = ()
    """Every shared library of that process, sorted."""
    beside: tuple[AbsPath, ...] = ()
    """Those that a mapped one loads by this name on first use."""
    keys: tuple[Line, ...] = ()
    """Of each mapped file, in the same order: what changes when it does."""


def present(facts: Interpretation, names: Collection[str], environ: Mapping[str, str]) -> bool:
    """Whether there is anything to import. `names`: of all distributions. Packages without metadata are found by their folder."""
    if not _NAMES.isdisjoint(names):
        return True
    prefix = Path(facts.layout.prefix)
    folders = {prefix / facts.layout.purelib, prefix / facts.layout.platlib}
    folders |= {Path(entry) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    return any((folder / name / "__init__.py").exists() for folder in folders for name in MODULES)


def look(
    facts: Interpretation,
    environ: Mapping[str, str],
    *,
    names: Collection[str],
    state: str,
    here: Any,
    cache: Cache,
) -> Report:
    """Import what computes, in a process of its own in a scratch folder, and have it tell. A crash or a hang is a fact.

    `state` changes when a file of the environment does; `here` is what this machine is (any value that can be
    encoded). With both as they were, and the mapped libraries too, what was seen last is given again.
    """
    if not present(facts, names, environ):
        return Report(facts=Frameworks(problem="neither PyTorch nor another numeric package is installed"))
    key = _key(facts, environ, state, here)
    kept = cache.recall(KIND, key, Report)
    if kept is not None and kept.keys == tuple(_stat_key(path) for path in kept.mapped):
        return kept
    report = _run(facts, environ)
    if not report.facts.problem:
        cache.put(KIND, key, codec.canonical(report))
    return report


def read(rows: Iterable[str], problem: str = "", hidden: Collection[str] = ()) -> Report:
    """The lines of `inside/frameworks.py`; a last one that a crash cut is dropped.

    `problem`: how the process itself failed. `hidden`: values that no text may repeat.
    """
    try:
        found = _read(rows, problem, hidden)
        # Another package may have written to the report: nothing gets further that could not be stored.
        return codec.decode(codec.canonical(found), Report, where="report")
    except (SpecError, KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError):
        return Report(facts=Frameworks(problem=_line("; ".join(filter(None, ("its report cannot be read", problem))))))


def _read(rows: Iterable[str], problem: str, hidden: Collection[str]) -> Report:
    said: dict[str, Any] = {}
    libraries, threads, devices, versions, unknown, failed, beside = [], [], [], [], [], [], []
    for row in rows:
        try:
            one = json.loads(row)
        except ValueError:
            problem = problem or "its report was damaged"
            break
        libraries += [one["library"]] if "library" in one else []
        threads += [one["threads"]] if "threads" in one else []
        devices += [one["device"]] if "device" in one else []
        beside += [one["beside"]] if "beside" in one else []
        unknown += [one["unknown"]] if "unknown" in one else []
        failed += [one["failed"]] if "failed" in one else []
        if one.get("imported") == "torch":
            said["torch"] = one["version"] or "of unknown version"
        elif "imported" in one:
            versions.append(f"{one['imported']} {one['version']}".strip())
        said |= {name: one[name] for name in _PLAIN & one.keys()}
    doing = said.get("doing", "")
    if problem:
        problem += f" during {doing}" if doing else "" if "started" in said else " before its first line"
    mapped = tuple(path for path in sorted(said.get("mapped", ())) if _fits(path))
    facts = Frameworks(
        problem=_line(redact.secretless("; ".join(filter(None, (problem, *failed))), hidden)),
        torch=_line(said.get("torch", "")),
        torch_git=_line(said.get("torch_git", "")),
        cuda=_line(said.get("cuda", "")),
        hip=_line(said.get("hip", "")),
        arch=tuple(_line(one) for one in said.get("arch", ())),
        cpu_capability=_line(said.get("cpu_capability", "")),
        triton=_line(said.get("triton", "")),
        needs_compiler=bool(said.get("needs_compiler", False)),
        versions=tuple(sorted(_line(one) for one in versions)),
        devices=tuple(
            Seen(name=_line(one["name"]), architecture=_line(one["architecture"]), units=one["units"], memory=one["memory"])
            for one in devices
        ),
        libraries=tuple(
            sorted(
                (_library(one) for one in libraries if _fits(one["path"])),
                key=lambda one: (one.name, one.path),
            )
        ),
        threads=tuple(
            sorted(
                (
                    Threads(library=_line(one["library"]), path=one["path"] if _fits(one["path"]) else None, count=one["count"])
                    for one in threads
                ),
                key=lambda one: (one.library, one.path or ""),
            )
        ),
        unknown=tuple(sorted({_line(redact.secretless(one, hidden)) for one in unknown})),
    )
    return Report(
        facts=facts,
        mapped=mapped,
        beside=tuple(path for path in sorted(beside) if _fits(path)),
        keys=tuple(_stat_key(path) for path in mapped),
    )


def frameworks(report: Report, *, owner: Callable[[str], str], sha256: Callable[[str], str | None]) -> Frameworks:
    """The facts, each library tied to whose it is. `sha256`: of a file, where it is known."""

    def tied(one: Library) -> Library:
        whose = owner(one.path)
        if is_driver(one.path) and not whose.startswith(_PART_OF_ENVIRONMENT):
            return msgspec.structs.replace(one, owner="driver")
        return msgspec.structs.replace(one, owner=whose, sha256=sha256(one.path))

    return msgspec.structs.replace(report.facts, libraries=tuple(tied(one) for one in report.facts.libraries))


def is_driver(path: str) -> bool:
    """Whether a library by its file's name belongs to a kernel driver: never captured, every machine has its own."""
    return _DRIVER.fullmatch(path.rpartition("/")[2]) is not None


def owners(installed: Iterable[InstalledDistribution], prefix: Path) -> dict[str, str]:
    """Whose each shared library of the environment is, by RECORD: absolute path, symlinks of its folder resolved -> `wheel NAME VERSION`."""
    found: dict[str, str] = {}
    folders: dict[str, str] = {}
    for one in installed:
        site = prefix / one.facts.site
        if b".so" not in one.record:
            continue
        for row in one.record.decode("utf-8", "replace").splitlines():
            path = _recorded(row) if ".so" in row else ""
            if ".so" not in path.rpartition("/")[2]:
                continue
            folder, name = os.path.split(os.path.normpath(site / path))
            real = folders.setdefault(folder, "") or os.path.realpath(folder)
            folders[folder] = real
            found[f"{real}/{name}"] = f"wheel {one.facts.name} {one.facts.version}"
    return found


def compiler_note(facts: Frameworks, programs: Sequence[str]) -> str:
    """What to say when the environment may call a compiler that the image will not hold; empty when there is nothing to say."""
    there = {Path(program).name.partition("-")[0] for program in programs}
    wanted = {"g++": "torch.compile and C++ extensions"} if facts.needs_compiler and facts.torch else {}
    wanted |= {"gcc": "Triton"} if facts.triton else {}
    missing = {name: who for name, who in wanted.items() if there.isdisjoint(_COMPILERS[name])}
    if not missing:
        return ""
    calls = ", ".join(f"{who} call{'s' * (who == 'Triton')} {name}" for name, who in missing.items())
    return f"{calls} at run time; capture with {' '.join(f'--with {name}' for name in missing)} if the run uses them"


_PLAIN = {"started", "doing", "torch_git", "cuda", "hip", "arch", "cpu_capability", "needs_compiler", "triton", "mapped"}
"""Facts that stand on a line of their own."""


def _recorded(row: str) -> str:
    """The path in a line of RECORD; empty for a line that is none."""
    try:
        return next(csv.reader([row]), [""])[0]
    except (csv.Error, IndexError):
        return ""


def _library(one: Mapping[str, Any]) -> Library:
    how: How = one["how"]
    return Library(
        name=_line(one["name"]),
        version=_line(one.get("version", "")),
        build=_line(one.get("build", "")),
        how=how,
        path=one["path"],
    )


def _run(facts: Interpretation, environ: Mapping[str, str]) -> Report:
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        folder = Path(os.path.realpath(scratch))
        script, report = folder / _SCRIPT.name, folder / "report"
        for file in _shipped():
            to = folder / file.relative_to(INSIDE)
            to.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, to)
        try:
            argv = [facts.command, str(script), str(report)]
            done = process.run(argv, env=own_environment(environ), cwd=folder, timeout=TIMEOUT)
        except OSError as error:
            return read((), f"Python does not start: {error.strerror}")
        rows = head_of(report, _REPORT).decode("utf-8", "replace").splitlines()
        return read(rows, _problem(done, rows), variables.hidden(environ))


def _shipped() -> list[Path]:
    """The script, and what it needs beside it, sorted."""
    return [_SCRIPT, *sorted(_QUESTIONS.glob("*.py"))]


def _problem(done: process.Done, rows: Sequence[str]) -> str:
    if done.timed_out:
        return f"did not end within {TIMEOUT:.0f} s"
    if done.code < 0:
        return f"was killed by signal {-done.code}"
    if done.code or not rows or rows[-1] != '{"doing": ""}':
        return f"ended with exit code {done.code}" + (f" ({last})" if (last := last_line(done.stderr)) else "")
    return ""


def _key(facts: Interpretation, environ: Mapping[str, str], state: str, here: Any) -> str:
    told = variables.sort(environ)
    names = [one.name for one in (*told.replayed, *told.recorded) if not _UNMOVING.fullmatch(one.name)]
    script = [[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in _shipped()]
    return codec.digest([script, facts, state, here, [[name, redact.line(environ[name])] for name in names]])


def _stat_key(path: str) -> str:
    try:
        now = Path(path).stat()
    except OSError:
        return ""
    return f"{now.st_dev}:{now.st_ino}:{now.st_size}:{now.st_mtime_ns}"


def _line(text: Any) -> str:
    return redact.line(str(text)).strip()


def _fits(path: Any) -> bool:
    try:
        msgspec.convert(path, type=AbsPath)
        path.encode()
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True
