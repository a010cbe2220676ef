"""The source: which files of a folder are the code, and why the others are not.

The snapshot is decided by rules that do not change between two captures: what this tool writes itself is left out
and never measured, so capturing twice gives the same.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.capture import git, secrets
from repro_env.capture.globs import Glob, escaped, globs
from repro_env.capture.ignored import MANY, in_environment
from repro_env.capture.rules import Rules
from repro_env.io.files import Found, walk
from repro_env.model import redact
from repro_env.model.environment import Excluded, Git
from repro_env.model.errors import CaptureError, SourceError

CAP = 200_000_000
"""Bytes; data and weights belong to `--data`."""
_NAMED = 10
"""How many paths of one kind are named before the rest is counted."""
_OTHER_CONTROL = {
    ".hg": "Mercurial",
    ".svn": "Subversion",
    ".jj": "Jujutsu",
    ".bzr": "Bazaar",
    "_darcs": "Darcs",
    ".pijul": "Pijul",
    ".fslckout": "Fossil",
    "CVS": "CVS",
}


class SourceTree(msgspec.Struct, frozen=True):
    """The snapshot, as a listing."""

    root: Path
    """Absolute, as it was named (symlinks not resolved): runs see the source at this path."""
    found: tuple[Found, ...]
    """Files, folders and symlinks, each folder before what is in it."""
    git: Git | None
    excluded: tuple[Excluded, ...]
    """Sorted by path."""
    size: int
    """Of the files in the snapshot, in bytes."""
    problems: tuple[str, ...] = ()
    """What may be missing in a run, or could not be found out: one line each."""
    notes: tuple[str, ...] = ()
    """What the user should know, and nothing is wrong with."""
    ignored: tuple[str, ...] = ()
    """Folders that git ignores as a whole, also where something in them is kept; sorted."""
    data: tuple[Found, ...] = ()
    """Git-ignored files and symlinks that are no part of the snapshot, with the directories that they need (`look`)."""


def look(
    root: Path,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    never: Sequence[Path] = (),
    cap: int = CAP,
    facts: bool = True,
    not_secret: Sequence[str] = (),
    cache: secrets.Cache | None = None,
    unmeasured: Path | None = None,
    data: int = 0,
) -> SourceTree:
    """List the snapshot of `root`. Opens files only to look for secrets, and changes nothing.

    Globs: without a slash they match a name at any depth, with one the path from `root`; `*` stops at a slash, `**`
    does not; a folder's match is that of all in it. `exclude` wins over `include`. `include` brings back what is left
    out by rule, but no `.env`, no `.git` and nothing of `never` (folders that this tool writes; listed without size).
    `facts=False` leaves out the git facts, the search for secrets and the sizes of what is left out; the snapshot is
    the same. Files that match `not_secret` are included even with secrets; `cache` remembers which files hold no secret.
    `unmeasured` is a folder that the caller will measure (`measured`).
    `data`: bytes of git-ignored files that are listed too, apart from the snapshot (`SourceTree.data`), the smallest ignored paths
    first. Environments, caches, `.env`, files that are private by their name, and leftovers of programs are not.
    Raises `SourceError`: no folder, unreadable, over `cap` bytes, or secrets in files (all of them are named).
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - `resolve` would move the source to another path
    if not root.is_dir():
        raise SourceError("no such folder", where=str(root), hint="name the folder of your code with --source")
    rules = Rules(root, globs(include), globs(exclude), never, measure=facts, unmeasured=unmeasured, data=data)
    listed = _walk(root, rules, far=20 * cap + data)
    found = _without_unneeded([one for one in listed if one.path not in rules.data], rules)
    size = sum(one.size for one in found)
    if size > cap:
        raise _over(found, size, cap, root)
    answer, others = git.Answer(None), list[str]()
    if facts:
        others = _no_secrets(root, found, globs(not_secret), cache)
        answer = git.look(root, never=never, held={one.path for one in found})
        others += _other_control(root)
    missed = sorted(rules.missed)[:_NAMED]
    problems = [
        *_links(root, found),
        *(
            f"no path of the source matches --exclude {glob}"
            for glob, used in zip(exclude, rules.exclude, strict=True)
            if not used.hit
        ),
        *(
            f"nothing is brought back by --include {glob}"
            for glob, used in zip(include, rules.include, strict=True)
            if not used.hit
        ),
        *(f"{path} is ignored by git, and Python may need it: not in the snapshot without --include {path}" for path in missed),
        *([f"and {rest} more that git ignores and Python may need"] if (rest := len(rules.missed) - len(missed)) > 0 else []),
        *answer.problems,
        rules.problem,
    ]
    return SourceTree(
        root=root,
        found=found,
        git=answer.git,
        excluded=rules.rows(),
        size=size,
        ignored=tuple(sorted(rules.ignored_folders)),
        data=_data(listed, found, rules, data) if rules.data else (),
        problems=tuple(sorted({redact.line(problem) for problem in problems if problem})),
        notes=tuple(sorted({*answer.notes, *others})),
    )


