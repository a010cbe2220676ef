"""Which directory holds the code of a spec: the one beside the spec, wherever that is now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.catalog import specs
from repro_env.flows.locate import FOLDER, runs_beside
from repro_env.image.entry import of_notes
from repro_env.model import codec
from repro_env.model.errors import SourceError, UsageError
from repro_env.model.spec import Source, Spec
from repro_env.model.text import Sibling
from repro_env.store.store import Store

_CAPTURED = "captured-here"


class SourceDirectory(msgspec.Struct, frozen=True):
    """Where the code of a spec is on this machine."""

    path: Path | None
    """The directory whose code is used; None for the captured files."""
    why: str
    """Why it is the captured files; empty for a directory."""
    root: Path
    """What the captured path stands for on this machine, whichever code is used."""

    def inside(self, path: Path, workspace: str) -> Path:
        """A path of this machine as a run sees it, where the source is at `workspace`; paths elsewhere stay as they are."""
        return Path(workspace, path.relative_to(self.root)) if path.is_relative_to(self.root) else path


def choose(spec: Spec, folder: Path, *, store: Store, given: Path | None = None, frozen: bool = False) -> SourceDirectory:
    """The code of the spec in `folder`: `given` (`--source`), the captured files with `frozen`, else the directory beside the spec.

    A registry's reference and a bundle file have no directory beside them, and a directory that holds none of the
    captured files is not their source: then the captured files are used. Raises `SourceError`, `UsageError`.
    """
    source = spec.observed.source
    if source is None:
        raise SourceError("the spec holds no source", where=str(folder), hint="capture again with --source DIR")
    if given is not None:
        if frozen:
            raise UsageError("--frozen and --source are mutually exclusive", where="--source", hint="leave out one of them")
        if not given.is_dir():
            raise UsageError("is not a directory", where=f"--source {given}", hint="name the directory that holds the code")
        return SourceDirectory(given.resolve(), "", given.resolve())
    if folder.is_relative_to(store.root):
        why = "--frozen" if frozen else "a bundle or a registry's reference has no directory beside it"
        return SourceDirectory(None, why, Path(source.path))
    near = beside(source, folder)
    if not holds(source, near):
        return SourceDirectory(None, "--frozen" if frozen else f"{near} holds none of the captured files", Path(source.path))
    if not (_is_contained(near, folder) or _is_captured_here(spec, store)):
        if frozen:
            return SourceDirectory(None, "--frozen", Path(source.path))
        raise SourceError(
            f"the spec says that its code is in {near}, outside the directory that holds the spec's",
            where=str(folder),
            hint=f"allow it with --source {near}, or run the captured files with --frozen",
        )
    return SourceDirectory(None if frozen else near, "--frozen" if frozen else "", near)


def beside(source: Source, folder: Path) -> Path:
    """Where the code of a spec in `folder` is, by its place from the spec at capture. A spec kept for runs counts as the one beside them."""
    here = folder if specs.runs_of(folder) is None else runs_beside(folder).parent / FOLDER
    return Path(os.path.normpath(here / source.relative))


def holds(source: Source, directory: Path) -> bool:
    """Whether a directory is where the code was captured, or has at least one of the captured files."""
    if not directory.is_dir():
        return False
    paths = of_notes(source.files)
    return not paths or str(directory) == source.path or any(os.path.lexists(directory / path) for path in paths)


def _is_contained(directory: Path, folder: Path) -> bool:
    """Whether a spec from a stranger may name this directory: in the one that holds the spec's, or in its git working tree."""
    above = runs_beside(folder).parent.resolve()
    top = next((one for one in (above, *above.parents) if os.path.lexists(one / ".git")), above)
    return directory.resolve().is_relative_to(top)


def is_known(spec: Spec, folder: Path, store: Store) -> bool:
    """Whether other paths that a spec names may be read and its programs started: a spec from a stranger can name any.

    They may when the spec is in its source, where the user has put it, or when this store's owner captured it.
    """
    source = spec.observed.source
    if source is None:
        return False
    in_it = os.path.realpath(runs_beside(folder).parent) == os.path.realpath(source.path)
    return in_it or _is_captured_here(spec, store)


def _is_captured_here(spec: Spec, store: Store) -> bool:
    source = spec.observed.source
    return source is not None and store.facts.get(_CAPTURED, _key(spec, source)) is not None


def remember(spec: Spec, store: Store, siblings: Sequence[str] = ()) -> None:
    """Note that this spec was captured here, and which directories beside the source its runs may see a copy of (`../data`)."""
    if spec.observed.source is not None:
        store.facts.put(_CAPTURED, _key(spec, spec.observed.source), codec.canonical(siblings))


def siblings(spec: Spec, directory: Path | None, store: Store) -> tuple[str, ...] | None:
    """The names that `remember` noted; None unless `directory` is the captured one itself, and the capture was made with this store.

    They are in the store alone: a spec cannot name any.
    """
    source = spec.observed.source
    if source is None or directory is None or os.path.realpath(directory) != source.path:
        return None
    return store.facts.recall(_CAPTURED, _key(spec, source), tuple[Sibling, ...])


def _key(spec: Spec, source: Source) -> str:
    return f"{spec.digest} {source.path} {source.relative}"
