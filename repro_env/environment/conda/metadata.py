"""Read the conda packages of an environment from `conda-meta/*.json`. Conda itself is not needed."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from repro_env.environment.python.distributions import InstalledDistribution, Scan
from repro_env.environment.system.tree import list_names
from repro_env.io.files import read_regular, read_text
from repro_env.schema import codec, redact
from repro_env.schema.environment import Variable
from repro_env.schema.text import CondaFile, CondaName, EnvName, Line, RelPath

META = "conda-meta"
MAX_RECORD = 256 << 20
"""Maximum bytes of one record, enough for about 500 000 files."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MD5 = re.compile(r"[0-9a-f]{32}")
_ACTIVATE = "etc/conda/activate.d"
_EXPORT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=", re.MULTILINE)
_MAX_SCRIPT = 1 << 20


class Record(msgspec.Struct, frozen=True):
    """One installed package."""

    name: CondaName
    version: Line
    build: Line
    filename: CondaFile
    sha256: str
    """Of the archive, in hex; empty when not recorded."""
    md5: str
    """Of the archive, in hex; empty when not recorded."""
    size: int
    """Of the archive, in bytes; -1 when not recorded."""
    url: str
    """The URL as recorded, which may contain a token."""
    archive: str
    """Path of the archive in the package cache; empty when not recorded."""
    path: RelPath
    """Path of the record itself, relative to the prefix."""
    files: dict[str, str]
    """Path of each installed file, relative to the prefix -> sha256 (hex) as it was linked, or empty."""

    @property
    def shown_url(self) -> str:
        """The URL without credentials and tokens."""
        return redact.url(self.url)


class Meta(msgspec.Struct, frozen=True):
    """The content of `conda-meta`."""

    records: tuple[Record, ...]
    """Sorted by name; each name once."""
    problems: tuple[str, ...]
    """Records that cannot be used, and why: one line each, sorted. The files of these packages count as unpackaged."""

    def library_owners(self, prefix: str) -> dict[str, str]:
        """Return the owner of each shared library: real path -> `conda <name> <version>`."""
        root = os.path.realpath(prefix)
        return {
            f"{root}/{path}": f"conda {record.name} {record.version}"
            for record in self.records
            for path in record.files
            if ".so" in path.rpartition("/")[2]
        }

    def owns(self, dist: InstalledDistribution) -> bool:
        """Whether a conda package installed this distribution. It is false if pip installed it, even over a conda package."""
        path = f"{dist.facts.dist_info}/{'RECORD' if dist.facts.has_record else 'METADATA'}"
        record = next((record for record in self.records if path in record.files), None)
        if record is None:
            return False
        linked = record.files[path]
        return not dist.facts.has_record or linked in ("", hashlib.sha256(dist.record).hexdigest())


class _InvalidRecordError(Exception):
    """The reason why a file is not a valid record."""


def read(prefix: Path) -> Meta:
    """Read every record of an environment. A record with unexpected content is listed as a problem."""
    by_name: dict[str, list[Record]] = {}
    problems = []
    for name in _names(prefix / META):
        shown = redact.line(f"{META}/{name}")
        try:
            record = _record(prefix, name)
        except _InvalidRecordError as reason:
            problems.append(f"{shown}: {reason}")
        else:
            by_name.setdefault(record.name, []).append(record)
    for name, records in list(by_name.items()):
        if len(records) > 1:
            problems += [f"{record.path}: {name} has {len(records)} records" for record in records]
            del by_name[name]
    return Meta(tuple(by_name[name][0] for name in sorted(by_name)), tuple(sorted(problems)))


def _names(directory: Path) -> list[str]:
    return [name for name in list_names(str(directory)) if name.endswith(".json")]


def _record(prefix: Path, name: str) -> Record:
    record = _read(prefix / META / name)
    filename = record.get("fn") or str(record.get("url", "")).rpartition("/")[2]
    if isinstance(filename, str) and not filename.endswith((".conda", ".tar.bz2")):
        filename += ".conda" if str(record.get("url", "")).endswith(".conda") else ".tar.bz2"
    fields = {
        "name": record.get("name"),
        "version": record.get("version"),
        "build": record.get("build", record.get("build_string")),
        "filename": filename,
        "sha256": _digest(record.get("sha256"), _SHA256),
        "md5": _digest(record.get("md5"), _MD5),
        "size": record["size"] if isinstance(record.get("size"), int) else -1,
        "url": _text(record.get("url")),
        "archive": _text(record.get("package_tarball_full_path")),
        "path": f"{META}/{name}",
        "files": dict(_files(record)),
    }
    try:
        return msgspec.convert(fields, Record)
    except msgspec.ValidationError as error:
        raise _InvalidRecordError(redact.line(str(error))) from None


def _digest(value: object, pattern: re.Pattern[str]) -> str:
    return value.lower() if isinstance(value, str) and pattern.fullmatch(value.lower()) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) < 4000 else ""


