"""The commands `repro-env runs push`, `runs pull` and `runs list --from`: share runs in a catalog.

A catalog is a repository of a registry, or a directory. Which runs and which of their outputs are moved is decided here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from repro_env.api.arguments import absolute
from repro_env.api.runs import find_runs_directory
from repro_env.compare.outputs.comparison import matches
from repro_env.runs.catalog import contents, place
from repro_env.runs.catalog.directory import DirectoryCatalog
from repro_env.runs.records import annotation, ids, records
from repro_env.runs.records.summary import RunLine, Summary, line_of
from repro_env.schema.errors import ArtifactError, CaptureError, RecordError, ReproEnvError, SpecError, UsageError
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.rundirectory import output_of
from repro_env.specs.argument import current_directory, reference_of
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.runs.catalog.place import Catalog
    from repro_env.runs.catalog.receiving import Received
    from repro_env.runs.catalog.sending import Sent
    from repro_env.runs.records.records import Run

MOST = 1_000_000_000
"""Bytes of a run's outputs that are moved by default, the smallest outputs first."""
_OF_ONE_RUN = (RecordError, CaptureError, SpecError, ArtifactError)
"""Errors after which the next run is tried."""
_Result = TypeVar("_Result")


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that could not be pushed, pulled or listed."""

    id: str
    why: ReproEnvError


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `push_runs`."""

    catalog: str
    runs: tuple[Sent, ...]
    """Oldest first; also those that the catalog had."""
    failed: tuple[Failed, ...]


class PulledRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `pull_runs`."""

    catalog: str
    directory: Path
    runs: tuple[Received, ...]
    """Oldest first; also those that were here."""
    failed: tuple[Failed, ...]


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a catalog."""

    id: str
    summary: Summary
    tags: tuple[str, ...]
    """Sorted."""

    @property
    def short(self) -> str:
        return ids.short(self.id)

    @property
    def ending(self) -> str:
        """How the run ended, in a few words."""
        return "interrupted" if self.summary.outcome is None else records.ending_of(self.summary.outcome)

    def line(self) -> RunLine:
        """The line of a list."""
        return line_of(self.id, self.summary, "interrupted" if self.summary.outcome is None else "done", self.ending, self.tags)


