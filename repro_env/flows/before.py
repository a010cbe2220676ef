"""What lies in the folders of `--checkpoints` before a run and after it: they are the user's own, and no run keeps a copy.

The lists stand beside the record, `checkpoints-before.json` and `checkpoints-after.json`, and the record has their
digests. With the first one a run can be repeated from what it started from, as long as the files are still there; with
the second one what it left there can be compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from repro_env.catalog.records import LARGEST
from repro_env.io.files import Found, atomic_write, read_regular, room, sha256_of, walk
from repro_env.model import codec, redact
from repro_env.model.artifact import Size
from repro_env.model.codec import Frozen
from repro_env.model.errors import DataError, RecordError, ReproEnvError
from repro_env.model.run import Mount
from repro_env.model.text import AbsPath, Digest, Line, RelPath
from repro_env.store.store import Store

BEFORE = "checkpoints-before.json"
AFTER = "checkpoints-after.json"


class Held(Frozen, frozen=True, kw_only=True):
    """A file in a folder of checkpoints."""

    target: AbsPath
    """Of the mount, as the run saw it."""
    path: RelPath | Literal[""]
    """In it; empty where the mount is itself a file."""
    sha256: Digest
    size: Size

    @property
    def shown(self) -> str:
        return f"{self.target}/{self.path}" if self.path else self.target


class Link(Frozen, frozen=True, kw_only=True):
    """A symbolic link in a folder of checkpoints."""

    target: AbsPath
    """Of the mount, as the run saw it."""
    path: RelPath
    to: Line

    @property
    def shown(self) -> str:
        return f"{self.target}/{self.path}"


_Entry = TypeVar("_Entry", Held, Link)


class Listing(Frozen, frozen=True, kw_only=True):
    schema: Literal["repro-env/checkpoints/1"] = "repro-env/checkpoints/1"
    files: tuple[Held, ...]
    """Sorted by target and path."""
    links: tuple[Link, ...]
    """Sorted likewise."""
    others: tuple[Line, ...]
    """What is neither, or could not be read or named, `<path> (why)`; sorted."""


def take(mounts: Sequence[Mount], store: Store) -> Listing | None:
    """What is there now; None without a mount of checkpoints. Never raises: what cannot be read is said.

    A file that was hashed before and has the same key is not read again.
    """
    wanted = sorted((one for one in mounts if one.kind == "checkpoints"), key=lambda one: one.target)
    if not wanted:
        return None
    files: list[Held] = []
    links: list[Link] = []
    others: list[str] = []
    for mount in wanted:
        root = Path(mount.source)
        try:
            if not root.is_dir():
                files.append(Held(target=mount.target, path="", sha256=f"sha256:{sha256_of(root)}", size=root.stat().st_size))
                continue
            found = list(walk(root))
            digests = store.hashes.of(root, [one for one in found if one.kind == "file"])
        except (OSError, ReproEnvError) as error:
            others.append(redact.line(f"{mount.target} ({error.strerror if isinstance(error, OSError) else error})"))
            continue
        for one in found:
            if one.kind == "dir":
                continue
            if not _nameable(one):
                others.append(redact.line(f"{mount.target}/{one.path} (a name that no record holds)"))
            elif one.kind == "file":
                digest = f"sha256:{digests[one.path]}"
                files.append(Held(target=mount.target, path=one.path, sha256=digest, size=one.size))
            elif one.kind == "link":
                links.append(Link(target=mount.target, path=one.path, to=one.target))
            else:
                others.append(redact.line(f"{mount.target}/{one.path} (no plain file)"))
    return Listing(files=tuple(_ordered(files)), links=tuple(_ordered(links)), others=tuple(sorted(others)))


def _ordered(found: Sequence[_Entry]) -> list[_Entry]:
    return sorted(found, key=lambda one: (one.target, one.path))


def _nameable(one: Found) -> bool:
    """Whether a record may say it as it is."""
    return all(redact.line(text) == text for text in (one.path, one.target if one.kind == "link" else ""))


def digest(listing: Listing | None) -> str | None:
    """sha256 of the file that holds a list."""
    import hashlib

    return None if listing is None else f"sha256:{hashlib.sha256(codec.pretty(listing)).hexdigest()}"


def write(folder: Path, name: str, listing: Listing | None) -> None:
    """Put a list into a run's folder. Nothing for None."""
    if listing is not None:
        try:
            atomic_write(folder / name, codec.pretty(listing))
        except OSError as error:
            raise RecordError(f"cannot be written: {error.strerror}", where=str(folder / name), hint="free some room") from None


def read(folder: Path, name: str, expected: str | None) -> Listing | None:
    """A list of a run, which has to be the one that the record means; None where the record means none.

    Raises `RecordError`, `SpecError`.
    """
    if expected is None:
        return None
    path = folder / name
    try:
        data = read_regular(path, LARGEST)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", where=str(path), hint="restore it") from None
    listing = codec.decode(data, Listing, where=str(path))
    if digest(listing) != expected:
        raise RecordError("is not what the run recorded: it was changed since", where=str(path), hint="restore it")
    return listing


def copies(listing: Listing, mounts: Sequence[Mount], to: Path) -> tuple[list[Mount], list[str]]:
    """A private copy, below `to`, of what each folder held, from files that are still what they were.

    Returns mounts of the copies, and one line for each file that is gone or other now: then nothing can start from the
    same. Raises `DataError` when a copy cannot be made, `DiskError`.
    """
    from repro_env.run.workspace import copy_file

    made: list[Mount] = []
    problems = [f"{line}: it could not be recorded before the run" for line in listing.others]
    for number, mount in enumerate(mounts):
        here = to.resolve() / str(number)
        mine = [one for one in listing.files if one.target == mount.target]
        try:
            with room(to):
                if not any(one.path == "" for one in mine):
                    here.mkdir(parents=True)
                for one in mine:
                    there = Path(mount.source, one.path) if one.path else Path(mount.source)
                    now = _now(there)
                    if now != one.sha256:
                        problems.append(
                            f"{one.shown} was there before the run and {'is gone' if not now else 'has changed since'}"
                        )
                        continue
                    target = here / one.path if one.path else here
                    target.parent.mkdir(parents=True, exist_ok=True)
                    copy_file(there, target)
                    if _now(target) != one.sha256:
                        problems.append(f"{one.shown} changed while it was copied")
                for link in (one for one in listing.links if one.target == mount.target):
                    place = here / link.path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    if place.parent.resolve() != place.parent:
                        problems.append(f"{link.shown} would lie behind another link")
                        continue
                    place.symlink_to(link.to)
        except OSError as error:
            raise DataError(
                f"cannot be copied: {error.strerror}", where=mount.source, hint="see whether it can be read"
            ) from None
        made.append(msgspec.structs.replace(mount, source=str(here)))
    return made, problems


def _now(path: Path) -> str:
    with contextlib.suppress(OSError):
        return f"sha256:{sha256_of(path)}"
    return ""


def changed(before: Listing | None, after: Listing | None) -> dict[str, Held]:
    """What a run left in its folders of checkpoints, by the path that it saw: files that are new or other."""
    if after is None:
        return {}
    old = {one.shown: one.sha256 for one in before.files} if before is not None else {}
    return {one.shown: one for one in after.files if old.get(one.shown) != one.sha256}
