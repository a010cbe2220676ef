"""The source of one run: a directory as it is now, or the captured files; in the store either way."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.catalog.index import Index
from repro_env.flows.locate import ours
from repro_env.image import layer
from repro_env.image.entry import Contents, Entry, entries_of, members, misplaced, of_notes, ordered
from repro_env.io.files import FileContents, walk
from repro_env.model import redact
from repro_env.model.errors import ArtifactError, CaptureError, ReproEnvError, SourceError
from repro_env.model.run import SourceFact
from repro_env.model.spec import Source, Spec
from repro_env.store import parts
from repro_env.store.carried import Carried
from repro_env.store.store import Store

_FACT = "source-tree"
OUTPUT = "output of a run on the host"
"""What `SourceFact.differs` says of a file that such a run left in the directory."""
RESTORED = "git-ignored, and not here: runs use the captured file"
_UNAVAILABLE = "git-ignored, and the captured file is not on this machine"
_TRIES = 2
"""Before the last one, whose failure is told."""


class Snapshot(msgspec.Struct, frozen=True):
    """A source tree that lies in the store."""

    fact: SourceFact
    tree: Path
    """Where it lies there."""
    paths: frozenset[str]
    """Everything in it, relative."""
    folders: frozenset[str]


def take(
    spec: Spec,
    folder: Path,
    *,
    directory: Path | None,
    runs: Path,
    store: Store,
    without: Sequence[Path] = (),
    again: SourceFact | None = None,
    siblings: Sequence[str] = (),
    restore: bool = False,
) -> Snapshot:
    """Look at the code in a directory by the rules of the capture; without one, take the captured files.

    What git ignores in a directory, and is not too much, is seen as well: training scripts read data there. It counts as data, not as code.
    So do the directories beside it that `siblings` names.

    `without`: directories in it that are no code, such as those that the run writes checkpoints to. `again`: as `Asked.again`.
    `restore`: take captured files that git ignores and that the directory lacks from the captured tree, where that can be had.
    `folder` holds the spec and its blobs. Raises `SourceError` and its neighbours, `ArtifactError` without the blob.
    """
    source = spec.observed.source
    if source is None:
        raise SourceError("the spec holds no source", where=str(folder), hint="capture again with --source DIR")
    if directory is None:
        _bring(spec, source, folder, store)
        tree = _captured(source, folder, store)
        fact = SourceFact(path=source.path, digest=source.tree.sha256, directory=None, differs=())
        if again is not None:
            names = ("ignored", "with_ignored", "siblings", "siblings_tree")
            fact = msgspec.structs.replace(fact, **{name: getattr(again, name) for name in names})
            tree = store.layers.path(fact.seen) or tree
        return _snapshot(fact, tree, _listed(tree, store))
    never = (*ours(directory, folder), runs, *(path for path in without if directory in path.parents))
    live, diff_id = _seen(source, directory, never, store, siblings)
    contents: Contents = FileContents(directory)
    unavailable: Collection[str] = ()
    restored = missing_ignored(source, directory, [*live.entries, *live.ignored]) if restore else []
    if restored:
        try:
            _bring(spec, source, folder, store)
            contents = _Restored(contents, FileContents(_captured(source, folder, store)), {entry.path for entry in restored})
            entries = ordered([*live.entries, *restored])
            diff_id, live = stored(entries, contents, store), msgspec.structs.replace(live, entries=entries)
        except ReproEnvError:
            unavailable, restored = {entry.path for entry in restored}, []
    differs: tuple[str, ...] = ()
    if diff_id != source.tree.sha256:
        tree = store.layers.path(diff_id) or store.root  # it was put there just now
        differs = _explained(compare(of_notes(source.files), _by_path(live.entries)), source, tree)
        outputs = outputs_of_runs([entry for entry in live.entries if f"+ {entry.path}" in differs], runs, store)
        differs = tuple(f"{line} ({OUTPUT})" if line[2:] in outputs else line for line in differs)
        differs = tuple(f"{line} ({_UNAVAILABLE})" if line[2:] in unavailable else line for line in differs)
    everything = ordered([*live.entries, *live.ignored])
    seen = stored(everything, contents, store) if live.ignored else diff_id
    tree = store.layers.path(seen) or store.root
    fact = SourceFact(
        path=source.path,
        digest=diff_id,
        directory=str(directory),
        differs=differs,
        ignored=tuple(redact.line(path) for path in live.paths),
        with_ignored=seen if live.ignored else None,
        restored=tuple(redact.line(entry.path) for entry in restored),
        siblings=live.siblings,
        siblings_tree=live.siblings_tree,
    )
    return _snapshot(fact, tree, everything)


def _snapshot(fact: SourceFact, tree: Path, entries: Sequence[Entry]) -> Snapshot:
    return Snapshot(
        fact=fact,
        tree=tree,
        paths=frozenset(entry.path for entry in entries),
        folders=frozenset(entry.path for entry in entries if entry.kind == "dir"),
    )


class _Restored:
    """The bytes of the captured files for some paths, and those of the directory for the others (`image.entry.Contents`)."""

    def __init__(self, live: Contents, captured: Contents, paths: Collection[str]) -> None:
        self._live = live
        self._captured = captured
        self._paths = paths

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        return (self._captured if entry.path in self._paths else self._live).chunks(entry)


def missing_ignored(source: Source, directory: Path, entries: Sequence[Entry]) -> list[Entry]:
    """Captured files that the directory lacks because git ignores them: no clone has generated code such as `_version.py`."""
    from repro_env.capture import git

    there = {entry.path for entry in entries}
    captured = [entry for path, entry in of_notes(source.files).items() if path not in there]
    missing = [entry for entry in captured if not os.path.lexists(directory / entry.path)]
    ignored = git.ignores(directory, [entry.path for entry in missing])
    found = [entry for entry in missing if entry.path in ignored]
    return [] if misplaced([*entries, *found]) else found


class _Live(msgspec.Struct, frozen=True):
    entries: list[Entry]
    """The code."""
    ignored: list[Entry]
    """Git-ignored data."""
    paths: tuple[str, ...]
    """Of the outermost of these, sorted."""
    siblings: tuple[str, ...]
    siblings_tree: str | None
    """As of `SourceFact`."""


def _seen(source: Source, directory: Path, never: Sequence[Path], store: Store, siblings: Sequence[str]) -> tuple[_Live, str]:
    """The live tree, in the store. Another run's log may grow while it is read: that is tried again."""
    for _ in range(_TRIES):
        with contextlib.suppress(CaptureError, ArtifactError):
            live = _live(source, directory, never, store, siblings)
            return live, stored(live.entries, FileContents(directory), store)
    live = _live(source, directory, never, store, siblings)
    return live, stored(live.entries, FileContents(directory), store)