def measured(tree: SourceTree, folder: Path, size: int) -> SourceTree:
    """With the size (bytes) of the folder that `look` left unmeasured, where it is one that was left out."""
    rows = tuple(
        msgspec.structs.replace(row, size=size) if os.path.realpath(tree.root / row.path) == os.path.realpath(folder) else row
        for row in tree.excluded
    )
    return msgspec.structs.replace(tree, excluded=rows)


def imported(tree: SourceTree, folders: Sequence[Path], *, without: Sequence[Path] = ()) -> tuple[str, ...]:
    """Patterns for `include` that bring in what Python imports from although git ignores it.

    `folders`: those on `sys.path` (a zip file may be one), and of editable projects. `without`: the environment and the interpreter, which are
    held otherwise. Store the patterns with the source: a run looks at it by the same rules.
    """
    root = os.path.realpath(tree.root)
    apart = [os.path.realpath(path) for path in without]
    held = {one.path for one in tree.found}
    patterns = set()
    for folder in {os.path.realpath(folder) for folder in folders}:
        path = os.path.relpath(folder, root)
        if path == "." or path.startswith("../") or path == ".." or in_environment(Path(root), path):
            continue
        inside = any(path == one or path.startswith(one + "/") for one in tree.ignored)
        missing = inside if os.path.isdir(folder) else os.path.isfile(folder) and path not in held  # noqa: PTH112, PTH113
        if missing and not any(folder == one or folder.startswith(one + "/") for one in apart):
            patterns.add("/" + escaped(path))
    return tuple(sorted(patterns))


def _walk(root: Path, rules: Rules, *, far: int) -> list[Found]:
    """What is not skipped, directories that are only passed included. Ends early behind `far` bytes: whoever named a whole disk need not wait for its last file."""
    kept: list[Found] = []
    size = 0
    try:
        for one in walk(root, skip=rules.skip):
            if one.kind == "other":
                rules.other(one.path)
                continue
            kept.append(one)
            size += one.size
            if size > far:
                break
    except PermissionError as error:
        raise _unreadable(str(error.filename or root), root) from None
    except CaptureError as error:
        raise SourceError(error.what, where=error.where, hint=error.hint) from None
    return kept


def _without_unneeded(kept: Sequence[Found], rules: Rules) -> tuple[Found, ...]:
    """Without directories of which nothing is kept."""
    wanted = {parent for one in kept if not rules.only_passed(one.path) for parent in _parents(one.path)}
    return tuple(one for one in kept if not rules.only_passed(one.path) or one.path in wanted)


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _data(listed: Sequence[Found], found: Sequence[Found], rules: Rules, most: int) -> tuple[Found, ...]:
    """Git-ignored data up to `most` bytes in all: the smallest ignored paths, each complete, and their directories."""
    sizes: dict[str, int] = defaultdict(int)
    for one in listed:
        if one.path in rules.data:
            sizes[rules.data[one.path]] += one.size
    kept: set[str] = set()
    total = 0
    for path in sorted(sizes, key=lambda path: (sizes[path], path)):
        total += sizes[path]
        if total > most or len(kept) == MANY:
            break
        kept.add(path)
    chosen = {one.path for one in listed if rules.data.get(one.path) in kept}
    chosen |= {parent for path in chosen for parent in _parents(path)}
    chosen.difference_update(one.path for one in found)
    return tuple(one for one in listed if one.path in chosen)


