"""Compare the results of two runs: pair their outputs, and find the differences of each pair."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from repro_env.compare.outputs.comparison import ARROW, File, Kind, Pair, Paired, matches, pair, read_other
from repro_env.compare.outputs.evidence import Evidence, of_run
from repro_env.compare.outputs.fields import random_names
from repro_env.compare.outputs.formats import LARGEST
from repro_env.compare.outputs.ignore import Ignore
from repro_env.compare.outputs.inspector import CompareTensors
from repro_env.compare.outputs.judge import Judge
from repro_env.compare.outputs.tensors import holds_tensors
from repro_env.compare.traces import comparison, divergence
from repro_env.io.files import open_regular, read_regular, sha256_of
from repro_env.runs.records import checkpointstate, ids, pulled, records
from repro_env.sandbox.runners import runner_class
from repro_env.schema.errors import RecordError, UsageError
from repro_env.schema.messages import shorten
from repro_env.schema.run import End, Mount, Start
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE, CONSOLE, path_of

_LISTED = 8
"""Most outputs that an error names."""


class Side(msgspec.Struct, frozen=True):
    """The outputs of one of the two runs."""

    digests: dict[str, str]
    """Path -> `sha256:<hex>`, as recorded. A file in a checkpoint directory has the absolute path that the run saw."""
    places: dict[str, Path]
    """Path -> the file."""
    end: End
    directory: Path
    """The directory of the run."""
    evidence: Evidence = Evidence()

    def below(self, path: str) -> Path | None:
        """Return the directory below which the file's path must not have a symlink (`io.files.open_regular`)."""
        place = self.places[path]
        return self.directory if place.is_relative_to(self.directory) else None


class Globs(msgspec.Struct, frozen=True, kw_only=True):
    """The user's options about outputs."""

    results: tuple[str, ...] = ()
    """Globs of outputs that decide the verdict. In these outputs, only `ignored` explains a difference."""
    ignored: tuple[Ignore, ...] = ()

    def of(self, path: str, kind: Kind = "result") -> Kind:
        """Return the kind of an output. `kind`: its kind if the options do not name it."""
        if any(ignore.place is None and ignore.matches_file(path) for ignore in self.ignored):
            return "ignored"
        return "result" if matches(path, self.results) else kind

    def check(self, end: End, paths: Iterable[str]) -> None:
        """Raise `UsageError` if a glob of results does not match an output of the run."""
        outputs = sorted({*paths, *_other_paths(end)})
        for glob in self.results:
            if not glob or not any(matches(path, (glob,)) for path in outputs):
                hint = f"its outputs are {shorten(outputs, _LISTED)}" if outputs else "the run has no outputs"
                raise UsageError("this glob does not match an output of the run", where=f"--result {glob}", hint=hint)

    def unmatched(self, *sides: Side) -> list[str]:
        """Return the files of --ignore that do not match an output of these runs."""
        outputs = {path for side in sides for path in (*side.digests, *_other_paths(side.end))}
        given = [ignore for ignore in self.ignored if ignore.source == "--ignore"]
        return [ignore.file for ignore in given if not any(ignore.matches_file(path) for path in outputs)]


def _other_paths(end: End) -> list[str]:
    """Return the console logs and links of a run, and the files that it deleted."""
    return [*(log.path for log in end.console), *(read_other(line)[0] for line in end.special_files), *end.removed]


def side(directory: Path, end: End, mounts: Sequence[Mount]) -> Side:
    """Return the outputs of the run in `directory`. `mounts`: its checkpoint directories."""
    start = records.read(directory).start
    digests = {output.path: output.sha256 for output in end.outputs}
    places = {output.path: directory / path_of(output.path) for output in end.outputs}
    if mounts:
        old, new = (
            checkpointstate.read(directory, CHECKPOINTS_BEFORE, start.checkpoints_before),
            checkpointstate.read(directory, CHECKPOINTS_AFTER, end.checkpoints_after),
        )
        sources = {mount.target: mount.source for mount in mounts}
        for path, file in checkpointstate.changed_files(old, new).items():
            if file.target not in sources:
                raise RecordError(
                    f"this file names {file.target}, which is not a checkpoint directory of the run",
                    where=str(directory / CHECKPOINTS_AFTER),
                    hint="the record was changed: restore it from a backup",
                )
            digests[path] = file.sha256
            places[path] = Path(sources[file.target], file.path) if file.path else Path(sources[file.target])
    return Side(digests, places, end, directory, evidence(directory, start, end))


