"""What a checkpoint's manifest says (`repro_env.checkpoint`), and what a safetensors file says of itself.

Both are claims of whoever wrote the file: nothing here is proven, and a hostile file raises nothing but our own errors.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.io.files import open_regular, read_regular
from repro_env.model import codec
from repro_env.model.errors import RecordError

NAME = "manifest.json"
FAMILY = "repro-env/checkpoint"
_LARGEST = 16 << 20
"""Bytes of a manifest that is read."""
_HEADER = 100_000_000
"""Bytes of a safetensors header at most (safetensors format, "DOS protection")."""
_NAMES, _TEXT = 100, 2_000
"""How much a file may say of itself: so many names, so many characters each."""
_FOLDERS = 5_000
"""Folders that are looked into for manifests, below one."""
_DEPTH = 8


class Kept(msgspec.Struct, frozen=True):
    """A file of a checkpoint."""

    sha256: str
    """Bare hexadecimal."""
    size: int


class Before(msgspec.Struct, frozen=True):
    """The checkpoint that this one's process went on from."""

    run: str
    """Empty where it was made outside of a run."""
    path: str
    sha256: str
    step: int


class Script(msgspec.Struct, frozen=True):
    path: str
    sha256: str


class Code(msgspec.Struct, frozen=True):
    digest: str | None = None
    """Of the source's tree, as a run's record has it."""
    script: Script | None = None


class Seeds(msgspec.Struct, frozen=True):
    master: int | None = None
    torch: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    """Fields that other versions add are left out."""

    schema: str
    step: int
    run: str
    """Id of the run that wrote it; empty outside of one."""
    files: dict[str, Kept]
    """By name within the checkpoint's folder."""
    created: str = ""
    epoch: int | None = None
    batch: int | None = None
    parent: Before | None = None
    code: Code = Code()
    data: dict[str, str] = {}
    splits: dict[str, msgspec.Raw] = {}
    image: str | None = None
    spec: str | None = None
    seeds: Seeds = Seeds()
    parts: dict[str, str] = {}


class Found(msgspec.Struct, frozen=True):
    path: Path
    sha256: str
    """Of the manifest itself, bare hexadecimal."""
    manifest: Manifest


def read(path: Path) -> Found | None:
    """The manifest in a file; None where there is none, or it is something else of that name.

    Raises `SpecError` for one that is damaged, `SpecVersionError` for a newer one, `RecordError` for one that cannot be read.
    """
    try:
        if path.is_dir():
            return None
        data = read_regular(path, _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EINVAL) and not path.is_symlink():  # too large, or a pipe
            return None
        raise RecordError(f"cannot be read: {error.strerror}", where=str(path), hint="make it readable for you") from None
    if f'"{FAMILY}/'.encode() not in data:
        return None
    codec.schema_of(data, family=FAMILY, newest=1, where=str(path))
    return Found(path, hashlib.sha256(data).hexdigest(), codec.decode(data, Manifest, where=str(path)))


def beside(file: Path) -> Found | None:
    """The manifest in a file's folder, if it speaks of the file. Raises as `read`."""
    found = read(file.parent / NAME)
    return found if found is not None and file.name in found.manifest.files else None


def below(folder: Path) -> tuple[tuple[Path, ...], bool]:
    """Every file below a folder that has a manifest's name, not through symlinks; and whether all folders were looked into."""
    found: list[Path] = []
    left = _FOLDERS
    whole = True
    todo = [(folder, 0)]
    while todo and left:
        here, depth = todo.pop()
        left -= 1
        try:
            with os.scandir(here) as listing:
                items = sorted(listing, key=lambda item: item.name, reverse=True)
        except FileNotFoundError:
            continue
        except OSError:
            whole = False
            continue
        found += [here / NAME for item in items if item.name == NAME and item.is_file(follow_symlinks=False)]
        folders = [(here / item.name, depth + 1) for item in items if item.is_dir(follow_symlinks=False)]
        if depth < _DEPTH:
            todo += folders
        else:
            whole = whole and not folders
    return tuple(found), whole and not todo


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def metadata(file: Path) -> Mapping[str, str]:
    """What a safetensors file says of itself (`__metadata__`); nothing where it is none.

    The format: eight bytes, the little-endian length of the JSON that follows.
    """
    try:
        with os.fdopen(open_regular(file), "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            size = os.fstat(opened.fileno()).st_size
            if not 2 <= length <= min(_HEADER, size - 8):
                return {}
            said = msgspec.json.decode(opened.read(length), type=_Header).metadata
            return {name[:_TEXT]: said[name][:_TEXT] for name in sorted(said)[:_NAMES]}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
