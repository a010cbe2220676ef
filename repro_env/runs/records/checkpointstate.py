"""Lists of the files in `--checkpoints` directories, before and after a run. The files are the user's; no run copies them.

The lists are next to the record, in `checkpoints-before.json` and `checkpoints-after.json`, and the record has their
digests. The first list allows a rerun to start from the same files, as long as they still exist. The second list
shows the files that the run left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from repro_env.io.files import Found, digest_of, read_regular, room, sha256_of, walk
from repro_env.runs.records.files import write_once
from repro_env.runs.records.records import LARGEST, Run
from repro_env.schema import codec, redact
from repro_env.schema.artifact import Size
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import DataError, RecordError, ReproEnvError, os_errors_as
from repro_env.schema.run import Mount
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE
from repro_env.schema.text import AbsPath, Digest, Line, RelPath

if TYPE_CHECKING:
    from repro_env.store.store import Store


class CheckpointFile(Frozen, frozen=True, kw_only=True):
    """A file in a checkpoint directory."""

    target: AbsPath
    """The mount's path in the run."""
    path: RelPath | Literal[""]
    """Relative to the mount; empty if the mount is itself a file."""
    sha256: Digest
    size: Size

    @property
    def shown(self) -> str:
        return f"{self.target}/{self.path}" if self.path else self.target


class CheckpointLink(Frozen, frozen=True, kw_only=True):
    """A symbolic link in a checkpoint directory."""

    target: AbsPath
    """The mount's path in the run."""
    path: RelPath
    to: Line

    @property
    def shown(self) -> str:
        return f"{self.target}/{self.path}"


_Entry = TypeVar("_Entry", CheckpointFile, CheckpointLink)


class Listing(Frozen, frozen=True, kw_only=True):
    schema: Literal["repro-env/checkpoints/1"] = "repro-env/checkpoints/1"
    files: tuple[CheckpointFile, ...]
    """Sorted by target and path."""
    links: tuple[CheckpointLink, ...]
    """Sorted by target and path."""
    special_files: tuple[Line, ...]
    """Special files, and what could not be read or recorded: `<path> (why)`, sorted."""


def scan(mounts: Sequence[Mount], store: Store) -> Listing | None:
    """List the current files of all checkpoint mounts; None without such mounts. Never raises: problems are listed.

    A file that was hashed before and has not changed is not read again.
    """
    checkpoints = sorted((mount for mount in mounts if mount.kind == "checkpoints"), key=lambda mount: mount.target)
    if not checkpoints:
        return None
    files: list[CheckpointFile] = []
    links: list[CheckpointLink] = []
    others: list[str] = []
    for mount in checkpoints:
        root = Path(mount.source)
        try:
            if not root.is_dir():
                sha256 = f"sha256:{sha256_of(root)}"
                files.append(CheckpointFile(target=mount.target, path="", sha256=sha256, size=root.stat().st_size))
                continue
            entries = list(walk(root))
            digests = store.hashes.of(root, [entry for entry in entries if entry.kind == "file"])
        except (OSError, ReproEnvError) as error:
            others.append(redact.line(f"{mount.target} ({error.strerror if isinstance(error, OSError) else error})"))
            continue
        for entry in entries:
            if entry.kind == "dir":
                continue
            if not _is_recordable(entry):
                others.append(redact.line(f"{mount.target}/{entry.path} (its name cannot be recorded)"))
            elif entry.kind == "file":
                sha256 = f"sha256:{digests[entry.path]}"
                files.append(CheckpointFile(target=mount.target, path=entry.path, sha256=sha256, size=entry.size))
            elif entry.kind == "link":
                links.append(CheckpointLink(target=mount.target, path=entry.path, to=entry.target))
            else:
                others.append(redact.line(f"{mount.target}/{entry.path} (not a regular file)"))
    return Listing(files=tuple(_sort(files)), links=tuple(_sort(links)), special_files=tuple(sorted(others)))


def _sort(entries: Sequence[_Entry]) -> list[_Entry]:
    return sorted(entries, key=lambda entry: (entry.target, entry.path))