def evidence(directory: Path, start: Start, end: End) -> Evidence:
    """Return the evidence of the run in `directory`: its record, its directories, and random names in its outputs.

    Records do not have a time zone. A time without a zone is read in UTC and in the zone of this machine, so it is not
    evidence if the run was in another zone. Raises `RecordError` if the record has no valid times.
    """
    workspace = runner_class(start.runner).project_path(directory, start.source.path)
    names = [(name, "the run's directory") for name in (str(directory), directory.name)]
    names += random_names([output.path for output in end.outputs])
    try:
        return of_run(start, end, workspace, names, _zones(start.started))
    except (ValueError, OverflowError) as error:
        raise RecordError(
            f"the start or end time of this run cannot be read: {error}",
            where=str(directory),
            hint="the record was changed: restore it from a backup",
        ) from None


def _zones(started: str) -> tuple[int, ...]:
    """Return the UTC offset of this machine at a time, in seconds."""
    local = datetime.fromisoformat(started.replace("Z", "+00:00")).astimezone().utcoffset()
    return () if local is None else (int(local.total_seconds()),)


def kinds(side: Side, globs: Globs) -> set[Kind]:
    """Return the kinds of all outputs of a run: files, links, deleted files of the source, and console logs."""
    links = [path for path, what in map(read_other, side.end.special_files) if what.startswith(ARROW)]
    return {
        *(globs.of(path) for path in (*side.digests, *side.end.removed, *links)),
        *(globs.of(log.path, "console") for log in side.end.console if log.size),
    }


def compare(left: Side, right: Side, globs: Globs, look: CompareTensors) -> tuple[File, ...]:
    """Compare all outputs of two runs: by digest, then by content. `look`: compares pairs of tensor files."""
    judge = Judge(left.evidence, right.evidence, globs.ignored, globs.results)
    paired = pair(left.digests, right.digests, judge.pair_names)
    found = [*_unpaired(paired, globs), *_removed(left.end, right.end, globs)]
    found += consoles(left, right, globs, judge)
    found += compare_links(left.end.special_files, right.end.special_files, judge)
    with_tensors: list[File] = []
    for names in paired.pairs:
        file = _file(names.left, names.right, globs)
        if (judged := _without_content(file, left, right, judge)) is not None:
            found.append(judged)
        elif holds_tensors(names.left, _first_bytes(left, names.left)):
            with_tensors.append(file)
        else:
            found.append(_by_content(file, left, right, judge))
    if with_tensors:
        answers = look([(left.places[file.path], right.places[file.now]) for file in with_tensors])
        for file, answer in zip(with_tensors, answers, strict=True):
            found.append(judge.of_answer(file, answer, partial(_contents, file, left, right)))
    return tuple(map(judge.with_option, found))


def contents(left: Side, right: Side, pairs: Iterable[Pair], judge: Judge) -> Iterator[File]:
    """Compare outputs whose digests differ. Tensors are not read: that needs the Python of an image."""
    for names in pairs:
        if names.left in left.places and names.right in right.places:
            file = _file(names.left, names.right, Globs())
            judged = _without_content(file, left, right, judge)
            if judged is None and holds_tensors(names.left, _first_bytes(left, names.left)):
                judged = file.not_compared("tensors or a database: `repro-env verify` reads them")
            yield judged or _by_content(file, left, right, judge)


def _file(path: str, now: str, globs: Globs, kind: Kind = "result") -> File:
    return File(path=path, now=now, kind=globs.of(path or now, kind))


def _unpaired(paired: Paired, globs: Globs) -> Iterator[File]:
    for path in paired.missing:
        yield _file(path, "", globs).differing("the new run did not write it", "nothing")
    for path in paired.new:
        yield _file("", path, globs).differing("only the new run wrote it", "nothing")


def consoles(left: Side, right: Side, globs: Globs, judge: Judge) -> Iterator[File]:
    """Compare the console logs. If the streams of only one of the runs are in one log, the lines are compared in sorted order."""
    then, now = _console(left), _console(right)
    printed = {log.path for side in (left, right) for log in side.end.console if log.size}
    if printed and then.digests.keys() != now.digests.keys():
        file = _file(CONSOLE, CONSOLE, globs, "console")
        if file.kind == "console":
            try:
                old, new = _lines(then), _lines(now)
                yield judge.equal(file) if old == new else judge.of_bytes(file, old, new)
            except OSError as error:  # a pulled run may have no logs
                yield file.not_compared(f"a log cannot be read: {error.strerror}")
        return
    for name in sorted(printed):
        file = _file(name, name, globs, "console")
        yield _without_content(file, then, now, judge) or _by_content(file, then, now, judge)


def _console(side: Side) -> Side:
    """Return the console logs as outputs."""
    digests = {log.path: log.sha256 for log in side.end.console}
    return Side(digests, {name: side.directory / name for name in digests}, side.end, side.directory, side.evidence)


