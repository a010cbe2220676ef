"""`manifest.json`: what a checkpoint holds, and what it came from. And whether its files are still those."""

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
"""Members that an error names."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Names of files: none leaves the folder."""


class OtherVersionError(CheckpointError):
    """A good checkpoint, of a version of this package that has another schema: none to pass over."""


class Opened(NamedTuple):
    """A checkpoint of which the manifest was read and is what was written."""

    path: str
    facts: dict[str, Any]
    sha256: str
    """Of the manifest, bare hexadecimal."""

    def file(self, name: str) -> File:
        entry = self.facts["files"].get(name)
        if entry is None:
            raise CheckpointError("is not in the checkpoint", where=os.path.join(self.path, name))
        return File(str(entry["sha256"]), int(entry["size"]))

    def read(self, name: str) -> bytearray:
        """A file, checked. Raises `CheckpointError`."""
        return files.read(os.path.join(self.path, name), self.file(name))

    def metrics(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.facts["metrics"].items()}


def write(path: str, facts: Mapping[str, Any]) -> None:
    """The manifest and the sums of all files, this one too."""
    text = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    own = files.write(os.path.join(path, files.MANIFEST), [text])
    sums = {name: entry["sha256"] for name, entry in facts["files"].items()}
    sums[files.MANIFEST] = own.sha256
    lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    files.write(os.path.join(path, files.SUMS), [lines.encode()])


def read(path: str) -> Opened:
    """The manifest of a checkpoint. Raises `CheckpointError` where it is not what was written; the files are not read."""
    where = os.path.join(path, files.MANIFEST)
    try:
        data = files.small(where)
        sums = files.small(os.path.join(path, files.SUMS)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot be read: {error}", where=path) from error
    digest = hashlib.sha256(data).hexdigest()
    if f"{digest}  {files.MANIFEST}\n" not in sums:
        raise CheckpointError(f"is not what was written: {files.SUMS} has another sha256 for it", where=where)
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("is no JSON", where=where) from error
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        schema = facts.get("schema") if isinstance(facts, dict) else None
        raise OtherVersionError(
            f"has the schema {schema!r}, and this version knows {SCHEMA!r}",
            where=where,
            hint="go on with the version of repro-env that wrote it, or give another folder",
        )
    wrong = _wrong(facts)
    if wrong:
        raise CheckpointError(f"{wrong} is missing or of another type", where=where, hint="take another checkpoint")
    return Opened(path, facts, digest)


def _wrong(facts: dict[str, Any]) -> str:
    """What of a manifest that anyone may have written is not as it has to be; empty where all is."""
    for name, kind in _TYPES.items():
        if not isinstance(facts.get(name), kind) or isinstance(facts[name], bool):
            return name
    for name, entry in facts["files"].items():
        whole = isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and type(entry.get("size")) is int
        if not whole or not _PLAIN.fullmatch(name):
            return f"files[{name!r}]"
    for name, file in facts["parts"].items():
        if not isinstance(file, str) or file not in facts["files"]:
            return f"parts[{name!r}]"
    for name, value in facts["metrics"].items():
        if isinstance(value, bool) or not (isinstance(value, (int, float)) or value in ("nan", "inf", "-inf")):
            return f"metrics[{name!r}]"
    return ""


def check(opened: Opened) -> None:
    """Every file is there and has its sha256. Raises `CheckpointError` for the first that has not."""
    for name in sorted(opened.facts["files"]):
        path, expected = os.path.join(opened.path, name), opened.file(name)
        try:
            found = files.digest(path)
        except OSError as error:
            raise CheckpointError(f"cannot be read: {error.strerror or error}", where=path) from error
        if found != expected:
            raise CheckpointError("is not what was written: its sha256 is another", where=path)


def check_about(about: Mapping[str, Any]) -> None:
    """What a script says of its data and recipe can be written. Raises `CheckpointError`: before the training, not after hours."""
    for name, value in about.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:  # noqa: PERF203 - each on its own
            raise CheckpointError(
                f"cannot be written as JSON: {error}", where=name, hint="give text, finite numbers, lists and dicts"
            ) from error


def number(name: str, value: Any) -> Union[float, int, str]:
    """A metric; JSON has no name for what is not finite. Raises `CheckpointError`."""
    try:
        value = value.item() if hasattr(value, "item") else value  # of a tensor or NumPy
        plain = value if isinstance(value, int) and not isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"is no number: {error}", where=f"the metric {name}", hint="give one number") from error
    if isinstance(plain, int) or math.isfinite(plain):
        return plain
    return "nan" if math.isnan(plain) else "inf" if plain > 0 else "-inf"


def now() -> str:
    """UTC, with milliseconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def origin() -> dict[str, Any]:
    """What this process is: its run, code, image, seeds, versions. None for what cannot be known from inside."""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    master = os.environ.get("REPRO_ENV_SEED", "")
    from repro_env import __version__

    return {
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
    """Path -> digest of the `--data` of this run; empty outside of a run."""
    return dict(json.loads(os.environ.get("REPRO_ENV_DATA") or "{}"))


def splits(given: Mapping[str, Iterable[Any]]) -> dict[str, dict[str, Any]]:
    """Count and sha256 of the members of each split, in their order: numbers, text, or what has such a text.

    Raises `CheckpointError` for two splits that share members.
    """
    found: dict[str, dict[str, Any]] = {}
    texts: dict[str, set[str]] = {}
    for name, members in given.items():
        digest, count = hashlib.sha256(), 0
        texts[name] = set()
        plain = getattr(members, "tolist", None)  # of a tensor or array
        for member in plain() if callable(plain) else members:
            digest.update(f"{member}\n".encode())
            texts[name].add(str(member))
            count += 1
        found[name] = {"count": count, "sha256": digest.hexdigest()}
    for first, second in itertools.combinations(texts, 2):
        shared = sorted(texts[first] & texts[second], key=lambda text: (len(text), text))
        if shared:
            shown = ", ".join(shared[:_SHOWN]) + (f" and {len(shared) - _SHOWN} more" if len(shared) > _SHOWN else "")
            raise CheckpointError(
                f"the splits {first!r} and {second!r} overlap: both hold {shown}",
                where="splits",
                hint="put each member into one split; if the splits index different data sets, use names such as 'test/17'",
            )
    return found


def changed(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List, as sentences, the `data` or `splits` of a checkpoint that differ or are missing in this process.

    Data may be at a different path. Missing data are reported only in a run, where all mounts are listed in REPRO_ENV_DATA.
    """
    is_run = bool(os.environ.get("REPRO_ENV_RUN"))
    problems = []
    for key, value in sorted(then.items()):
        if key in now and now[key] != value:
            problems.append(f"{name} {key} changed since the checkpoint was written")
        elif key not in now and is_run and key.startswith("/") and value not in now.values():
            problems.append(f"{name} {key} of the checkpoint is missing in this run")
    return problems


def note(opened: Opened) -> None:
    """Tell the run's record (REPRO_ENV_NOTES) which checkpoint it goes on from."""
    path = os.environ.get("REPRO_ENV_NOTES")
    if not path:
        return
    fact = {"run": opened.facts["run"], "path": opened.path, "sha256": opened.sha256, "step": opened.facts["step"]}
    text = json.dumps({"resumed": fact}, sort_keys=True).encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)