def _is_recordable(entry: Found) -> bool:
    """Whether a record can contain the name and the link target unchanged."""
    return all(redact.line(text) == text for text in (entry.path, entry.target if entry.kind == "link" else ""))


def digest(listing: Listing | None) -> str | None:
    """Return the sha256 of the file that `write` creates for a list."""
    return None if listing is None else codec.digest_of(codec.pretty(listing))


def write(run_directory: Path, name: str, listing: Listing | None) -> None:
    """Write a list to a run directory; nothing if it is None."""
    if listing is not None:
        write_once(run_directory / name, codec.pretty(listing), "the list of checkpoints")


def read(run_directory: Path, name: str, expected: str | None) -> Listing | None:
    """Read a list of a run and compare its digest with the recorded one; None if the record has no digest.

    Raises `RecordError` if it is missing or changed, `SpecError` if it is not such a list.
    """
    if expected is None:
        return None
    path = run_directory / name
    hint = "restore it from a backup"
    with os_errors_as(RecordError, "this file cannot be read", where=path, hint=hint):
        data = read_regular(path, LARGEST)
    if codec.digest_of(data) != expected:
        raise RecordError("this file changed since the run", where=str(path), hint=hint)
    return codec.decode(data, Listing, where=str(path))


def copy_files(listing: Listing, mounts: Sequence[Mount], to: Path) -> tuple[list[Mount], list[str]]:
    """Copy the files of each mount that are still unchanged to a private directory below `to`.

    Returns mounts of the copies, and one line for each file that is missing or changed: a rerun cannot start from the same
    files then. Raises `DataError` if a file cannot be copied, `DiskError`.
    """
    from repro_env.sandbox.workspace import copy_file

    copies: list[Mount] = []
    problems = [f"{line}: it could not be recorded before the run" for line in listing.special_files]
    for number, mount in enumerate(mounts):
        directory = to.resolve() / str(number)
        files = [file for file in listing.files if file.target == mount.target]
        hint = "check its permissions"
        with os_errors_as(DataError, "this directory cannot be copied", where=mount.source, hint=hint), room(to):
            if not any(file.path == "" for file in files):
                directory.mkdir(parents=True)
            for file in files:
                original = Path(mount.source, file.path)
                current = digest_of(original)
                if current != file.sha256:
                    problems.append(
                        f"{file.shown} existed before the run and {'has changed since' if current else 'is missing now'}"
                    )
                    continue
                copy = directory / file.path
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy_file(original, copy)
                if digest_of(copy) != file.sha256:
                    problems.append(f"{file.shown} changed while it was copied")
            for link in (link for link in listing.links if link.target == mount.target):
                copy = directory / link.path
                copy.parent.mkdir(parents=True, exist_ok=True)
                if copy.parent.resolve() != copy.parent:
                    problems.append(f"{link.shown} is inside another symbolic link")
                    continue
                copy.symlink_to(link.to)
        copies.append(msgspec.structs.replace(mount, source=str(directory)))
    return copies, problems


def changed_files(before: Listing | None, after: Listing | None) -> dict[str, CheckpointFile]:
    """Return the files that a run created or changed in its checkpoint directories, by their path in the run."""
    if after is None:
        return {}
    old = {file.shown: file.sha256 for file in before.files} if before is not None else {}
    return {file.shown: file for file in after.files if old.get(file.shown) != file.sha256}


def written_files(run: Run) -> tuple[CheckpointFile, ...]:
    """Return the files that a run created or changed in its checkpoint directories; empty if a list cannot be read.

    The run probably wrote them, but this is not proven: another process may have written them at the same time.
    """
    if run.end is None:
        return ()
    try:
        before = read(run.directory, CHECKPOINTS_BEFORE, run.start.checkpoints_before)
        after = read(run.directory, CHECKPOINTS_AFTER, run.end.checkpoints_after)
    except ReproEnvError:
        return ()
    return tuple(changed_files(before, after).values())
