"""Compare the source and the data of a capture with a directory or with another capture."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.compare.environments import trees
from repro_env.compare.environments.difference import Difference, NotCompared, compare_values, mark
from repro_env.compare.environments.trees import changes, describe
from repro_env.io.files import may_exist, output_files
from repro_env.oci.entry import Entry, entries_from_notes, sort_with_parents
from repro_env.runs.lineage.knownruns import read_all_runs
from repro_env.runs.specsearch import Specs
from repro_env.runs.start import snapshot, sourcedirectory
from repro_env.runs.start.data import candidate_paths
from repro_env.schema.environment import Git
from repro_env.schema.errors import ArtifactError, DataError, SourceError
from repro_env.schema.messages import shorten
from repro_env.schema.run import Start
from repro_env.schema.spec import Data, Source, Spec
from repro_env.store.hashes import entries_of
from repro_env.store.specs.lookup import own_directories, runs_directory
from repro_env.store.store import Store


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The source of one side of a comparison."""

    entries: Mapping[str, Entry]
    """By path. Captured sources have no entries for directories."""
    git: Git | None
    restored: frozenset[str] = frozenset()
    """Captured, git-ignored files that are missing here: runs use the captured ones."""


def captured_code(source: Source) -> Code:
    """Return the source as it was captured."""
    return Code(entries=entries_from_notes(source.files), git=source.git)


def live_code(source: Source, root: Path, spec_directory: Path, store: Store, *, without: Sequence[Path] = ()) -> Code:
    """Return the source in `root`, with the same rules as a capture: without the spec directory and `runs/` next to it.

    `without`: other directories to skip, such as those that a run wrote checkpoints to.
    Raises `SourceError` if the directory does not exist or cannot be read.
    """
    from repro_env.environment.source.selection import look

    never = (*own_directories(root, spec_directory), *without)
    own_streams = output_files()
    tree = look(root, include=source.include, exclude=source.exclude, never=never, facts=False)
    files = [file for file in tree.found if file.key[:2] not in own_streams]
    entries = sort_with_parents(entries_of(files, store.hashes.of(root, files)))
    return Code(
        entries={entry.path: entry for entry in entries},
        git=tree.git,
        restored=frozenset(entry.path for entry in snapshot.missing_ignored(source, root, entries)),
    )


def compare(left: Code, right: Code) -> tuple[Difference, ...]:
    """Return the files that differ, then the differences of the git repositories."""
    reasons = dict.fromkeys(right.restored, snapshot.RESTORED)
    differences = [
        Difference(
            "source",
            change.path,
            describe(change.left),
            describe(change.right),
            reasons.get(change.path, "mode" if change.how == "mode" else ""),
            counts=change.path not in reasons,
        )
        for change in changes(_files(left), _files(right))
    ]
    is_same = not any(difference.counts for difference in differences)
    return (*differences, *_compare_commits(left.git, right.git, same=is_same))


def check_unchanged(spec: Spec, spec_directory: Path, *, frozen: bool, store: Store) -> None:
    """Raise `SourceError` if the source directory differs from the captured code, which is what leaves the machine.

    With `frozen`, differences are accepted. A new file with the content of a recorded output is a copy, and no code.
    """
    source = spec.observed.source
    if source is None or frozen:
        return
    directory = sourcedirectory.choose(spec, spec_directory, store=store).path
    if directory is None:
        return
    captured, live = captured_code(source), live_code(source, directory, spec_directory, store)
    changed = [difference for difference in compare(captured, live) if difference.counts]
    if any(difference.what not in captured.entries for difference in changed):
        runs = read_all_runs([runs_directory(spec_directory)], store)
        outputs = {written.sha256 for files in runs.written.values() for written in files}
        changed = [
            difference
            for difference in changed
            if difference.what in captured.entries or f"sha256:{live.entries[difference.what].sha256}" not in outputs
        ]
    lines = [f"{mark(difference)} {difference.what}" for difference in changed]
    if lines:
        differ = "1 file differs" if len(lines) == 1 else f"{len(lines)} files differ"
        raise SourceError(
            f"{differ} from the captured code, which would be sent: {shorten(lines)}",
            where=str(directory),
            hint="capture again, or send the captured code with --frozen",
        )


def _files(code: Code) -> dict[str, Entry]:
    """Return the entries without directories: git does not store empty ones, so a clone lacks them."""
    return {path: entry for path, entry in code.entries.items() if entry.kind != "dir"}


def compare_data(
    spec: Spec, named: Mapping[str, Path], store: Store, *, root: Path | None
) -> tuple[list[Difference], list[NotCompared]]:
    """Compare the data named at capture with the current data. `named`: target -> path, for data that the user names.

    `root`: the directory that stands for the captured source. Without it, only named data are read: a spec from another
    user must not make us read any path of this machine.
    """
    from repro_env.environment.source.data import look

    source = spec.observed.source
    differences: list[Difference] = []
    missing: list[NotCompared] = []
    for data in spec.observed.data:
        captured_paths = candidate_paths(data, source.path, root) if root is not None and source is not None else ()
        candidates = [named[data.path]] if data.path in named else captured_paths
        path = next((path for path in candidates if may_exist(path)), None)
        if path is None:
            why = "these data were not found" if candidates else "this spec was not captured here"
            missing.append(NotCompared(what=f"data {data.path}", why=f"{why}; name their path: --data SRC:{data.path}"))
            continue
        try:
            differences += differences_of_data([data], [look(path, data.path, store.hashes).data])
        except DataError as error:
            missing.append(NotCompared(what=f"data {data.path}", why=str(error)))
    return differences, missing


def _compare_commits(left: Git | None, right: Git | None, *, same: bool) -> Iterator[Difference]:
    """Compare the state of the repository. `same`: whether the files are equal.

    These differences do not count, because the files themselves are compared elsewhere.
    """
    why = "the files are the same" if same else ""
    if left is None or right is None:
        then, now = ("a repository" if git else "no readable repository" for git in (left, right))
        yield from _observation("git", then, now, why)
        return
    yield from _observation("commit", left.commit or "none yet", right.commit or "none yet", why)
    yield from _observation("uncommitted changes", _state(left), _state(right), why)


def differences_of_data(left: Iterable[Data], right: Iterable[Data]) -> Iterator[Difference]:
    """Compare the data of captures by the path at which runs see them."""
    old, new = {item.path: item for item in left}, {item.path: item for item in right}
    return compare_values(old, new, "data", describe=_describe_data, key=lambda item: item.digest)


def _describe_data(item: Data) -> str:
    return f"{item.files:,} files, {item.size:,} bytes, sha256 {item.digest.removeprefix('sha256:')[:12]}"


def _state(git: Git) -> str:
    untracked = f", {len(git.untracked)} untracked" if git.untracked else ""
    return f"yes{untracked}" if git.dirty else "none"


def _observation(what: str, left: str, right: str, why: str) -> Iterator[Difference]:
    if left != right:
        yield Difference("source", what, left, right, why, counts=False)


def recorded(start: Start, specs: Specs, store: Store) -> trees.FileTree | None:
    """Return the code of a run: from the store, else from its spec. None if it is not found."""
    fact = start.source
    layer = store.layers.path(fact.digest)
    if layer is not None:
        return trees.stored_tree(layer, store.hashes)
    spec = specs.of(start)
    source = spec.spec.observed.source if spec is not None else None
    if spec is None or source is None:
        return None
    with contextlib.suppress(ArtifactError):
        if source.tree.sha256 == fact.digest:
            return trees.spec_tree(source.tree, spec.directory, store)
    return None
