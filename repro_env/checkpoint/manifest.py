"""Write, read and check `manifest.json`, which describes the content and the origin of a checkpoint."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional, Union

from repro_env.checkpoint import files, ranks
from repro_env.checkpoint.errors import CheckpointError
from repro_env.checkpoint.files import File

SCHEMA = "repro-env/checkpoint/1"
_TYPES: dict[str, Any] = {
    "serial": int,
    "step": int,
    "epoch": int,
    "batch": (int, type(None)),
    "loader": (dict, type(None)),
    "run": str,
    "metrics": dict,
    "data": dict,
    "splits": dict,
    "parts": dict,
    "files": dict,
    "world": dict,
}
_SHOWN = 5
"""Number of split members that an error lists."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Valid file names. None of them refers to another directory."""


class OtherVersionError(CheckpointError):
    """A version of repro-env with another schema wrote the checkpoint. It is not damaged, so it must not be skipped."""


class Opened(NamedTuple):
    """A checkpoint with its verified manifest."""

    path: str
    facts: dict[str, Any]
    sha256: str
    """Of the manifest, hexadecimal without a prefix."""

    def file(self, name: str) -> File:
        entry = self.facts["files"].get(name)
        if entry is None:
            where = os.path.join(self.path, name)
            raise CheckpointError("this file is not in the checkpoint", where=where, hint="use another checkpoint")
        return File(str(entry["sha256"]), int(entry["size"]))

    def read(self, name: str) -> bytearray:
        """Return the verified content of a file. Raises `CheckpointError`."""
        return files.read(os.path.join(self.path, name), self.file(name))

    def metric(self, name: str) -> float:
        """Return the value of a metric; NaN if the checkpoint does not have it."""
        return float(self.facts["metrics"].get(name, "nan"))


def write(path: str, facts: Mapping[str, Any]) -> None:
    """Write the manifest and the checksums of all files, including the manifest."""
    text = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    sums = {name: entry["sha256"] for name, entry in facts["files"].items()}
    sums[files.MANIFEST] = files.write(os.path.join(path, files.MANIFEST), [text]).sha256
    lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    files.write(os.path.join(path, files.SUMS), [lines.encode()])


def read(path: str) -> Opened:
    """Read and verify the manifest of a checkpoint, but not its other files. Raises `CheckpointError`."""
    where = os.path.join(path, files.MANIFEST)
    try:
        data = files.small(where)
        sums = files.small(os.path.join(path, files.SUMS)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"this checkpoint cannot be read: {error}", where=path) from error
    digest = hashlib.sha256(data).hexdigest()
    if f"{digest}  {files.MANIFEST}\n" not in sums:
        raise CheckpointError(f"this file changed after it was written: its sha256 differs from {files.SUMS}", where=where)
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("this file is not valid JSON", where=where) from error
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        schema = facts.get("schema") if isinstance(facts, dict) else None
        raise OtherVersionError(
            f"this checkpoint has the schema {schema!r}, but this version of repro-env only supports {SCHEMA!r}",
            where=where,
            hint="resume with the version of repro-env that wrote it, or use another directory",
        )
    invalid = _invalid_entry(facts)
    if invalid:
        raise CheckpointError(f"{invalid} is missing or has the wrong type", where=where, hint="use another checkpoint")
    return Opened(path, facts, digest)


def _invalid_entry(facts: dict[str, Any]) -> str:
    """Return the name of the first invalid entry of a manifest, or an empty string. The manifest may be untrusted."""
    for name, kind in _TYPES.items():
        if not isinstance(facts.get(name), kind) or isinstance(facts[name], bool):
            return name
    for name, entry in facts["files"].items():
        valid = isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and type(entry.get("size")) is int
        if not valid or not _PLAIN.fullmatch(name):
            return f"files[{name!r}]"
    for name, file in facts["parts"].items():
        if not isinstance(file, str) or file not in facts["files"]:
            return f"parts[{name!r}]"
    for name, value in facts["metrics"].items():
        if isinstance(value, bool) or not (isinstance(value, (int, float)) or value in ("nan", "inf", "-inf")):
            return f"metrics[{name!r}]"
    return ""


def check(opened: Opened) -> None:
    """Check that every file exists and has its sha256. Raises `CheckpointError` for the first that does not."""
    for name in sorted(opened.facts["files"]):
        path, expected = os.path.join(opened.path, name), opened.file(name)
        try:
            found = files.digest(path)
        except OSError as error:
            raise CheckpointError(f"this file cannot be read: {error.strerror or error}", where=path) from error
        if found != expected:
            raise CheckpointError("this file changed after it was written: its sha256 differs", where=path)


