"""The commands `repro-env runs`: list, annotate and remove runs, read their logs, and select and copy their outputs."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.api.arguments import absolute
from repro_env.compare.outputs.comparison import matches
from repro_env.io.files import Found, open_regular, room, sha256_of, walk
from repro_env.oci.paths import is_below
from repro_env.runs.records import annotation, pulled, records, summary, toolfiles
from repro_env.runs.records.annotation import Annotation
from repro_env.runs.records.records import Run, Unreadable
from repro_env.runs.records.summary import RunLine
from repro_env.schema.errors import DiskError, RecordError, StoreError, os_errors_as
from repro_env.schema.messages import shorten
from repro_env.schema.patterns import lazy
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.run import Output
from repro_env.schema.rundirectory import OUTSIDE, locate
from repro_env.specs.argument import current_directory
from repro_env.store.specs.files import SPEC
from repro_env.store.specs.lookup import DIRECTORY
from repro_env.store.store import Store

_CONTROL = lazy(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
"""Escape sequences for colours, cursor movements and window titles (ECMA-48)."""


def find_runs_directory(given: Path | None, start: Path | None = None) -> Path:
    """Return the given runs directory, else the one next to the nearest spec from `start` upwards, else the nearest `runs`.

    `start`: by default the current directory. The spec is not read, so runs can be listed even if it is damaged.
    """
    if given is not None:
        return given
    start = start or current_directory()
    for directory in (start, *start.parents):
        if (directory / DIRECTORY / SPEC).is_file() or (directory / "runs" / records.LATEST).is_symlink():
            return directory / "runs"
    raise RecordError(
        f"neither this directory nor one above it has a {DIRECTORY}/{SPEC} or runs",
        where=str(start),
        hint="change to the project's directory, name a directory of runs with --runs DIR, or get runs of others with "
        "repro-env runs pull REF --runs runs",
    )


class Listing(msgspec.Struct, frozen=True):
    """The runs in one directory of runs, newest first, and the unreadable ones with their reasons."""

    runs: tuple[Run, ...]
    unreadable: tuple[Unreadable, ...]


def list_runs(runs: Path | str | None = None, *, tell: Tell = SILENT) -> Listing:
    """Return the runs of a directory.

    By default, the directory is that of the nearest spec (`find_runs_directory`). The store remembers it
    (`store.run_directories`). Raises `RecordError` if it is not a directory.
    """
    runs = find_runs_directory(absolute(runs))
    _remember(runs, tell)
    readable, unreadable = records.listing(runs)
    return Listing(tuple(readable), tuple(unreadable))


def list_lines(runs: Path, *, tell: Tell = SILENT) -> tuple[list[RunLine], list[Unreadable]]:
    """Return a line for each run of a directory, newest first, and the unreadable runs. As `list_runs`, but no record is read twice."""
    store = _remember(runs, tell)
    return summary.lines(runs, store.facts if store is not None else None)


def _remember(runs: Path, tell: Tell) -> Store | None:
    """Let the store remember a directory of runs. Return the store; None if it cannot be used, or if the directory does not exist."""
    try:
        store = Store.open() if runs.is_dir() else None
        if store is not None:
            store.run_directories.add(runs)
    except (StoreError, DiskError) as error:
        tell.detail(f"note: the store does not remember this directory of runs, because it cannot be used: {error}")
        return None
    return store


def select_outputs(run: Run, glob: str | None) -> tuple[Found, ...]:
    """Return the output files and symlinks that a pattern matches (`compare.outputs.comparison.matches`).

    The path that the script used matches too: an absolute path, or a path that leaves the project with `..`. A relative pattern
    matches the end of the path of a file outside the project.

    Raises `RecordError` if no output matches, and `UsageError` for a pattern that is not valid.
    """
    if run.files.is_symlink():
        what = "this is a symbolic link, but must be a directory"
        raise RecordError(what, where=str(run.files), hint="restore the run from a backup")
    glob = _as_written(run, glob)
    recorded = _recorded(run)
    outputs = [found for found in _walk(run) if found.kind in ("file", "link") or found.path in recorded]
    picked = [found for found in outputs if _is_selected(found.path, glob)]
    if not picked:
        what = "this run has no outputs" if not outputs else f"no output of this run matches {glob!r}"
        what = _missing_outputs(run, picked, glob) or what
        if run.state == "running":
            what += "; the run has not ended, and what it writes outside its project can be copied afterwards"
        raise RecordError(what, where=run.directory.name, hint=f"`repro-env runs show {run.short}` lists them")
    return tuple(picked)


def _is_selected(path: str, glob: str | None) -> bool:
    if glob is None or matches(path, [glob]) or matches(_copy_path(path), [glob]):
        return True
    return path.startswith("/") and not glob.startswith("/") and matches(path, [f"/**/{glob}"])


def _as_written(run: Run, glob: str | None) -> str | None:
    """Return the pattern for an output by the path that the script used, as a path in the project or an absolute path."""
    source = run.start.source
    if glob is None or not (glob.startswith("/") or ".." in glob.split("/")):
        return glob
    path = os.path.normpath(Path(run.start.cwd, glob))
    for root in (source.path, source.directory):
        if root is not None and is_below(path, root):
            return os.path.relpath(path, root)
    return path


def _missing_outputs(run: Run, picked: Sequence[Found], glob: str | None) -> str:
    """Return which recorded outputs that a pattern matches are not in the run's directory, and why; empty if all are."""
    here = {found.path for found in picked}
    missing = [path for path in _recorded(run) if path not in here and _is_selected(path, glob)]
    if not missing:
        return ""
    source = pulled.read(run.directory)
    why = source.why(missing[0], run.short) if source is not None else ""
    return f"not here: {shorten(missing, 3)}: {why or 'removed after the run'}"


