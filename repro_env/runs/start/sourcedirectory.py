"""Find the directory with the code of a spec: by default, its location relative to the spec at capture."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from repro_env.oci.entry import entries_from_notes
from repro_env.schema.errors import SourceError, UsageError
from repro_env.schema.run import SourceFact, Start
from repro_env.schema.spec import Source, Spec
from repro_env.store.specs import archive
from repro_env.store.specs.lookup import DIRECTORY, runs_directory
from repro_env.store.store import Store

_CAPTURED = "captured-here"


class SourceDirectory(msgspec.Struct, frozen=True):
    """Location of a spec's code on this machine."""

    path: Path | None
    """The directory whose code is used; None for the captured files."""
    why: str
    """Why the captured files are used; empty for a directory."""
    root: Path
    """The directory on this machine that corresponds to the captured path, whichever code is used."""

    def inside(self, path: Path, workspace: str) -> Path:
        """Map a path of this machine to its path in a run, where the source is at `workspace`. Other paths stay the same."""
        return Path(workspace, path.relative_to(self.root)) if path.is_relative_to(self.root) else path


def choose(spec: Spec, spec_directory: Path, *, store: Store, given: Path | None = None, frozen: bool = False) -> SourceDirectory:
    """Choose the code of the spec in `spec_directory`: `given` (`--source`), the captured files with `frozen`, else the directory of the code.

    The captured files are also used for a spec from a registry or an archive, and if the directory has none of the captured
    files. Raises `SourceError`, `UsageError`.
    """
    source = spec.observed.source
    if source is None:
        raise SourceError("this spec has no source", where=str(spec_directory), hint="capture again with --source DIR")
    if given is not None:
        if frozen:
            raise UsageError("--frozen and --source are mutually exclusive", where="--source", hint="omit one of them")
        if not given.is_dir():
            raise UsageError("this is not a directory", where=f"--source {given}", hint="name the directory of the code")
        return SourceDirectory(given.resolve(), "", given.resolve())
    if spec_directory.is_relative_to(store.root):
        why = "--frozen" if frozen else "an archive or a spec in a registry has no source directory"
        return SourceDirectory(None, why, Path(source.path))
    directory = default_directory(source, spec_directory)
    if not holds(source, directory):
        why = "--frozen" if frozen else f"{directory} has none of the captured files"
        return SourceDirectory(None, why, Path(source.path))
    if not (_is_contained(directory, spec_directory) or _is_captured_here(spec, store)):
        if frozen:
            return SourceDirectory(None, "--frozen", Path(source.path))
        raise SourceError(
            f"this spec names {directory} as the directory of its code, which is outside its project",
            where=str(spec_directory),
            hint=f"allow it with --source {directory}, or run the captured files with --frozen",
        )
    return SourceDirectory(None if frozen else directory, "--frozen" if frozen else "", directory)


def default_directory(source: Source, spec_directory: Path) -> Path:
    """Return the directory of the code of a spec in `spec_directory`, by its relative path at capture.

    For a spec that is kept for runs, that path is relative to the `repro` directory next to the runs.
    """
    base = spec_directory if archive.runs_of(spec_directory) is None else runs_directory(spec_directory).parent / DIRECTORY
    return Path(os.path.normpath(base / source.relative))


def holds(source: Source, directory: Path) -> bool:
    """Whether the code was captured in a directory, or the directory has at least one of the captured files."""
    if not directory.is_dir():
        return False
    paths = entries_from_notes(source.files)
    return not paths or str(directory) == source.path or any(os.path.lexists(directory / path) for path in paths)


def _is_contained(directory: Path, spec_directory: Path) -> bool:
    """Whether an untrusted spec may name this directory: it is in the project of the spec, or in its git working tree."""
    project = runs_directory(spec_directory).parent.resolve()
    top = next((path for path in (project, *project.parents) if os.path.lexists(path / ".git")), project)
    return directory.resolve().is_relative_to(top)


def is_trusted(spec: Spec, spec_directory: Path, store: Store) -> bool:
    """Whether the paths that a spec names may be read, and its programs started. An untrusted spec may name any path.

    A spec is trusted if it is in its source, where the user has put it, or if it was captured with this store.
    """
    source = spec.observed.source
    if source is None:
        return False
    is_in_source = os.path.realpath(runs_directory(spec_directory).parent) == os.path.realpath(source.path)
    return is_in_source or _is_captured_here(spec, store)


def _is_captured_here(spec: Spec, store: Store) -> bool:
    source = spec.observed.source
    return source is not None and store.facts.get(_CAPTURED, _key(spec, source)) is not None


def remember(spec: Spec, store: Store) -> None:
    """Record that this spec was captured here."""
    if spec.observed.source is not None:
        store.facts.put(_CAPTURED, _key(spec, spec.observed.source), b"captured")


def _key(spec: Spec, source: Source) -> str:
    return f"{spec.digest} {source.path} {source.relative}"


def source_directory(source: SourceFact) -> Path:
    """Return where the code of a run was on its machine; for the captured files, where they were captured."""
    return Path(source.directory or source.path)


def checkpoint_directories(start: Start, at: Path | None = None) -> tuple[Path, ...]:
    """Return the checkpoint directories of a run inside its source: they are not code. `at`: where the source is now."""
    root = source_directory(start.source)
    paths = (Path(mount.source) for mount in start.data if mount.kind == "checkpoints")
    return tuple((at or root) / path.relative_to(root) for path in paths if root in path.parents)
