"""Take a snapshot of a run's source: of a directory as it is now, or of the captured files. The snapshot is in the store."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import FileContents, Found, output_files, times_of, walk
from repro_env.oci import layer
from repro_env.oci.entry import Contents, Entry, entries_from_notes, escape, find_misplaced, members, sort_with_parents
from repro_env.oci.paths import is_below
from repro_env.schema import redact
from repro_env.schema.errors import ArtifactError, CaptureError, ReproEnvError, SourceError
from repro_env.schema.run import SourceFact
from repro_env.schema.spec import Source, Spec
from repro_env.store.hashes import entries_of
from repro_env.store.specs import files as specfiles
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.specs.lookup import own_directories
from repro_env.store.store import Store

_FACT = "source-tree"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/etc", "/proc", "/dev", "/sys")
"""Directories of the image: a symlink there is followed in the image."""
RESTORED = "git-ignored and missing here: runs use the captured file"
_UNAVAILABLE = "git-ignored, and the captured file is not on this machine"
_TRIES = 2
"""Failed tries that are repeated. If the next try fails too, its error is raised."""


class Snapshot(msgspec.Struct, frozen=True):
    """A source tree in the store."""

    fact: SourceFact
    tree: Path
    """Its directory in the store."""
    paths: frozenset[str]
    """All paths in it, relative."""
    directories: frozenset[str]


def take(
    spec: Spec,
    spec_directory: Path,
    *,
    directory: Path | None,
    runs: Path,
    store: Store,
    without: Sequence[Path] = (),
    restore: bool = False,
) -> Snapshot:
    """Take a snapshot of the code in a directory by the rules of the capture; without a directory, of the captured files.

    Git-ignored files in the directory are included, unless they are too large, because training scripts read data there. They
    count as data, not as code.

    `without`: directories in it that are not code, such as those that the run writes checkpoints to. `restore`:
    take git-ignored captured files that the directory lacks from the captured tree, if that is available. `spec_directory`: the directory of the spec and its blobs. Raises `SourceError`, `CaptureError`, and `ArtifactError`
    without the blob.
    """
    source = spec.observed.source
    if source is None:
        raise SourceError("this spec has no source", where=str(spec_directory), hint="capture again with --source DIR")
    if directory is None:
        _fetch(spec, source, spec_directory, store)
        tree = _unpack(source, spec_directory, store)
        fact = SourceFact(path=source.path, digest=source.tree.sha256, directory=None, differs=(), times=source.times)
        return _snapshot(fact, tree, _listed(tree, store))
    not_code = (*own_directories(directory, spec_directory), runs, *(path for path in without if directory in path.parents))
    live, diff_id = _add_live(source, directory, not_code, store)
    contents: Contents = FileContents(directory)
    unavailable: Collection[str] = ()
    restored = missing_ignored(source, directory, [*live.entries, *live.ignored]) if restore else []
    if restored:
        try:
            _fetch(spec, source, spec_directory, store)
            contents = _Restored(
                contents, FileContents(_unpack(source, spec_directory, store)), {entry.path for entry in restored}
            )
            entries = sort_with_parents([*live.entries, *restored])
            diff_id, live = add_tree(entries, contents, store), msgspec.structs.replace(live, entries=entries)
        except ReproEnvError:
            unavailable, restored = {entry.path for entry in restored}, []
    differs: tuple[str, ...] = ()
    if diff_id != source.tree.sha256:
        differs = compare(entries_from_notes(source.files), {entry.path: entry for entry in live.entries if entry.kind != "dir"})
        differs = tuple(f"{line} ({_UNAVAILABLE})" if line[2:] in unavailable else line for line in differs)
    everything = sort_with_parents([*live.entries, *live.ignored])
    full_diff_id = add_tree(everything, contents, store) if live.ignored else diff_id
    tree = store.layers.path(full_diff_id) or store.root
    fact = SourceFact(
        path=source.path,
        digest=diff_id,
        directory=str(directory),
        differs=differs,
        ignored=tuple(redact.line(path) for path in live.paths),
        with_ignored=full_diff_id if live.ignored else None,
        restored=tuple(redact.line(entry.path) for entry in restored),
        not_in_run=live.unseen,
        times={**{path: source.times[path] for entry in restored if (path := escape(entry.path)) in source.times}, **live.times},
    )
    return _snapshot(fact, tree, everything)


def recall(fact: SourceFact, store: Store) -> Snapshot:
    """Return the snapshot of a recorded or submitted run. Raises `ArtifactError` if the store does not have it."""
    tree = store.layers.path(fact.tree_in_run)
    if tree is None:
        hint = "use a store that the nodes share (REPRO_ENV_STORE), and submit the run again"
        raise ArtifactError("the code of the submitted run is not in this store", where=str(store.root), hint=hint)
    return _snapshot(fact, tree, _listed(tree, store))


def drop_missing(fact: SourceFact, store: Store) -> SourceFact:
    """Return the source of a recorded run, without its git-ignored data if the store does not have them any more."""
    if fact.with_ignored is None or store.layers.path(fact.with_ignored) is not None:
        return fact
    return msgspec.structs.replace(fact, ignored=(), with_ignored=None)


def _snapshot(fact: SourceFact, tree: Path, entries: Sequence[Entry]) -> Snapshot:
    return Snapshot(
        fact=fact,
        tree=tree,
        paths=frozenset(entry.path for entry in entries),
        directories=frozenset(entry.path for entry in entries if entry.kind == "dir"),
    )


class _Restored:
    """Contents of some files from the captured tree, and of the others from the directory (`oci.entry.Contents`)."""

    def __init__(self, live: Contents, captured: Contents, paths: Collection[str]) -> None:
        self._live = live
        self._captured = captured
        self._paths = paths

    def chunks(self, entry: Entry) -> Iterable[bytes]:
        return (self._captured if entry.path in self._paths else self._live).chunks(entry)


def missing_ignored(source: Source, directory: Path, entries: Sequence[Entry]) -> list[Entry]:
    """Return captured files that the directory lacks because git ignores them, such as a generated `_version.py`."""
    from repro_env.environment.git import repository

    paths = {entry.path for entry in entries}
    captured = [entry for path, entry in entries_from_notes(source.files).items() if path not in paths]
    missing = [entry for entry in captured if not os.path.lexists(directory / entry.path)]
    ignored = repository.ignores(directory, [entry.path for entry in missing])
    found = [entry for entry in missing if entry.path in ignored]
    return [] if find_misplaced([*entries, *found]) else found


class _Live(msgspec.Struct, frozen=True):
    entries: list[Entry]
    """The code."""
    ignored: list[Entry]
    """Git-ignored data."""
    paths: tuple[str, ...]
    """Paths of the outermost git-ignored files and directories, sorted."""
    times: dict[str, int]
    unseen: dict[str, str]
    """Both as in `SourceFact`."""


def _add_live(source: Source, directory: Path, not_code: Sequence[Path], store: Store) -> tuple[_Live, str]:
    """Add the live tree to the store. If a file changes while it is read, such as the log of another run, try again."""
    for _ in range(_TRIES):
        with contextlib.suppress(CaptureError, ArtifactError):
            live = _live(source, directory, not_code, store)
            return live, add_tree(live.entries, FileContents(directory), store)
    live = _live(source, directory, not_code, store)
    return live, add_tree(live.entries, FileContents(directory), store)


def _live(source: Source, directory: Path, not_code: Sequence[Path], store: Store) -> _Live:
    from repro_env.environment.source.selection import CAP, links_out, look

    tree = look(directory, include=source.include, exclude=source.exclude, never=tuple(not_code), facts=False, data=CAP)
    own = output_files()
    found, ignored = ([file for file in part if file.key[:2] not in own] for part in (tree.found, tree.data))
    digests = store.hashes.of(directory, [*found, *ignored])
    paths = sorted(file.path for file in ignored if file.kind != "dir" or file.path in tree.ignored)
    outermost = [path for path in paths if not any(path.startswith(f"{other}/") for other in tree.ignored if other != path)]
    entries = sort_with_parents(entries_of(found, digests))
    times = {escape(path): time for path, time in times_of([*found, *ignored]).items()}
    unseen = {f"{source.path}/{path}": redact.line(f"{path} ({why})") for path, why in tree.unseen.items() if path.isprintable()}
    unseen |= _unseen_targets(source, directory, links_out(directory, [*found, *ignored]))
    return _Live(entries, entries_of(ignored, digests), tuple(outermost), times, unseen)


def _unseen_targets(source: Source, directory: Path, links: Iterable[tuple[Found, str]]) -> dict[str, str]:
    """Return where symlinks lead that a run cannot follow without a mount. The links of a directory are one item."""
    groups: dict[str, list[tuple[Found, str]]] = defaultdict(list)
    for link, target in links:
        if os.path.lexists(target) and target.isprintable() and not is_below(target, *_SYSTEM):
            groups[link.path.rpartition("/")[0]].append((link, target))
    unseen = {}
    for group in groups.values():
        common = os.path.commonpath([target for _, target in group])
        is_relative = is_below(common, str(directory)) and not group[0][0].target.startswith("/")
        path = os.path.normpath(os.path.join(source.path, os.path.relpath(common, directory))) if is_relative else common  # noqa: PTH118
        first = group[0][0].path
        lead = f"{len(group)} symlinks like {first} lead" if len(group) > 1 else f"the symlink {first} leads"
        unseen[path] = redact.line(f"{common}, to which {lead}")
    return {path: text for path, text in unseen.items() if path != "/"}


def add_tree(entries: Sequence[Entry], contents: Contents, store: Store) -> str:
    """Add a tree to the store, and return its diff ID. If the store has a tree with the same entries, no file is read."""
    recipe = layer.recipe(entries)
    recalled = store.facts.get(_FACT, recipe)
    if recalled is not None and store.layers.path(recalled.decode()) is not None:
        return recalled.decode()
    diff_id = store.layers.add(layer.check_contents(members(entries, contents)))
    store.facts.put(_FACT, recipe, diff_id.encode())
    return diff_id


def _fetch(spec: Spec, source: Source, spec_directory: Path, store: Store) -> None:
    """Download the captured source from the registry that the spec was pushed to, if it is not on this machine."""
    digest = source.tree.sha256
    if store.layers.path(digest) is not None or SpecBlobs(spec_directory / "blobs").path(digest) is not None:
        return
    if (spec_directory / specfiles.REMOTE).is_file():
        from repro_env.delivery.builder.sources import Sources

        with Sources(spec, spec_directory, store) as sources:
            sources.bring_tree("source", source.tree)


def _unpack(source: Source, spec_directory: Path, store: Store) -> Path:
    """Return the captured source in the store, and unpack it if the store does not have it."""
    layer = store.layers.path(source.tree.sha256)
    if layer is not None:
        return layer
    return store.layers.unpack(source.tree.sha256, SpecBlobs(spec_directory / "blobs").tree(source.tree), size=source.tree.size)


def compare(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> tuple[str, ...]:
    """Return a line for each file or symlink that is new (+), missing (-) or changed (~)."""
    marks = []
    for path in sorted(old.keys() | new.keys()):
        mark = "-" if path not in new else "+" if path not in old else "~"
        if mark != "~" or old[path] != new[path]:
            marks.append(f"{mark} {path}")
    return tuple(marks)


def _listed(tree: Path, store: Store) -> list[Entry]:
    found = list(walk(tree))
    return sort_with_parents(entries_of(found, store.hashes.of(tree, found)))
