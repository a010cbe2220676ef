"""What two runs left, side by side: pairs, and what differs in each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from repro_env.catalog import records
from repro_env.catalog.outputs import place
from repro_env.flows import before, traces
from repro_env.flows.looker import Look
from repro_env.io.files import open_regular, read_regular, sha256_of
from repro_env.model.errors import RecordError, UsageError
from repro_env.model.run import End, Mount, Start
from repro_env.run import console, hostcopy
from repro_env.verify import divergence, evidence
from repro_env.verify.compared import File
from repro_env.verify.evidence import Evidence
from repro_env.verify.fields import own_names
from repro_env.verify.ignore import Ignore
from repro_env.verify.judge import LARGEST, Judge
from repro_env.verify.kinds import Kind, holds_tensors, matches
from repro_env.verify.links import of_links
from repro_env.verify.pairing import Paired, pair

_LISTED = 8
"""Outputs that an error names."""


class Side(msgspec.Struct, frozen=True):
    """What one of the two runs left."""

    digests: dict[str, str]
    """Path -> `sha256:<hex>`, as recorded. A file of a folder of checkpoints has the absolute path that the run saw."""
    places: dict[str, Path]
    """Path -> the file."""
    end: End
    folder: Path
    """Of the run."""
    evidence: Evidence = Evidence()
    copied: bool = False
    """Whether the run was on the host in a private copy of its source."""

    def below(self, path: str) -> Path | None:
        """The directory below which no symlink leads to the file of `path` (`io.files.open_regular`)."""
        place = self.places[path]
        return self.folder if place.is_relative_to(self.folder) else None


class Globs(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says about which outputs count."""

    results: tuple[str, ...] = ()
    """Globs of outputs that decide, in which only the user's word explains a difference."""
    ignored: tuple[Ignore, ...] = ()

    def of(self, path: str, kind: Kind = "result") -> Kind:
        """`kind`: of an output that the user does not name."""
        if any(one.place is None and one.matches_file(path) for one in self.ignored):
            return "ignored"
        return "result" if matches(path, self.results) else kind

    def check(self, end: End, paths: Iterable[str]) -> None:
        """Whether each glob of results means something of what the run left. Raises `UsageError`."""
        there = sorted({*paths, *(one.path for one in end.console), *(line.partition(" -> ")[0] for line in end.others)})
        for glob in self.results:
            if not glob or not any(matches(path, (glob,)) for path in there):
                more = f" and {len(there) - _LISTED:,} more" if len(there) > _LISTED else ""
                names = f"there are {', '.join(there[:_LISTED])}{more}" if there else "the run left none"
                raise UsageError("is none of the run's outputs", where=f"--result {glob}", hint=names)


def side(folder: Path, end: End, mounts: Sequence[Mount]) -> Side:
    """What the run in `folder` left. `mounts`: the folders that its checkpoints are in now."""
    digests = {one.path: one.sha256 for one in end.outputs}
    places = {one.path: place(folder / "files", one.path) for one in end.outputs}
    if mounts:
        start = records.read(folder).start
        old, new = before.read(folder, before.BEFORE, start.before), before.read(folder, before.AFTER, end.after)
        sources = {one.target: one.source for one in mounts}
        for shown, held in before.changed(old, new).items():
            if held.target not in sources:
                raise RecordError(
                    f"names {held.target}, which is not a checkpoint directory of the run",
                    where=str(folder / before.AFTER),
                    hint="its record was changed: restore it from a copy",
                )
            digests[shown] = held.sha256
            places[shown] = Path(sources[held.target], held.path) if held.path else Path(sources[held.target])
    start = records.read(folder).start
    return Side(digests, places, end, folder, own(folder, start, end), hostcopy.COPIED in end.outcome.means)


def own(folder: Path, start: Start, end: End) -> Evidence:
    """What the run in `folder` had for itself."""
    workspace = str(hostcopy.place(folder, start.source.path)) if hostcopy.COPIED in end.outcome.means else start.source.path
    names = ((workspace, "the project's directory"), (str(folder), "the run's directory"), (folder.name, "the run's directory"))
    paths = [output.path for output in end.outputs]
    return evidence.of_run(start, end, (*names, *own_names(paths)), _zones(start.started))


def _zones(started: str) -> tuple[int, ...]:
    """How far east of Greenwich this machine's clock is, in seconds, when a run started."""
    local = datetime.fromisoformat(started.replace("Z", "+00:00")).astimezone().utcoffset()
    return () if local is None else (int(local.total_seconds()),)


def kinds(side: Side, globs: Globs) -> set[Kind]:
    """The kinds of all that a run left: outputs, links, files of the source that it deleted, and what it printed."""
    links = [line.partition(" -> ")[0] for line in side.end.others if " -> " in line]
    return {
        *(globs.of(path) for path in (*side.digests, *side.end.removed, *links)),
        *(globs.of(log.path, "console") for log in side.end.console if log.size),
    }


def without_outside(side: Side) -> tuple[Side, int]:
    """A side without what its run wrote outside its project, and how many files these are: a run in the live directory keeps none."""
    outside = {output.path for output in side.end.outputs if output.path.startswith("/")}
    digests = {path: digest for path, digest in side.digests.items() if path not in outside}
    others = tuple(line for line in side.end.others if not line.startswith("/"))
    end = msgspec.structs.replace(side.end, others=others)
    return msgspec.structs.replace(side, digests=digests, end=end), len(outside) + len(side.end.others) - len(others)