def check_about(about: Mapping[str, Any]) -> None:
    """Check, before the training starts, that its data, splits and recipe can be written as JSON. Raises `CheckpointError`."""
    for name, value in about.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:  # noqa: PERF203 - each on its own
            raise CheckpointError(
                f"this argument cannot be written as JSON: {error}",
                where=name,
                hint="use only text, finite numbers, lists and dicts",
            ) from error


def number(name: str, value: Any) -> Union[float, int, str]:
    """Return a metric as a number, or as text if it is not finite, as JSON requires. Raises `CheckpointError`."""
    try:
        value = value.item() if hasattr(value, "item") else value  # of a tensor or NumPy
        plain = value if isinstance(value, int) and not isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        what = f"a metric must be a single number: {error}"
        raise CheckpointError(what, where=f"metric {name}", hint="pass a number, or a tensor with one element") from error
    if isinstance(plain, int) or math.isfinite(plain):
        return plain
    return "nan" if math.isnan(plain) else "inf" if plain > 0 else "-inf"


def origin() -> dict[str, Any]:
    """Describe this process: the time, its run, code, image, seeds and versions. Facts that are not available are None."""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    master = os.environ.get("REPRO_ENV_SEED", "")
    from repro_env.version import __version__

    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    return {
        "created": now.replace("+00:00", "Z"),
        "run": os.environ.get("REPRO_ENV_RUN", ""),
        "code": {"digest": os.environ.get("REPRO_ENV_CODE") or None, "script": _script()},
        "image": os.environ.get("REPRO_ENV_IMAGE") or None,
        "spec": os.environ.get("REPRO_ENV_SPEC") or None,
        "seeds": {
            "master": int(master) if master.isdigit() else None,
            "torch": torch.initial_seed() if torch is not None else None,
        },
        "world": {"size": ranks.size(), "backend": ranks.backend()},
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__) if torch is not None else None,
            "numpy": str(numpy.__version__) if numpy is not None else None,
            "repro-env": __version__,
        },
    }


def _script() -> Optional[dict[str, str]]:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return None
    try:
        return {"path": str(path), "sha256": files.digest(path).sha256}
    except OSError:
        return None


def data() -> dict[str, str]:
    """Return path -> digest of the `--data` of this run; empty if this is not a run."""
    return dict(json.loads(os.environ.get("REPRO_ENV_DATA") or "{}"))


def splits(members_by_name: Mapping[str, Iterable[Any]]) -> dict[str, dict[str, Any]]:
    """Return the count and the sha256 of the members of each split. They can be numbers, text, or other values with a text.

    Raises `CheckpointError` if two splits share members.
    """
    result: dict[str, dict[str, Any]] = {}
    texts: dict[str, set[str]] = {}
    for name, members in members_by_name.items():
        digest, count = hashlib.sha256(), 0
        texts[name] = set()
        plain = getattr(members, "tolist", None)  # of a tensor or array
        for member in plain() if callable(plain) else members:
            digest.update(f"{member}\n".encode())
            texts[name].add(str(member))
            count += 1
        result[name] = {"count": count, "sha256": digest.hexdigest()}
    for first, second in itertools.combinations(texts, 2):
        shared = sorted(texts[first] & texts[second], key=lambda text: (len(text), text))
        if shared:
            listed = ", ".join(shared[:_SHOWN]) + (f" and {len(shared) - _SHOWN} more" if len(shared) > _SHOWN else "")
            raise CheckpointError(
                f"the splits {first!r} and {second!r} overlap: both hold {listed}",
                where="splits",
                hint="put each member into one split; if the splits index different data sets, use names such as 'test/17'",
            )
    return result


def changed(name: str, saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """List, as sentences, the `data` or `splits` of a checkpoint that differ or are missing in this process.

    Data may be at a different path. Missing data are reported only in a run, where all mounts are listed in REPRO_ENV_DATA.
    """
    is_run = bool(os.environ.get("REPRO_ENV_RUN"))
    problems = []
    for key, value in sorted(saved.items()):
        if key in current and current[key] != value:
            problems.append(f"{name} {key} changed since the checkpoint was written")
        elif key not in current and is_run and key.startswith("/") and value not in current.values():
            problems.append(f"{name} {key} of the checkpoint is missing in this run")
    return problems


def note(opened: Opened) -> None:
    """Report to the run's record (REPRO_ENV_REPORTS) from which checkpoint it resumes."""
    path = os.environ.get("REPRO_ENV_REPORTS")
    if not path:
        return
    fact = {"run": opened.facts["run"], "path": opened.path, "sha256": opened.sha256, "step": opened.facts["step"]}
    text = json.dumps({"resumed": fact}, sort_keys=True).encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)
