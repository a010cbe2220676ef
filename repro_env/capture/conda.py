"""The conda packages of an environment, as `conda-meta/*.json` tells them. No conda is asked or needed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from repro_env.capture.distributions import InstalledDistribution, Scan
from repro_env.model import redact
from repro_env.model.environment import Variable
from repro_env.model.text import CondaFile, CondaName, EnvName, Line, RelPath

META = "conda-meta"
MAX_RECORD = 256 << 20
"""Bytes of one record: some 500 000 files."""
BESIDE = ("envs", "pkgs")
"""What a base environment holds that is not its own: other environments, and the package cache."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MD5 = re.compile(r"[0-9a-f]{32}")
_ACTIVATE = "etc/conda/activate.d"
_EXPORT = re.compile(r"""^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=|^\s*setenv\s+([A-Za-z_][A-Za-z0-9_]*)\s""", re.MULTILINE)
_MAX_SCRIPT = 1 << 20


class Record(msgspec.Struct, frozen=True):
    """One installed package."""

    name: CondaName
    version: Line
    build: Line
    subdir: CondaName
    filename: CondaFile
    sha256: str
    """Hex, of the archive; empty when not recorded."""
    md5: str
    """Hex, of the archive; empty when not recorded."""
    size: int
    """Of the archive, in bytes; -1 when not recorded."""
    url: str
    """As recorded: it may hold a token."""
    archive: str
    """Where the archive was in the package cache; empty when not told."""
    unpacked: str
    """Where it lay unpacked there; empty when not told."""
    requested: bool
    """The user asked for it, and it is no dependency alone."""
    path: RelPath
    """Of the record itself, relative to the prefix."""
    files: dict[str, str]
    """What was installed, by its path relative to the prefix: sha256 (hex) as it was linked, or empty."""

    @property
    def shown_url(self) -> str:
        """Without credentials and tokens."""
        return redact.url(self.url)


class Meta(msgspec.Struct, frozen=True):
    """What `conda-meta` holds."""

    records: tuple[Record, ...]
    """Sorted by name; each name once."""
    problems: tuple[str, ...]
    """Records that cannot be used, and why: one line each, sorted. Their packages' files are plain files."""

    is_there: bool = False
    """Whether it is a conda environment."""

    def owners(self) -> dict[str, Record]:
        """The package that installed each path, relative to the prefix."""
        return {path: record for record in self.records for path in record.files}

    def shared(self, prefix: str) -> dict[str, str]:
        """Whose each shared library is: real path -> `conda <name> <version>`."""
        root = os.path.realpath(prefix)
        return {
            f"{root}/{path}": f"conda {one.name} {one.version}"
            for path, one in self.owners().items()
            if ".so" in path.rpartition("/")[2]
        }

    def own(self, dist: InstalledDistribution) -> bool:
        """Whether a distribution is (part of) a conda package, and not what pip installed, maybe over one."""
        path = f"{dist.facts.dist_info}/{'RECORD' if dist.facts.has_record else 'METADATA'}"
        record = next((one for one in self.records if path in one.files), None)
        if record is None:
            return False
        linked = record.files[path]
        return not dist.facts.has_record or linked in ("", hashlib.sha256(dist.record).hexdigest())


class _Bad(Exception):  # noqa: N818 - never seen outside
    """Why a file is no record."""


def read(prefix: Path) -> Meta:
    """Read every record of an environment. What is in them may be anything: it cannot make this fail."""
    found: dict[str, list[Record]] = {}
    problems = []
    for name in _names(prefix / META):
        shown = redact.line(f"{META}/{name}")
        try:
            record = _record(prefix, name)
        except _Bad as reason:
            problems.append(f"{shown}: {reason}")
        else:
            found.setdefault(record.name, []).append(record)
    for name, records in list(found.items()):
        if len(records) > 1:
            problems += [f"{record.path}: {name} has {len(records)} records" for record in records]
            del found[name]
    return Meta(tuple(found[name][0] for name in sorted(found)), tuple(sorted(problems)), is_there=True)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208
    except OSError:
        return []


def _record(prefix: Path, name: str) -> Record:
    said = _read(prefix / META / name)
    filename = said.get("fn") or str(said.get("url", "")).rpartition("/")[2]
    if isinstance(filename, str) and not filename.endswith((".conda", ".tar.bz2")):
        filename += ".conda" if str(said.get("url", "")).endswith(".conda") else ".tar.bz2"
    fields = {
        "name": said.get("name"),
        "version": said.get("version"),
        "build": said.get("build", said.get("build_string")),
        "subdir": said.get("subdir") or _subdir(said),
        "filename": filename,
        "sha256": _digest(said.get("sha256"), _SHA256),
        "md5": _digest(said.get("md5"), _MD5),
        "size": said["size"] if isinstance(said.get("size"), int) else -1,
        "url": _text(said.get("url")),
        "archive": _text(said.get("package_tarball_full_path")),
        "unpacked": _text(said.get("extracted_package_dir")),
        "requested": bool(said.get("requested_spec") or said.get("requested_specs")),
        "path": f"{META}/{name}",
        "files": dict(_files(said)),
    }
    try:
        return msgspec.convert(fields, Record)
    except msgspec.ValidationError as error:
        raise _Bad(redact.line(str(error))) from None


def _subdir(said: Mapping[str, Any]) -> str:
    parts = str(said.get("url", "")).split("/")
    return parts[-2] if len(parts) > 1 and re.fullmatch(r"noarch|[a-z]+-[a-z0-9_]+", parts[-2]) else "unknown"


