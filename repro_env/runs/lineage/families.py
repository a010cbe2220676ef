"""The parents and children of runs, and the runs that use a digest. Pure functions of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from repro_env.runs.lineage.knownruns import Written
from repro_env.runs.records.records import Run
from repro_env.schema import codec

EMPTY = codec.digest_of(b"")
"""The digest of an empty file, which says nothing about its origin."""
_MAX_RELATIVES = 5_000
"""The largest number of relatives in one direction."""


_How = Literal["output", "checkpoints", "manifest", "data", "source", "spec", "image", "record"]
EVIDENCE = ("output", "checkpoints", "manifest")
"""Why a run is said to have written a file, the strongest evidence first. `output`: the record of the run has the file.
`checkpoints`: it was written to a checkpoint directory of the run while it ran. `manifest`: the manifest of a checkpoint
names the run, and the run is known."""


class Edge(msgspec.Struct, frozen=True, order=True):
    """A link from a run to a run that started from its outputs."""

    parent: str
    child: str
    how: str
    """`Parent.how`."""
    record: str = ""
    """The digest of the parent's `end.json` when the child started; empty if unknown."""


class Relative(msgspec.Struct, frozen=True):
    """An ancestor or descendant of a run."""

    id: str
    depth: int
    """1 for parents and children."""
    how: tuple[str, ...]
    """All links to the neighbouring run, sorted."""
    run: Run | None
    """None if the record was not found."""
    changed: bool
    """Whether a parent's record changed after its child started."""
    again: bool
    """Whether it is a repetition of an earlier entry. Its own relatives follow that entry only."""


class Family(msgspec.Struct, frozen=True):
    """The ancestors and descendants of a run, depth first."""

    parents: tuple[Relative, ...]
    children: tuple[Relative, ...]
    truncated: bool
    """Whether some relatives are left out because there are too many."""


class Use(msgspec.Struct, frozen=True):
    """A run that has a digest in its record, or in a checkpoint."""

    run: Run
    how: _How
    """The run wrote the file if this is in `EVIDENCE`; otherwise the file is an input of the run, or its record."""
    paths: tuple[str, ...]
    """On this machine, but inside the run for checkpoints, and relative to the project for outputs; empty for specs and images."""
    digest: str


def edges(runs: Iterable[Run]) -> set[Edge]:
    """Return the links from the recorded parents of the runs to the runs."""
    return {
        Edge(parent.id, child.id, parent.how, parent.record or "")
        for child in runs
        for parent in child.parents
        if parent.id and parent.id != child.id
    }


def family(run_id: str, runs: Mapping[str, Run], links: Iterable[Edge]) -> Family:
    """Return the ancestors and descendants of a run."""
    to_parents: dict[str, list[Edge]] = {}
    to_children: dict[str, list[Edge]] = {}
    for edge in sorted(links):
        to_parents.setdefault(edge.child, []).append(edge)
        to_children.setdefault(edge.parent, []).append(edge)
    parents = _walk(run_id, to_parents, lambda edge: edge.parent, runs)
    children = _walk(run_id, to_children, lambda edge: edge.child, runs)
    return Family(parents[:_MAX_RELATIVES], children[:_MAX_RELATIVES], max(len(parents), len(children)) > _MAX_RELATIVES)


def _walk(
    start: str, links: Mapping[str, Sequence[Edge]], target: Callable[[Edge], str], runs: Mapping[str, Run]
) -> tuple[Relative, ...]:
    relatives: list[Relative] = []
    visited = {start}  # a damaged or forged record may make a cycle
    todo: list[tuple[int, str, tuple[Edge, ...]]] = []

    def add(node: str, depth: int) -> None:
        by_id: dict[str, list[Edge]] = {}
        for edge in links.get(node, ()):
            by_id.setdefault(target(edge), []).append(edge)
        todo.extend((depth, run_id, tuple(by_id[run_id])) for run_id in sorted(by_id, reverse=True))

    add(start, 1)
    while todo and len(relatives) <= _MAX_RELATIVES:
        depth, run_id, edges = todo.pop()
        again = run_id in visited
        visited.add(run_id)
        how = tuple(sorted({edge.how for edge in edges}))
        relatives.append(Relative(run_id, depth, how, runs.get(run_id), _changed(edges, runs), again))
        if not again:
            add(run_id, depth + 1)
    return tuple(relatives)


def _changed(edges: Sequence[Edge], runs: Mapping[str, Run]) -> bool:
    return any(edge.record and edge.parent in runs and runs[edge.parent].end_digest != edge.record for edge in edges)


def uses(digest: str, runs: Iterable[Run], written: Mapping[str, Sequence[Written]]) -> tuple[Use, ...]:
    """Return every use of a digest in the records of runs, the oldest run first.

    `digest`: `sha256:` and the first or all hex digits. `written`: as in `AllRuns`.
    """
    prefix = digest.removeprefix("sha256:")
    found: list[Use] = []
    for run in sorted(runs, key=lambda run: run.id):
        start = run.start
        files: list[tuple[_How, str, str]] = []
        if digest != EMPTY:
            files += [(file.how, file.sha256, file.path) for file in written.get(run.id, ())]
            files += [(fact.kind, fact.digest or "", fact.source) for fact in start.data]
        candidates = (
            *files,
            ("source", start.source.digest, start.source.directory or start.source.path),
            ("spec", start.spec, ""),
            ("spec", start.spec_file or "", ""),
            ("image", start.image, ""),
            ("record", run.start_digest, f"{run.directory}/start.json"),
            ("record", run.end_digest, f"{run.directory}/end.json"),
        )
        paths: dict[tuple[_How, str], list[str]] = {}
        for how, value, path in candidates:
            if value.startswith(prefix, 7):
                paths.setdefault((how, value), []).append(path)
        found += [Use(run, how, tuple(filter(None, paths[how, value])), value) for how, value in paths]
    return tuple(found)