def _no_secrets(root: Path, found: Sequence[Found], declared: Sequence[Glob], cache: secrets.Cache | None) -> list[str]:
    """Raises `SourceError` with all secrets in files and their names. Returns notes on files that the user declared clean."""
    notes, refused = [], []
    try:
        for secret in secrets.among(root, found, cache=cache):
            if secrets.is_declared(secret, declared):
                notes.append(secrets.declaration(secret))
            else:
                refused.append(secret)
    except PermissionError as error:
        raise _unreadable(str(error.filename or root), root) from None
    except FileNotFoundError as error:
        raise SourceError(
            "vanished while it was read", where=str(error.filename or root), hint="try again when nothing writes there"
        ) from None
    except OSError as error:
        path = os.path.relpath(str(error.filename or root), root)
        raise SourceError(f"cannot be read: {error.strerror}", where=str(root / path), hint=_leave_out(path)) from None
    if refused:
        files = len(dict.fromkeys(one.path for one in refused))
        raise SourceError(
            f"{files} file{' of the source holds' if files == 1 else 's of the source hold'} a secret",
            where=str(root),
            hint="remove the secrets from the code and pass them to runs with `exec --env NAME`, or leave the files out with --exclude;\n"
            f"     --not-secret accepts a file that holds none:\n     {secrets.report(refused, '--exclude --not-secret')}",
        )
    return notes


def _unreadable(path: str, root: Path) -> SourceError:
    return SourceError(
        "cannot be read by you", where=path, hint=f"make it readable, or {_leave_out(os.path.relpath(path, root))}"
    )


def _leave_out(path: str) -> str:
    return f"--exclude '{path}'"


def _over(found: Sequence[Found], size: int, cap: int, root: Path) -> SourceError:
    """Names where the bytes are: the deepest folders or files that hold nearly all of a share."""
    below: dict[str, int] = defaultdict(int)
    children: dict[str, set[str]] = defaultdict(set)
    for one in found:
        if one.kind == "file":
            path = one.path
            while path:
                below[path] += one.size
                parent = path.rpartition("/")[0]
                children[parent].add(path)
                path = parent
    largest = []
    for path in sorted(children[""], key=lambda path: (-below[path], path))[:3]:
        while children[path] and below[child := max(children[path], key=lambda one: (below[one], one))] > 0.9 * below[path]:
            path = child
        largest.append(path)
    named = ", ".join(f"{path} ({_megabytes(below[path])})" for path in largest)
    return SourceError(
        f"the source is {_megabytes(size)}, over the cap of {_megabytes(cap)}; the largest: {named}",
        where=str(root),
        hint=f"{_leave_out(largest[0])}, or give data with --data {largest[0]}, or list it in .gitignore",
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _other_control(root: Path) -> list[str]:
    """Version control that is not asked: the snapshot has the files, and no revision."""
    real = Path(os.path.realpath(root))
    near = next(
        ((folder, mark) for folder in (real, *real.parents) for mark in _OTHER_CONTROL if os.path.lexists(folder / mark)), None
    )
    if near is None or any(os.path.lexists(folder / ".git") for folder in (real, *real.parents)):
        return []
    return [f"{near[0]} is a repository of {_OTHER_CONTROL[near[1]]}, which is not asked: files are held, no revision is named"]


def _links(root: Path, found: Sequence[Found]) -> list[str]:
    """Symlinks that a run will not be able to follow."""
    held = {one.path for one in found}
    links = {one.path: one.target for one in found if one.kind == "link"}
    problems = []
    for link, target in links.items():
        full = os.path.normpath(root / os.path.dirname(link) / target)  # noqa: PTH120
        path = os.path.relpath(full, root)
        parts = path.split("/")
        if path == ".." or path.startswith("../"):
            problems.append(f"{link} is a symlink to {target}, outside the source: a run sees that only when it is mounted there")
        elif path == "." or path in held or any("/".join(parts[:end]) in links for end in range(1, len(parts))):
            continue
        elif os.path.lexists(full):
            problems.append(f"{link} is a symlink to {target}, which is not in the snapshot")
    return problems