def _walk(run: Run) -> Iterator[Found]:
    """Yield the files that a run wrote in its project, and external files by absolute path (not until the run has ended)."""
    outside = run.directory / OUTSIDE
    if run.files.is_dir():
        yield from walk(run.files)
    if outside.is_dir() and run.state != "running":
        yield from (msgspec.structs.replace(found, path=f"/{found.path}") for found in walk(outside))


def _copy_path(path: str) -> str:
    """Return the path of an output's copy, relative to the directory of all copies."""
    return f"{OUTSIDE}{path}" if path.startswith("/") else path


def _recorded(run: Run) -> dict[str, Output]:
    return {output.path: output for output in run.end.outputs} if run.end is not None else {}


def copy_outputs(run: Run, glob: str | None, target: Path, *, force: bool, tell: Tell) -> tuple[Path, ...]:
    """Copy outputs below `target`, to the paths where the run wrote them (external files below `outside/`); return the copies.

    A symlink that leads out of the outputs, and what tools of this machine would execute by themselves (`records.toolfiles`), is
    skipped with a warning. Raises `RecordError` before the first copy if a copy
    would overwrite a file (unless `force`) or would be written through a symlink, or if an output differs from the record;
    `DiskError` if the outputs do not fit.
    """
    recorded = _recorded(run)
    picked, of_tools = [], []
    selected = select_outputs(run, glob)
    glob = _as_written(run, glob)
    if missing := _missing_outputs(run, selected, glob):
        tell.warn(f"note: {missing}")
    for found in selected:
        if found.path not in recorded and found.kind == "link" and _leads_out(found):
            tell.warn(
                f"note: {found.path} was skipped, because it is a symbolic link that leads out of the outputs, to {found.target}"
            )
        elif why := toolfiles.reason(found.path, target / _copy_path(found.path)):
            of_tools.append(f"{found.path} ({why})")
        else:
            picked.append(found)
    if of_tools:
        tell.warn(f"note: skipped, because it could become code of this machine: {shorten(of_tools, 3)}")
        tell.warn(f"note: what was skipped is in {run.files}: read it, then copy it yourself")
    if not picked:
        raise RecordError("this run has no outputs that can be copied", where=run.directory.name, hint=f"inspect {run.files}")
    _check_copies(run, picked, target, force=force)
    copies = []
    with room(target):
        for found in picked:
            copies.append(target / _copy_path(found.path))
            _copy(run, found, copies[-1], target, force=force)
    return tuple(copies)


def _check_copies(run: Run, picked: Sequence[Found], target: Path, *, force: bool) -> None:
    """Raise `RecordError` unless all outputs are unchanged and can be copied to `target`."""
    recorded = _recorded(run)
    for found in picked:
        copy = target / _copy_path(found.path)
        for above in copy.relative_to(target).parents:
            if above != Path() and (target / above).is_symlink():
                raise RecordError(
                    "this is a symbolic link, so the output would be written to its target",
                    where=str(target / above),
                    hint="name another directory with --to DIR",
                )
        if not force and (copy.is_symlink() or copy.exists()):
            hint = "name another directory with --to DIR, or overwrite it with --force"
            raise RecordError("this file already exists", where=str(copy), hint=hint)
        if copy.is_dir() and not copy.is_symlink():
            what = "this is a directory, but the output is a file"
            raise RecordError(what, where=str(copy), hint="name another directory with --to DIR")
        if found.path in recorded and (changed := _changed(run, found, recorded[found.path])):
            raise RecordError(
                f"this output differs from the record: {changed}",
                where=str(locate(run.files, found.path)),
                hint="exclude it with a GLOB",
            )


