"""List the source: which files of a directory are part of the snapshot, and why others are not.

The output of repro-env itself is left out and not measured, so two captures of the same source have the same result.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from glob import escape
from pathlib import Path

import msgspec

from repro_env.environment.git.command import NOT_TEXT
from repro_env.environment.source.exclusions import MANY, Exclusions
from repro_env.environment.system.tree import parent_directories
from repro_env.io.files import Found, chunks_of, walk
from repro_env.schema import redact
from repro_env.schema.environment import Excluded, Git
from repro_env.schema.errors import CaptureError, SourceError
from repro_env.schema.globs import globs
from repro_env.store.facts import FactCache

CAP = 200_000_000
"""Maximum bytes of the snapshot; data and weights belong to `--data`."""
_NAMED = 10
"""How many paths a message names before it only counts the others."""


class SourceTree(msgspec.Struct, frozen=True):
    """The snapshot, as a listing."""

    root: Path
    """Absolute, without resolving symlinks: runs see the source at this path."""
    found: tuple[Found, ...]
    """Files, directories and symlinks, each directory before its content."""
    git: Git | None
    excluded: tuple[Excluded, ...]
    """Sorted by path."""
    size: int
    """Bytes of the files in the snapshot."""
    problems: tuple[str, ...] = ()
    """What may be missing in a run, or could not be determined: one line each."""
    remarks: tuple[str, ...] = ()
    """What the user should know, but is not a problem: one line each."""
    ignored: tuple[str, ...] = ()
    """Directories that a pattern of git ignores, even if something in them is kept; sorted."""
    data: tuple[Found, ...] = ()
    """Git-ignored files, symlinks and directories that are not part of the snapshot (see `look`)."""
    unseen: Mapping[str, str] = {}
    """Git-ignored paths that are not in `data` -> why. Caches and leftovers of programs are not listed."""


def look(
    root: Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    never: Sequence[Path] = (),
    cap: int = CAP,
    facts: bool = True,
    not_secret: Sequence[str] = (),
    cache: FactCache | None = None,
    data: int = 0,
) -> SourceTree:
    """List the snapshot of `root`. Opens files only to search for secrets, and changes nothing.

    `exclude` takes precedence over `include` (both are patterns, see `globs`). `include` adds paths that a rule leaves out,
    except `.env`, `.git` and the paths of `never` (output of repro-env, listed without a size).

    `facts=False` omits the search for secrets and the sizes of excluded paths; the snapshot is the same.
    `not_secret`: files to include even with secrets. `cache` remembers which files have no secret.
    `data`: maximum bytes of git-ignored files to list in `SourceTree.data`, the smallest ignored paths first. Environments,
    caches, `.env`, files with private names, and leftovers of programs are never listed.

    Raises `SourceError` if `root` is not a readable directory, has more than `cap` bytes, or has secrets (all are listed).
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - `resolve` would move the source to another path
    if not root.is_dir():
        raise SourceError("is not a directory", where=str(root), hint="name the directory of your code with --source")
    skips = Exclusions(root, globs(include), globs(exclude), never, measure=facts, data=data)
    listed = _walk(root, skips, limit=20 * cap + data)
    found = _without_unneeded([entry for entry in listed if entry.path not in skips.data], skips)
    size = sum(entry.size for entry in found)
    if size > cap:
        raise _too_large(found, size, cap, root)
    remarks = _check_secrets(root, found, not_secret, cache) if facts else []
    missing = sorted(skips.missing)[:_NAMED]
    problems = [
        *_link_problems(root, found),
        *(
            f"no path of the source matches --exclude {text}"
            for text, glob in zip(exclude, skips.exclude, strict=True)
            if not glob.hit
        ),
        *(f"--include {text} adds nothing" for text, glob in zip(include, skips.include, strict=True) if not glob.hit),
        *(f"git ignores {path}, but Python may need it; add it with --include {path}" for path in missing),
        *([f"git ignores {more} more paths that Python may need"] if (more := len(skips.missing) - len(missing)) > 0 else []),
        *skips.problems,
    ]
    return SourceTree(
        root=root,
        found=found,
        git=skips.git and _in_snapshot(skips.git, {entry.path for entry in found}),
        excluded=skips.rows(),
        size=size,
        ignored=tuple(sorted(skips.ignored_directories)),
        data=_data(listed, found, skips, data) if data else (),
        unseen=skips.unseen,
        problems=tuple(sorted({redact.line(problem) for problem in problems if problem})),
        remarks=tuple(sorted(set(remarks))),
    )


def imported(tree: SourceTree, paths: Sequence[Path], *, without: Sequence[Path] = ()) -> tuple[str, ...]:
    """Return patterns for `include` that add git-ignored paths from which Python imports.

    `paths`: the entries of `sys.path`, and the directories of editable projects. `without`: the environment and the
    interpreter, which are captured separately. The patterns must be stored with the source, so that a run uses them too.
    """
    root = os.path.realpath(tree.root)
    excluded = [os.path.realpath(path) for path in without]
    captured = {entry.path for entry in tree.found}
    patterns = set()
    for real in {os.path.realpath(path) for path in paths}:
        path = os.path.relpath(real, root)
        if path == "." or path.startswith("../") or path == ".." or _in_environment(Path(root), path):
            continue
        is_ignored = any(f"{path}/".startswith(f"{directory}/") for directory in tree.ignored)
        is_missing = os.path.exists(real) and (is_ignored or path not in captured)  # noqa: PTH110
        if is_missing and not any(f"{real}/".startswith(f"{parent}/") for parent in excluded):
            patterns.add("/" + escape(path))
    return tuple(sorted(patterns))