def compare(left: Side, right: Side, globs: Globs, look: Look) -> tuple[File, ...]:
    """Everything that two runs left: pairs by digest, then by what is in them."""
    judge = Judge(left.evidence, right.evidence, globs.ignored, globs.results)
    paired = pair(left.digests, right.digests, judge.pair_names)
    found = [*_unpaired(paired, globs), *_removed(left.end, right.end, globs)]
    found += _consoles(left, right, globs, judge)
    found += of_links(left.end.others, right.end.others, judge)
    inside: list[tuple[str, str, Kind]] = []
    for one in paired.pairs:
        kind = globs.of(one.left)
        if left.digests[one.left] == right.digests[one.right]:
            found.append(judge.equal(one.left, one.right, kind))
        elif kind == "ignored":
            why = judge.left_out(one.left)
            found.append(File(path=one.left, now=one.right, kind=kind, level=None, by="nothing", why=why))
        elif why := _changed(left, one.left) or _changed(right, one.right):
            found.append(File(path=one.left, now=one.right, kind=kind, level="different", why=f"its bytes differ, and {why}"))
        elif holds_tensors(one.left, _start(left, one.left)):
            inside.append((one.left, one.right, kind))
        else:
            found.append(_by_content(one.left, one.right, kind, left, right, judge))
    if inside:
        pairs = [(left.places[path], right.places[now]) for path, now, _ in inside]
        for (path, now, kind), answer in zip(inside, look(pairs), strict=True):
            found.append(judge.of_answer(path, now, kind, answer, partial(_both, path, now, left, right)))
    return tuple(found)


def _unpaired(paired: Paired, globs: Globs) -> Iterator[File]:
    for path in paired.missing:
        yield File(path=path, now="", kind=globs.of(path), level="different", by="nothing", why="it is missing now")
    for path in paired.new:
        yield File(path="", now=path, kind=globs.of(path), level="different", by="nothing", why="it was not there then")


def _consoles(left: Side, right: Side, globs: Globs, judge: Judge) -> Iterator[File]:
    """What both commands printed, where it is of the same streams: on a terminal, two are one."""
    sides = []
    for side in (left, right):
        digests = {one.path: one.sha256 for one in side.end.console}
        sides.append(Side(digests, {name: side.folder / name for name in digests}, side.end, side.folder, side.evidence))
    then, now = sides
    sizes = {one.path: one.size for end in (left.end, right.end) for one in end.console if one.size}
    if sizes and then.digests.keys() != now.digests.keys():
        name = console.BOTH
        if globs.of(name, "console") == "console":  # as far as the order of two streams does not matter
            yield judge.of_bytes(name, name, "console", *(_lines(side) for side in sides))
        return
    for name in sorted(sizes):
        kind = globs.of(name, "console")
        if then.digests[name] == now.digests[name]:
            yield judge.equal(name, name, kind)
        elif why := _changed(then, name) or _changed(now, name):
            yield File(path=name, now=name, kind=kind, level="different", why=f"its bytes differ, and {why}")
        else:
            yield _by_content(name, name, kind, then, now, judge)


def _lines(side: Side) -> bytes:
    """The lines of all logs, sorted."""
    texts = [read_regular(path, LARGEST, below=side.folder) for path in side.places.values()]
    return b"".join(sorted(b"".join(texts).splitlines(keepends=True)))


def _removed(left: End, right: End, globs: Globs) -> Iterator[File]:
    """Files of the source that only one of the two runs deleted."""
    for path in sorted(set(left.removed) ^ set(right.removed)):
        why = "the run deleted it then, and not now" if path in left.removed else "the run deleted it now, and not then"
        kind = globs.of(path)
        yield File(path=path, now=path, kind=kind, level="different", by="nothing", why=why)


def _changed(side: Side, path: str) -> str:
    """Why a recorded file cannot be looked into; empty when it is what was recorded."""
    try:
        now = f"sha256:{sha256_of(side.places[path], below=side.below(path))}"
    except OSError as error:
        return f"the file {side.places[path]} cannot be read: {error.strerror}"
    return "" if now == side.digests[path] else f"the file {side.places[path]} was changed since the run"


def _start(side: Side, path: str) -> bytes:
    with os.fdopen(open_regular(side.places[path], below=side.below(path)), "rb") as file:
        return file.read(8)


def _by_content(path: str, now: str, kind: Kind, left: Side, right: Side, judge: Judge) -> File:
    if max(left.places[path].stat().st_size, right.places[now].stat().st_size) > LARGEST:
        why = "its bytes differ, and it is too large to be looked into"
        return File(path=path, now=now, kind=kind, level="different", why=why)
    return judge.of_bytes(path, now, kind, *_both(path, now, left, right))


def _both(path: str, now: str, left: Side, right: Side) -> tuple[bytes, bytes]:
    """The bytes of both, up to a bound."""
    one, other = ((left, path), (right, now))
    then, there = (read_regular(side.places[name], LARGEST, below=side.below(name)) for side, name in (one, other))
    return then, there


def first_step(left: Path, right: Path) -> str:
    """Where training went apart, from the traces of both runs, or why they do not tell; empty where neither has one, or it did not."""
    found = traces.compared(left, right)
    if found is None:
        return ""
    if found.first:
        return divergence.sentence(found.first[0])
    more = f" and {len(found.missing) - 1:,} more" if len(found.missing) > 1 else ""
    return f"not known: {found.missing[0]}{more}" if found.missing else ""
