"""Diff IDs of the distribution layers, from the installed files: nothing is downloaded, no layer is written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from repro_env.image import layer, stack, tar
from repro_env.image.entry import Contents, Entry, members
from repro_env.image.wheel import Installed
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob
from repro_env.model.image import Layer, LayerKind
from repro_env.store.facts import FactCache

KIND = "diff-id"
BLOB = "tree-blob"


class DistributionContents:
    """The bytes of one distribution's canonical form (`image.entry.Contents`); entries relative to the prefix.

    What installers generate is made by rule; installed files are read where they are the wheel's, the wheel
    where they are not.
    """

    lies = False
    """Whether the wheel gave other bytes than its entry says: its RECORD is wrong."""

    def __init__(self, installed: Installed, live: Contents, altered: frozenset[str], wheel: Contents | None) -> None:
        self._installed = installed
        self._live = live
        self._altered = altered
        self._wheel = wheel

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        literal = self._installed.literals.get(entry.path)
        if literal is not None:
            yield literal
        elif entry.path in self._altered and self._wheel is not None:
            hasher = hashlib.sha256()
            for chunk in self._wheel.chunks(entry):
                hasher.update(chunk)
                yield chunk
            self.lies = self.lies or hasher.hexdigest() != entry.sha256
        else:
            yield from self._live.chunks(entry)


class GroupContents:
    """The bytes of a layer that several distributions share; entries relative to the image's root."""

    def __init__(self, owner: Mapping[str, tuple[str, str]], sources: Mapping[str, Contents]) -> None:
        self._owner = owner
        self._sources = sources

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        key, path = self._owner[entry.path]
        return self._sources[key].chunks(Entry(path, "file", entry.executable, entry.size, entry.sha256))


def diff_ids(
    layers: Sequence[stack.GroupLayer],
    sources: Mapping[str, DistributionContents],
    holds: Mapping[str, str],
    *,
    facts: FactCache,
    kind: LayerKind = "distributions",
) -> tuple[Layer, ...]:
    """The layers by diff ID, in the given order. `holds`: by key, `name==version` for people.

    The entries' sha256 were taken just before; that no file changed in between is the caller's to check. A
    layer of the same entries as one seen before has the same diff ID (the tar is a function of them), so it is
    looked up by its recipe. Threads serve: reading and hashing release the interpreter lock.
    """

    def one(group: stack.GroupLayer) -> Layer:
        known = known_layer(group, facts=facts)
        if known is None:
            known = layer.diff_id(members(group.entries, GroupContents(group.owner, sources)))
            if not any(sources[name].lies for name in group.names):
                facts.put(KIND, layer.recipe(group.entries), known.encode())
        return Layer(
            kind=kind,
            diff_id=known,
            holds=tuple(holds[name] for name in group.names),
        )

    def size(group: stack.GroupLayer) -> int:
        return sum(entry.size for entry in group.entries)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = {group.names: pool.submit(one, group) for group in sorted(layers, key=size, reverse=True)}
        return tuple(started[group.names].result() for group in layers)


def known_layer(group: stack.GroupLayer, *, facts: FactCache) -> str | None:
    """The diff ID of these very entries, when it was computed before."""
    known = facts.get(KIND, layer.recipe(group.entries))
    return None if known is None else known.decode()


def tree_blob(entries: Sequence[Entry], contents: Contents, *, facts: FactCache) -> TreeBlob:
    """The blob that a tree would be, hashed and not written."""
    known = known_blob(entries, facts=facts)
    if known is not None:
        return known
    hasher, size = hashlib.sha256(), 0
    for chunk in tar.write(members(entries, contents)):
        hasher.update(chunk)
        size += len(chunk)
    blob = TreeBlob(sha256="sha256:" + hasher.hexdigest(), size=size, files=len(entries))
    remember_blob(entries, blob, facts=facts)
    return blob


def known_blob(entries: Sequence[Entry], *, facts: FactCache) -> TreeBlob | None:
    """The blob of these very entries, when it was made before: a tar is a function of its entries."""
    return facts.recall(BLOB, layer.recipe(entries), TreeBlob)


def remember_blob(entries: Sequence[Entry], blob: TreeBlob, *, facts: FactCache) -> None:
    facts.put(BLOB, layer.recipe(entries), codec.canonical(blob))