def _lines(side: Side) -> bytes:
    """Return the lines of all logs, sorted."""
    texts = [read_regular(path, LARGEST, below=side.directory) for path in side.places.values()]
    return b"".join(sorted(b"".join(texts).splitlines(keepends=True)))


def _removed(left: End, right: End, globs: Globs) -> Iterator[File]:
    """Yield the files of the source that only one of the two runs deleted."""
    for path in sorted(set(left.removed) ^ set(right.removed)):
        why = f"only the {'first' if path in left.removed else 'new'} run deleted it"
        yield _file(path, path, globs).differing(why, "nothing")


def _without_content(file: File, left: Side, right: Side, judge: Judge) -> File | None:
    """Judge a pair without its content, if it is equal, ignored, or changed since its run; else return None."""
    equal = left.digests[file.path] == right.digests[file.now]
    if file.kind == "ignored" and not (equal and file.path == file.now):
        return file.not_compared(judge.left_out(file.path))
    if equal:
        return judge.equal(file)
    if why := _left_out(left, file.path) or _left_out(right, file.now):
        return file.not_compared(f"its bytes differ, and the recorded file is not here: {why}")
    problem = _changed(left, file.path) or _changed(right, file.now)
    return file.differing(f"its bytes differ, and {problem}") if problem else None


def _left_out(side: Side, path: str) -> str:
    """Return why an output is missing on purpose; empty if it is not."""
    if os.path.lexists(side.places[path]) or (found := pulled.read(side.directory)) is None:
        return ""
    return found.why(path, ids.short(side.end.id))


def _changed(side: Side, path: str) -> str:
    """Return why the file of a recorded output cannot be compared; empty if it still has the recorded bytes."""
    try:
        now = f"sha256:{sha256_of(side.places[path], below=side.below(path))}"
    except OSError as error:
        return f"the file {side.places[path]} cannot be read: {error.strerror}"
    return "" if now == side.digests[path] else f"the file {side.places[path]} has changed since the run"


def _first_bytes(side: Side, path: str) -> bytes:
    with os.fdopen(open_regular(side.places[path], below=side.below(path)), "rb") as file:
        return file.read(8)


def _by_content(file: File, left: Side, right: Side, judge: Judge) -> File:
    if max(left.places[file.path].stat().st_size, right.places[file.now].stat().st_size) > LARGEST:
        return file.differing("its bytes differ, and the file is too large to be read")
    return judge.of_bytes(file, *_contents(file, left, right))


def _contents(file: File, left: Side, right: Side) -> tuple[bytes, bytes]:
    """Return the bytes of both sides, at most `LARGEST` each."""
    return (
        read_regular(left.places[file.path], LARGEST, below=left.below(file.path)),
        read_regular(right.places[file.now], LARGEST, below=right.below(file.now)),
    )


def compare_links(left: Sequence[str], right: Sequence[str], judge: Judge) -> tuple[File, ...]:
    """Compare the lines of `End.others`: `<path> -> <target>`, `<path> (why)`, or `(why)` for the outputs as a whole."""
    old, new = dict(map(read_other, left)), dict(map(read_other, right))
    problems = {old.pop("", ""), new.pop("", "")} - {""}
    paired = pair(old, new, judge.pair_names)
    names = [(names.left, names.right) for names in paired.pairs]
    names += [*((path, "") for path in paired.missing), *(("", path) for path in paired.new)]
    files = [_compare_link(path, now, old.get(path, ""), new.get(now, ""), judge) for path, now in names]
    why = "the record of the outputs is not complete"
    files += [File(path=problem, now=problem, kind="result").not_compared(why) for problem in problems]
    return tuple(sorted(files, key=lambda file: (file.name, file.now)))


def _compare_link(path: str, now: str, then_what: str, now_what: str, judge: Judge) -> File:
    file = File(path=path, now=now, kind="ignored" if judge.left_out(path or now) else "result")
    for what in (now_what, then_what):
        if what.startswith("("):
            return File(path=path or now, now=now or path, kind=file.kind).not_compared(f"it is not a regular file {what}")
    if not path or not now:
        return file.differing("the link is missing" if path else "the link is new", "link")
    if then_what == now_what:
        return judge.equal(file)
    return judge.of_link(file, *(what.removeprefix(ARROW) for what in (then_what, now_what)))


def first_step(left: Path, right: Path) -> str:
    """Return a sentence about the first training step that differs in the traces of both runs, or why it is not known.

    Empty if no step differs, or if neither run has a trace.
    """
    found = comparison.compare_traces(left, right)
    if found is None:
        return ""
    if found.first:
        return divergence.sentence(found.first[0])
    return f"not known: {shorten(found.missing, 1)}" if found.missing else ""