class SharedListing(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `list_shared_runs`."""

    catalog: str
    runs: tuple[ListedRun, ...]
    """Newest first."""
    unreadable: tuple[Failed, ...]


@contextlib.contextmanager
def open_catalog(word: str, here: Path) -> Iterator[Catalog]:
    """Open the catalog that a user names: an existing directory, or HOST/NAME in a registry.

    Raises `UsageError` if the word is neither, or if the directory is neither a catalog nor empty.
    """
    directory = here / word
    catalog: Catalog
    if word and directory.is_dir():
        catalog = DirectoryCatalog(directory)
    else:
        hint = "create the directory for your team (mkdir -m 2775 DIR), or name HOST/NAME"
        try:
            reference = reference_of(word)
        except SpecError as error:
            raise UsageError(error.what, where=word, hint=hint) from None
        if reference is None:
            what = "this is neither an existing directory nor a repository of a registry"
            raise UsageError(what, where=word or "''", hint=hint)
        if reference.digest or f"{reference.name}:{reference.tag}" == word:
            what = "a catalog is a repository without a tag, because each run has its own tag"
            raise UsageError(what, where=word, hint=f"name {reference.name}")
        from repro_env.runs.catalog.repository import RepositoryCatalog

        catalog = RepositoryCatalog(reference)
    with contextlib.closing(catalog):
        yield catalog


def check_catalog(catalog: str) -> None:
    """Check that this user may push to a catalog. Raises `UsageError`, `NetworkError`, `DiskError`."""
    with open_catalog(catalog, current_directory()) as target:
        target.prepare()


def push_runs(
    catalog: str,
    words: Sequence[str] = (),
    *,
    runs: Path | str | None = None,
    outputs: Sequence[str] = (),
    not_secret: Sequence[str] = (),
    store: Store | None = None,
    tell: Tell = SILENT,
) -> Pushed:
    """Push runs to a catalog, with their specs and code. What the catalog has is not sent again.

    `words`: IDs of runs, by default all runs of the directory that are not running. `outputs`: see `choose`. `not_secret`: globs of
    files that contain no secret. Raises `RecordError` if a named run does not exist or is running, `UsageError`, `NetworkError`,
    `DiskError`. Other problems of a run are in `failed`.
    """
    from repro_env.runs.catalog.sending import Sender

    here, store = current_directory(), store or Store.open()
    directory = find_runs_directory(absolute(runs))
    choice = choose(outputs)
    failed: list[Failed] = []
    if words:
        chosen = [records.read(path) for path in dict.fromkeys(records.find(directory, word) for word in words)]
        for run in chosen:
            if run.state == "running":
                raise RecordError("this run is still running", where=run.directory.name, hint="push it when it has ended")
    else:
        readable, unreadable = records.listing(directory)
        chosen = [run for run in readable if run.state != "running"]
        failed = [Failed(id=damaged.directory.name, why=damaged.why) for damaged in unreadable]
    chosen.sort(key=lambda run: run.id)
    with open_catalog(catalog, here) as target:
        target.prepare()
        wanted = {run.id for run in chosen}
        stored = place.read(target, [tag for tag in place.find(target, ()) if tag.run in wanted])
        sender = Sender(target, stored, store, not_secret=not_secret, tell=tell)

        def send(run: Run) -> Sent:
            return sender.send(run, choice({output.path: output.size for output in contents.outputs_of(run)}))

        sent, more = _each(((run.id, run) for run in chosen), send)
        return Pushed(catalog=target.name, runs=tuple(sent), failed=(*failed, *more))


def pull_runs(
    catalog: str,
    words: Sequence[str] = (),
    *,
    runs: Path | str | None = None,
    outputs: Sequence[str] = (),
    store: Store | None = None,
    tell: Tell = SILENT,
) -> PulledRuns:
    """Pull runs from a catalog, with their specs and code. Runs that are here are completed, and never changed.

    `words`: IDs of runs, by default all runs of the catalog. `outputs`: see `choose`. Raises `RecordError` if the catalog does not
    have a named run, `UsageError`, `NetworkError`, `DiskError`. Other problems of a run are in `failed`.
    """
    from repro_env.runs.catalog.receiving import Receiver

    here, store = current_directory(), store or Store.open()
    directory = find_runs_directory(absolute(runs)).absolute()
    choice, is_new = choose(outputs), not (directory / records.LATEST).is_symlink()
    with open_catalog(catalog, here) as source:
        tags = place.find(source, words)
        stored = place.read(source, tags)
        receiver = Receiver(source, directory, store, tell=tell)

        def receive(run_id: str) -> Received:
            shared = stored.run(run_id, source.name)
            paths = {output: path for path in shared.files if (output := output_of(path)) is not None}
            chosen = choice({output: shared.files[path].size for output, path in paths.items()})
            return receiver.receive(shared, {paths[output] for output in chosen})

        received, failed = _each(((run_id, run_id) for run_id in dict.fromkeys(tag.run for tag in tags)), receive)
        if is_new and received:  # commands find a directory of runs by this link
            records.point_latest(received[-1].directory)
        return PulledRuns(catalog=source.name, directory=directory, runs=tuple(received), failed=tuple(failed))


def list_shared_runs(catalog: str) -> SharedListing:
    """List the runs of a catalog, newest first. Raises `UsageError`, `NetworkError`."""
    with open_catalog(catalog, current_directory()) as source:
        stored = place.read(source, place.find(source, ()))
        run_ids = sorted({*stored.parts, *stored.damaged}, reverse=True)

        def list_one(run_id: str) -> ListedRun:
            shared = stored.run(run_id, source.name)
            return ListedRun(id=shared.id, summary=shared.summary, tags=annotation.tags(shared.annotations.values()))

        listed, failed = _each(((run_id, run_id) for run_id in run_ids), list_one)
        return SharedListing(catalog=source.name, runs=tuple(listed), unreadable=tuple(failed))


_Item = TypeVar("_Item")


def _each(items: Iterable[tuple[str, _Item]], do: Callable[[_Item], _Result]) -> tuple[list[_Result], list[Failed]]:
    """Call `do` for each item of (ID, item). Returns the results, and the errors that concern one run only."""
    results: list[_Result] = []
    failed: list[Failed] = []
    for run_id, item in items:
        try:
            results.append(do(item))
        except _OF_ONE_RUN as error:  # noqa: PERF203
            failed.append(Failed(id=run_id, why=error))
    return results, failed


def choose(patterns: Sequence[str]) -> Callable[[dict[str, int]], set[str]]:
    """Return the rule that chooses outputs by path and size: `all`, `none`, or those that a pattern matches.

    Without patterns, the smallest outputs are chosen, up to `MOST` bytes. Raises `UsageError` for a pattern that is not valid.
    """
    if "all" in patterns or "none" in patterns:
        if len(patterns) > 1:
            raise UsageError("--outputs all and --outputs none exclude every other --outputs", hint="give one of them")
        return set if patterns == ["all"] else lambda _: set()
    if patterns:
        matches("", patterns)  # so that a wrong pattern is an error even without outputs
        return lambda sizes: {path for path in sizes if matches(path, patterns)}
    return _smallest


def _smallest(sizes: dict[str, int]) -> set[str]:
    chosen, total = set(), 0
    for path, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
        total += size
        if total > MOST:
            break
        chosen.add(path)
    return chosen