def _in_environment(root: Path, directory: str) -> bool:
    """Whether a directory of the source is in a virtual or conda environment inside the source."""
    parts = directory.split("/")
    paths = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
    return any((root / path / mark).exists() for path in paths for mark in ("pyvenv.cfg", "conda-meta"))


def _walk(root: Path, skips: Exclusions, *, limit: int) -> list[Found]:
    """List everything that is not skipped. Stops after `limit` bytes, so that a huge directory is rejected early."""
    listing: list[Found] = []
    size = 0
    try:
        for entry in walk(root, skip=skips.skip):
            if entry.kind == "other":
                skips.add_special(entry.path)
                continue
            listing.append(entry)
            size += entry.size
            if size > limit:
                break
    except PermissionError as error:
        raise _unreadable(error, root) from None
    except CaptureError as error:
        raise SourceError(error.what, where=error.where, hint=error.hint) from None
    return listing


def _without_unneeded(listing: Sequence[Found], skips: Exclusions) -> tuple[Found, ...]:
    """Return the listing without directories that were only walked and have no entry in the snapshot."""
    needed = {parent for entry in listing if not skips.is_only_parent(entry.path) for parent in parent_directories(entry.path)}
    return tuple(entry for entry in listing if not skips.is_only_parent(entry.path) or entry.path in needed)


def _data(listed: Sequence[Found], found: Sequence[Found], skips: Exclusions, limit: int) -> tuple[Found, ...]:
    """Return up to `limit` bytes of git-ignored data: the smallest ignored paths, each complete, and their directories."""
    sizes: dict[str, int] = defaultdict(int)
    outer = {entry.path: path for entry in listed if (path := skips.data_of(entry.path)) is not None}
    for entry in listed:
        if entry.path in outer:
            sizes[outer[entry.path]] += entry.size
    ignored_paths: set[str] = set()
    total = 0
    for path in sorted(sizes, key=lambda path: (sizes[path], path)):
        total += sizes[path]
        if total > limit or len(ignored_paths) == MANY:
            skips.unseen[path] = _megabytes(sizes[path])
        else:
            ignored_paths.add(path)
    chosen = {entry.path for entry in listed if outer.get(entry.path) in ignored_paths}
    chosen |= {parent for path in chosen for parent in parent_directories(path)}
    chosen.difference_update(entry.path for entry in found)
    return tuple(entry for entry in listed if entry.path in chosen)


def _check_secrets(root: Path, found: Sequence[Found], declared: Sequence[str], cache: FactCache | None) -> list[str]:
    """Return remarks on files that the user declared not secret. Raises `SourceError` with all other secrets."""
    from repro_env.environment.secrets.bundles import SecretSearch  # slow to import, and `exec` does not search

    search = SecretSearch(declared, cache)
    try:
        search.search_tree(found, lambda file: chunks_of(root / file.path))
    except OSError as error:
        raise _unreadable(error, root) from None
    search.raise_if_found(SourceError, str(root), "--exclude --not-secret")
    return search.notes


def _unreadable(error: OSError, root: Path) -> SourceError:
    path = os.path.relpath(str(error.filename or root), root)
    return SourceError(
        f"cannot be read: {error.strerror}",
        where=str(root / path),
        hint=f"make it readable, or leave it out with --exclude '{path}'",
    )


def _too_large(found: Sequence[Found], size: int, cap: int, root: Path) -> SourceError:
    """Return an error that names the largest files and directories of the source's root."""
    sizes: Counter[str] = Counter()
    for entry in found:
        sizes[entry.path.split("/")[0]] += entry.size
    largest = sizes.most_common(3)
    return SourceError(
        f"the source has {_megabytes(size)}, more than the limit of {_megabytes(cap)}; largest paths: "
        + ", ".join(f"{path} ({_megabytes(size)})" for path, size in largest),
        where=str(root),
        hint="leave out what is not code with --exclude or .gitignore, or pass it as data: --data " + largest[0][0],
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _in_snapshot(git: Git, paths: AbstractSet[str]) -> Git:
    """Return the state of the repository without the untracked files that are not in the snapshot."""
    untracked = tuple(sorted(NOT_TEXT.sub("?", path) for path in git.untracked if path in paths))
    return msgspec.structs.replace(git, untracked=untracked, dirty=git.dirty or bool(untracked))


def _link_problems(root: Path, found: Sequence[Found]) -> list[str]:
    """Return a line for each symlink that a run may not be able to follow."""
    problems = []
    for link, full in links_out(root, found):
        if not f"{full}/".startswith(f"{root}/"):
            problems.append(
                f"{link.path} is a symlink to {link.target}, outside the source; a run sees the target only if it is mounted"
            )
        elif os.path.lexists(full):
            problems.append(f"{link.path} is a symlink to {link.target}, which is not in the snapshot")
    return problems


def links_out(root: Path, found: Iterable[Found]) -> Iterator[tuple[Found, str]]:
    """Yield each symlink whose target is not in a listing, and the absolute path that it leads to."""
    paths = {entry.path: entry for entry in found}
    links = {path for path, entry in paths.items() if entry.kind == "link"}
    for link in sorted(links):
        full = os.path.normpath(root / os.path.dirname(link) / paths[link].target)  # noqa: PTH120
        path = os.path.relpath(full, root)
        parts = path.split("/")
        if path != "." and path not in paths and not any("/".join(parts[:end]) in links for end in range(1, len(parts))):
            yield paths[link], full