def _live(source: Source, directory: Path, never: Sequence[Path], store: Store, siblings: Sequence[str]) -> _Live:
    from repro_env.capture.source import CAP, look

    tree = look(directory, include=source.include, exclude=source.exclude, never=tuple(never), facts=False, data=CAP)
    own = own_streams()
    found, ignored = ([one for one in part if one.key[:2] not in own] for part in (tree.found, tree.data))
    known = store.hashes.of(directory, [*found, *ignored])
    paths = sorted(one.path for one in ignored if one.kind != "dir" or one.path in tree.ignored)
    outermost = [path for path in paths if not any(path.startswith(f"{other}/") for other in tree.ignored if other != path)]
    most = CAP - sum(one.size for one in ignored)
    names, siblings_tree = _siblings(source, directory, siblings, most, (*never, store.root), store)
    return _Live(ordered(entries_of(found, known)), entries_of(ignored, known), tuple(outermost), names, siblings_tree)


def _siblings(
    source: Source, directory: Path, names: Sequence[str], most: int, apart: Sequence[Path], store: Store
) -> tuple[tuple[str, ...], str | None]:
    """`SourceFact.siblings` and `.siblings_tree`: what `capture.siblings` finds of the directories with these names."""
    from repro_env.capture import siblings

    parent, root = directory.parent, source.path.rpartition("/")[0][1:]
    entries: list[Entry] = []
    chosen = siblings.look(directory, names, apart=apart, most=most)
    for name, found in chosen.items():
        path = posixpath.join(root, name[3:])
        entries += [Entry(path, "dir"), *entries_of(found, store.hashes.of(parent / name[3:], found), below=path)]
    tree = stored(ordered(entries), FileContents(parent, root), store) if chosen else None
    return tuple(sorted(chosen)), tree


