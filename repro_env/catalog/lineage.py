"""Which run came from which, and which runs have to do with a digest. Pure: summaries in, families and uses out.

A run's parents are those that its record names. Where a file that it was given has the bytes of an output of an earlier
run, that run is a parent too, though nobody said so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from repro_env.catalog.index import Summary

SAME_BYTES = "same bytes"
EMPTY = f"sha256:{hashlib.sha256().hexdigest()}"
"""Of a file without content: tells nothing of where it came from."""
_MOST = 5_000
"""Relatives in one direction."""
_SIZE = 32
"""Bytes of a sha256."""


class Edge(msgspec.Struct, frozen=True, order=True):
    """From a run to one that started from its outputs."""

    parent: str
    child: str
    how: str
    """As `Parent.how`, or `SAME_BYTES`."""
    record: str = ""
    """The digest that the parent's record had; empty where it is not known."""


class Relative(msgspec.Struct, frozen=True):
    """A run above or below another one."""

    id: str
    depth: int
    """1: next to it."""
    how: tuple[str, ...]
    """All ways in which the two are related, sorted."""
    run: Summary | None
    """None: its record is not known here."""
    changed: bool
    """Its record is not the one that was there when the other run started from it."""
    again: bool
    """It stands further up already, with all that is beyond it."""


class Family(msgspec.Struct, frozen=True):
    """Depth first, so that each line stands below the one it belongs to."""

    parents: tuple[Relative, ...]
    children: tuple[Relative, ...]
    cut: bool
    """There are more than these."""


class Use(msgspec.Struct, frozen=True):
    """A digest in a run's record."""

    run: Summary
    role: str
    """`output`, `data`, `recipe`, `source`, `spec`, `image`, `record`."""
    path: str
    digest: str
    """This and `path` are empty for an output: the record has them."""


def edges(runs: Mapping[str, Summary], outputs: Mapping[str, bytes]) -> tuple[Edge, ...]:
    """Between all known runs (by id), sorted. `outputs`: of a run by its folder, as `Listing.outputs`."""
    found = {
        Edge(one.id, child.id, one.how, one.record or "")
        for child in runs.values()
        for one in child.parents
        if one.id and one.id != child.id
    }
    named = {(edge.parent, edge.child) for edge in found}
    wanted = {
        bytes.fromhex(each.digest[7:])
        for run in runs.values()
        for each in run.data
        if each.role == "data" and each.digest not in ("", EMPTY)
    }
    made = makers(wanted, runs, outputs)
    for child in runs.values():
        for each in child.data:
            if each.role != "data" or not each.digest:
                continue
            # Ids sort by time. Runs that were repeated bit for bit made the same file: the first one counts. One that had the
            # file as its data only copied it.
            earlier = [
                one
                for one in made.get(bytes.fromhex(each.digest[7:]), ())
                if one < child.id and all(datum.digest != each.digest for datum in runs[one].data)
            ]
            if earlier and not any((one, child.id) in named for one in earlier):
                found.add(Edge(min(earlier), child.id, SAME_BYTES))
    return tuple(sorted(found))


def makers(wanted: set[bytes], runs: Mapping[str, Summary], outputs: Mapping[str, bytes]) -> dict[bytes, list[str]]:
    """Digest of a file -> ids of the runs that have it among their outputs."""
    found: dict[bytes, list[str]] = {}
    if wanted:
        for run in runs.values():
            held = outputs.get(run.folder, b"")
            for digest in wanted.intersection(held[place : place + _SIZE] for place in range(0, len(held), _SIZE)):
                found.setdefault(digest, []).append(run.id)
    return found


def family(run_id: str, runs: Mapping[str, Summary], between: Iterable[Edge]) -> Family:
    """All that a run started from, and all that started from it."""
    up: dict[str, list[Edge]] = {}
    down: dict[str, list[Edge]] = {}
    for edge in between:
        up.setdefault(edge.child, []).append(edge)
        down.setdefault(edge.parent, []).append(edge)
    parents = _walk(run_id, up, lambda edge: edge.parent, runs)
    children = _walk(run_id, down, lambda edge: edge.child, runs)
    return Family(parents[:_MOST], children[:_MOST], max(len(parents), len(children)) > _MOST)


def _walk(
    first: str, beyond: Mapping[str, Sequence[Edge]], other: Callable[[Edge], str], runs: Mapping[str, Summary]
) -> tuple[Relative, ...]:
    found: list[Relative] = []
    seen = {first}  # records are files: they may say that two runs came from each other
    todo: list[tuple[int, str, tuple[Edge, ...]]] = []

    def add(node: str, depth: int) -> None:
        by_id: dict[str, list[Edge]] = {}
        for edge in beyond.get(node, ()):
            by_id.setdefault(other(edge), []).append(edge)
        todo.extend((depth, one, tuple(by_id[one])) for one in sorted(by_id, reverse=True))

    add(first, 1)
    while todo and len(found) <= _MOST:
        depth, one, ties = todo.pop()
        again = one in seen
        seen.add(one)
        found.append(Relative(one, depth, tuple(sorted({edge.how for edge in ties})), runs.get(one), _changed(ties, runs), again))
        if not again:
            add(one, depth + 1)
    return tuple(found)


def _changed(ties: Sequence[Edge], runs: Mapping[str, Summary]) -> bool:
    return any(edge.record and edge.parent in runs and runs[edge.parent].end != edge.record for edge in ties)


def uses(digest: str, runs: Iterable[Summary], outputs: Mapping[str, bytes]) -> tuple[Use, ...]:
    """Every run that has to do with a digest, the oldest first. `digest`: `sha256:` and its first digits, or all of them.

    The index may be wrong about outputs of a beginning: the record says whether it is one.
    """
    start = digest.removeprefix("sha256:")
    whole = bytes.fromhex(start[: len(start) // 2 * 2])
    found: list[Use] = []
    for run in sorted(runs, key=lambda one: one.id):
        if digest != EMPTY and whole in outputs.get(run.folder, b""):
            found.append(Use(run, "output", "", ""))
        if digest != EMPTY:
            found += [
                Use(run, each.role, each.path, each.digest) for each in run.data if each.digest and _begins(each.digest, start)
            ]
        places = (
            ("source", run.source, run.source_path),
            ("spec", run.spec, ""),
            ("spec", run.spec_file, ""),
            ("image", run.image, ""),
        )
        found += [Use(run, role, path, one) for role, one, path in places if one and _begins(one, start)]
        found += [
            Use(run, "record", f"{run.folder}/{name}", one)
            for name, one in (("start.json", run.start), ("end.json", run.end))
            if one and _begins(one, start)
        ]
    return tuple(found)


def _begins(digest: str, start: str) -> bool:
    return digest.startswith(start, 7)