def _copy(run: Run, found: Found, copy: Path, target: Path, *, force: bool) -> None:
    """Copy an output below `target`. Raises `RecordError`, and `DiskError` if the disk is full."""
    from repro_env.sandbox.workspace import copy_file

    hint = "exclude it with a GLOB, or name another directory with --to DIR"
    with os_errors_as(RecordError, "this file cannot be copied", default=copy, hint=hint), room(target):
        copy.parent.mkdir(parents=True, exist_ok=True)
        if force:
            copy.unlink(missing_ok=True)
        if found.kind == "link":
            copy.symlink_to(found.target)
        else:
            copy_file(locate(run.files, found.path), copy, below=run.directory)


def _leads_out(link: Found) -> bool:
    directory = link.path.rpartition("/")[0]
    return link.target.startswith("/") or posixpath.normpath(f"{directory or '.'}/{link.target}").split("/")[0] == ".."


def _changed(run: Run, found: Found, output: Output) -> str:
    """Return why an output differs from its record; empty if it does not. A file of another size, which may be huge, is not read."""
    if found.kind == "file" and found.size != output.size:
        return "it was changed after the run"
    try:
        same = f"sha256:{sha256_of(locate(run.files, found.path), below=run.directory)}" == output.sha256
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return "" if same else "it was changed after the run"


def remove(runs: Path, words: Sequence[str], *, force: bool) -> tuple[Path, ...]:
    """Remove runs with their outputs. If a run is missing or still running, remove none of them."""
    directories = list(dict.fromkeys(records.find(runs, word) for word in words))
    for directory in directories:
        if not force and records.is_running(directory):
            hint = "wait until it ends, stop it, or remove it anyway with --force"
            raise RecordError("this run is still running", where=directory.name, hint=hint)
    for directory in directories:
        records.remove(directory, force=force)
    return tuple(directories)


def read_logs(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield each line as the name of its log and its text, without colours. Of an overwritten line, only the last text is shown.

    Raises `RecordError` if a log cannot be read, or if the run has none.
    """
    has_logs = False
    for path in records.logs(directory):
        name = path.relative_to(directory).as_posix()
        with os_errors_as(RecordError, "this log cannot be read", where=path, hint="check its permissions"):
            try:
                with os.fdopen(open_regular(path, below=directory), "rb") as file:
                    yield from (
                        (name, _CONTROL.sub("", line.decode(errors="replace")).rstrip("\r\n").rpartition("\r")[2])
                        for line in file
                    )
            except FileNotFoundError:
                continue
        has_logs = True
    if not has_logs:
        raise RecordError("this run has no logs", where=directory.name, hint="run the command again, or look at the run's files")


def note(run_directory: Path, text: str, *, decision: bool = False, by: str = "") -> Annotation:
    """Add a note or a decision to a run. Raises as `annotation.add`, and what reading the run's record raises."""
    records.read(run_directory)
    return annotation.add(run_directory, kind="decision" if decision else "note", text=text, by=by)


def tag(run_directory: Path, tags: Sequence[str], *, by: str = "") -> tuple[str, ...]:
    """Add tags to a run and return all its tags, sorted. Tags that the run already has are skipped.

    Raises as `note`. If a tag is invalid, nothing is written.
    """
    for name in tags:
        annotation.check_tag(name)
    records.read(run_directory)
    existing = annotation.tags(annotation.of(run_directory))
    for name in dict.fromkeys(tags):
        if name not in existing:
            annotation.add(run_directory, kind="tag", text=name, by=by)
    return annotation.tags(annotation.of(run_directory))


def untag(run_directory: Path, tags: Sequence[str], *, by: str = "") -> tuple[str, ...]:
    """Remove tags from a run and return the tags that remain. Raises `RecordError` if the run lacks one of them."""
    records.read(run_directory)
    existing = annotation.tags(annotation.of(run_directory))
    for name in tags:
        if name not in existing:
            hint = f"its tags are {', '.join(existing)}" if existing else "it has no tags"
            raise RecordError(f"this run does not have the tag {name!r}", where=run_directory.name, hint=hint)
    for name in dict.fromkeys(tags):
        annotation.add(run_directory, kind="untag", text=name, by=by)
    return annotation.tags(annotation.of(run_directory))