def _digest(said: object, pattern: re.Pattern[str]) -> str:
    return said.lower() if isinstance(said, str) and pattern.fullmatch(said.lower()) else ""


def _text(said: object) -> str:
    return said if isinstance(said, str) and said.isprintable() and len(said) < 4000 else ""


def _files(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Later ones know more."""
    for path in said["files"] if isinstance(said.get("files"), list) else ():
        if _is_below(path):
            yield path, ""
    data = said.get("paths_data")
    rows = data.get("paths") if isinstance(data, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and _is_below(path := row.get("_path")):
            yield str(path), _digest(row.get("sha256_in_prefix") or row.get("sha256"), _SHA256)


def _is_below(path: object) -> bool:
    return isinstance(path, str) and not path.startswith("/") and ".." not in path.split("/")


def _read(path: Path) -> dict[str, Any]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _Bad(f"cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _Bad("is not a file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_RECORD + 1)
    except OSError as error:
        raise _Bad(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > MAX_RECORD:
        raise _Bad(f"has more than {MAX_RECORD >> 20} MiB")
    try:
        said = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise _Bad("is no JSON") from None
    if not isinstance(said, dict):
        raise _Bad("is no record")
    return said


def without(scanned: Scan, meta: Meta) -> Scan:
    """The distributions that are no part of a conda package."""
    own = tuple(one for one in scanned.distributions if not meta.own(one))
    return msgspec.structs.replace(scanned, distributions=own)


def beside(prefix: Path) -> tuple[str, ...]:
    """Folders of a base environment that are not part of it, relative to the prefix: other environments, the package cache.

    An environment that is not a base has folders of these names for reasons of its own; they are left in.
    """
    found = []
    if (prefix / "pkgs" / "urls.txt").is_file() or (prefix / "pkgs" / "urls").is_file():
        found.append("pkgs")
    envs = prefix / "envs"
    if (envs / ".conda_envs_dir_test").exists() or any((prefix / "condabin" / name).exists() for name in ("conda", "mamba")):
        found += ["envs"] if envs.is_dir() else []
    elif any((one / META).is_dir() for one in _below(envs)):
        found.append("envs")
    return tuple(sorted(found))


def _below(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]  # noqa: PTH208
    except OSError:
        return []


def variables(prefix: Path, environ: Mapping[str, str]) -> tuple[Variable, ...]:
    """What activating the environment sets, as far as the caller has it so: sorted by name.

    `CONDA_PREFIX` and `CONDA_DEFAULT_ENV` always. Of what the scripts of `etc/conda/activate.d` assign, and of what
    `conda env config vars` keeps in `conda-meta/state`, those that the caller has with a path below the prefix: they say
    where a package's own files are, and the image has them at the same place.
    """
    named = environ.get("CONDA_DEFAULT_ENV", "") if environ.get("CONDA_PREFIX") == str(prefix) else ""
    found = {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": named if _plain(named) and named else str(prefix)}
    for name in sorted({*_assigned(prefix), *_kept(prefix)} - {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "PS1", *found}):
        value = environ.get(name, "")
        parts = value.split(":")
        below = any(part == str(prefix) or part.startswith(f"{prefix}/") for part in parts)
        if below and _plain(value) and all(not part or part.startswith("/") for part in parts):
            found[name] = value
    return tuple(Variable(name=name, value=found[name]) for name in sorted(found) if _fits(name))


def _assigned(prefix: Path) -> Iterator[str]:
    for script in _below(prefix / _ACTIVATE):
        if script.suffix in (".sh", ".csh") and script.is_file():
            try:
                with script.open("rb") as file:
                    text = file.read(_MAX_SCRIPT).decode("utf-8", "replace")
            except OSError:
                continue
            yield from (one or other for one, other in _EXPORT.findall(text))


def _kept(prefix: Path) -> Iterator[str]:
    try:
        said = _read(prefix / META / "state")
    except _Bad:
        return
    kept = said.get("env_vars")
    yield from (name for name in kept if isinstance(name, str)) if isinstance(kept, dict) else ()


def _plain(value: str) -> bool:
    return redact.line(value) == value


def _fits(name: str) -> bool:
    try:
        msgspec.convert(name, EnvName)
    except msgspec.ValidationError:
        return False
    return True


def made(prefix: Path, rewritten: frozenset[str]) -> dict[str, bytes]:
    """Files of `conda-meta` that are not held as they are, since they hold times, channels with tokens, or values of variables.

    By path relative to the prefix, with what is held in their place: `history` empty, `state` without variables (those
    that are held are the image's own, `variables`), the record of a package that is no artifact without anything that may
    have a URL in it. `rewritten`: records that come with their packages.
    """
    found = {f"{META}/history": b""}
    if (prefix / META / "state").exists():
        found[f"{META}/state"] = b'{"env_vars": {}, "version": 1}\n'
    for name in _names(prefix / META):
        path = f"{META}/{name}"
        if path not in rewritten:
            found[path] = _bare(prefix / path)
    return found


def _bare(path: Path) -> bytes:
    """A record without its URLs and paths; one that is no record becomes empty."""
    try:
        said = _read(path)
    except _Bad:
        return b"{}\n"
    kept = {
        key: value
        for key, value in sorted(said.items())
        if key in ("name", "version", "build", "build_number", "subdir", "depends", "constrains", "noarch", "fn", "files")
        and redact.line(json.dumps(value)) == json.dumps(value)
    }
    return (json.dumps(kept, indent=2) + "\n").encode()