def own_streams() -> frozenset[tuple[int, int]]:
    """Device and inode of what we print to: `exec … > log.txt` in the source is no part of it, and grows while it is read."""
    own = set()
    for handle in (1, 2):
        with contextlib.suppress(OSError):
            facts = os.fstat(handle)
            if stat.S_ISREG(facts.st_mode):
                own.add((facts.st_dev, facts.st_ino))
    return frozenset(own)


def stored(entries: Sequence[Entry], contents: Contents, store: Store) -> str:
    """Put a tree into the store, and return its diff ID. One whose entries were seen before is not read again."""
    recipe = layer.recipe(entries)
    known = store.facts.get(_FACT, recipe)
    if known is not None and store.layers.path(known.decode()) is not None:
        return known.decode()
    diff_id = store.layers.add(layer.checked(members(entries, contents)))
    store.facts.put(_FACT, recipe, diff_id.encode())
    return diff_id


def _bring(spec: Spec, source: Source, folder: Path, store: Store) -> None:
    """Fetch the captured source from where the spec was pushed, when it is neither here nor in the store."""
    digest = source.tree.sha256
    if store.layers.path(digest) is not None or Carried(folder / "blobs").path(digest) is not None:
        return
    if (folder / parts.REMOTE).is_file():
        from repro_env.build.trees import Trees

        trees = Trees(spec, folder, store)
        with contextlib.closing(trees.givers):
            trees.bring("source", source.tree)


def _captured(source: Source, folder: Path, store: Store) -> Path:
    there = store.layers.path(source.tree.sha256)
    if there is not None:
        return there
    return store.layers.unpack(source.tree.sha256, Carried(folder / "blobs").tree(source.tree), size=source.tree.size)


def _explained(differs: Sequence[str], source: Source, tree: Path) -> tuple[str, ...]:
    """With a word on each notebook that is other, and has the captured code."""
    from repro_env.capture import notebook

    known = {f"~ {one.path}": one for one in source.notebooks}
    explained = []
    for line in differs:
        now = notebook.try_read(tree, known[line].path) if line in known else None
        what = notebook.change(known[line], now) if now is not None else ""
        explained.append(f"{line} ({what})" if what not in ("", "code") else line)
    return tuple(explained)


def outputs_of_runs(new: Sequence[Entry], runs: Path, store: Store) -> frozenset[str]:
    """The paths of the new files that are outputs of recorded runs on the host: nobody wrote them as code."""
    files = {entry.path: bytes.fromhex(entry.sha256) for entry in new if entry.kind == "file" and entry.size}
    if not files or not runs.is_dir():
        return frozenset()
    listing = Index(store.runs).listing(runs, outputs=True)
    recorded = [listing.outputs[run.folder] for run in listing.runs if run.runner == "host" and run.folder in listing.outputs]
    digests = {data[start : start + 32] for data in recorded for start in range(0, len(data), 32)}
    return frozenset(path for path, digest in files.items() if digest in digests)


def compare(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> tuple[str, ...]:
    """Files and symlinks that are new, gone or other."""
    marks = []
    for path in sorted(old.keys() | new.keys()):
        mark = "-" if path not in new else "+" if path not in old else "~"
        if mark != "~" or old[path] != new[path]:
            marks.append(f"{mark} {path}")
    return tuple(marks)


def _by_path(entries: Sequence[Entry]) -> dict[str, Entry]:
    return {entry.path: entry for entry in entries if entry.kind != "dir"}


def _listed(tree: Path, store: Store) -> list[Entry]:
    found = list(walk(tree))
    return ordered(entries_of(found, store.hashes.of(tree, found)))