def _files(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (path, sha256 or empty) of each file. A path may be repeated; its last row is the most complete."""
    for path in record["files"] if isinstance(record.get("files"), list) else ():
        if _is_below(path):
            yield path, ""
    data = record.get("paths_data")
    rows = data.get("paths") if isinstance(data, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and _is_below(path := row.get("_path")):
            yield str(path), _digest(row.get("sha256_in_prefix") or row.get("sha256"), _SHA256)


def _is_below(path: object) -> bool:
    return isinstance(path, str) and not path.startswith("/") and ".." not in path.split("/")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_regular(path, MAX_RECORD)
    except OSError as error:
        raise _InvalidRecordError(f"cannot be read: {error.strerror}") from None
    try:
        record = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise _InvalidRecordError("is not valid JSON") from None
    if not isinstance(record, dict):
        raise _InvalidRecordError("is not a JSON object")
    return record


def exclude_conda(scanned: Scan, meta: Meta) -> Scan:
    """Return the scan without the distributions that conda packages installed."""
    distributions = tuple(dist for dist in scanned.distributions if not meta.owns(dist))
    return msgspec.structs.replace(scanned, distributions=distributions)


def unrelated_directories(prefix: Path) -> tuple[str, ...]:
    """Return directories below the prefix of a base environment that are not part of it, relative to the prefix.

    These are other environments (`envs`) and the package cache (`pkgs`). In any other environment, directories with
    these names belong to the environment and are not returned.
    """
    directories = []
    if (prefix / "pkgs" / "urls.txt").is_file() or (prefix / "pkgs" / "urls").is_file():
        directories.append("pkgs")
    envs = prefix / "envs"
    is_base = any((prefix / "condabin" / name).exists() for name in ("conda", "mamba"))
    if (is_base and envs.is_dir()) or any((envs / name / META).is_dir() for name in list_names(str(envs))):
        directories.append("envs")
    return tuple(sorted(directories))


def variables(prefix: Path, environ: Mapping[str, str]) -> tuple[Variable, ...]:
    """Return the variables that activating the environment sets, sorted by name.

    `CONDA_PREFIX` and `CONDA_DEFAULT_ENV` are always included. Variables that the scripts of `etc/conda/activate.d` assign
    or that `conda env config vars` keeps in `conda-meta/state` are included if the caller's value is a path below the
    prefix. Such a variable says where a package's own files are, and the image has them at the same path.
    """
    default = environ.get("CONDA_DEFAULT_ENV", "") if environ.get("CONDA_PREFIX") == str(prefix) else ""
    values = {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": default if default and _is_plain(default) else str(prefix)}
    names = {*_script_variables(prefix), *_state_variables(prefix)}
    for name in sorted(names - {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "PS1", *values}):
        value = environ.get(name, "")
        parts = value.split(":")
        is_below = any(part == str(prefix) or part.startswith(f"{prefix}/") for part in parts)
        if is_below and _is_plain(value) and all(not part or part.startswith("/") for part in parts):
            values[name] = value
    return tuple(Variable(name=name, value=values[name]) for name in sorted(values) if codec.fits(name, EnvName))


def _script_variables(prefix: Path) -> Iterator[str]:
    directory = (prefix / _ACTIVATE).resolve()
    for name in list_names(str(directory)):
        if name.endswith(".sh"):
            yield from _EXPORT.findall(read_text(directory / name, _MAX_SCRIPT))


def _state_variables(prefix: Path) -> Iterator[str]:
    try:
        state = _read(prefix / META / "state")
    except _InvalidRecordError:
        return
    names = state.get("env_vars")
    yield from (name for name in names if isinstance(name, str)) if isinstance(names, dict) else ()


def _is_plain(value: str) -> bool:
    return redact.line(value) == value


def replaced_files(prefix: Path, rewritten: frozenset[str]) -> dict[str, bytes]:
    """Return replacements for files of `conda-meta` that contain times, channels with tokens, or values of variables.

    The keys are paths relative to the prefix. `history` becomes empty, and `state` loses its variables, because the image
    sets those of `variables` itself. The record of a package without an artifact loses everything that may contain a URL.
    `rewritten`: the records that are installed with their packages, which need no replacement.
    """
    files = {f"{META}/history": b""}
    if (prefix / META / "state").exists():
        files[f"{META}/state"] = b'{"env_vars": {}, "version": 1}\n'
    for name in _names(prefix / META):
        path = f"{META}/{name}"
        if path not in rewritten:
            files[path] = _without_urls(prefix / path)
    return files


def _without_urls(path: Path) -> bytes:
    """Return a record with only its name and version, or an empty record if it is not valid."""
    try:
        record = _read(path)
    except _InvalidRecordError:
        return b"{}\n"
    fields = {key: redact.line(str(record[key])) for key in ("build", "name", "subdir", "version") if key in record}
    return (json.dumps(fields, indent=2) + "\n").encode()
