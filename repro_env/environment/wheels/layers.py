"""Compute the diff IDs of the distribution layers from the installed files: nothing is downloaded, no layer is written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from repro_env.oci import layer, tar, wheellayers
from repro_env.oci.entry import Contents, Entry, members
from repro_env.oci.wheel import Installed
from repro_env.schema import codec
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.image import Layer, LayerKind
from repro_env.store.facts import FactCache

KIND = "diff-id"
BLOB = "tree-blob"


class DistributionContents:
    """The contents of a distribution's canonical form (`oci.entry.Contents`); entries relative to the prefix.

    Files that installers generate are made by rule. Unchanged files are read from the environment, changed ones from the wheel.
    """

    differs = False
    """Whether the wheel contained other bytes than its entry says, because its RECORD is wrong."""

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
            self.differs = self.differs or hasher.hexdigest() != entry.sha256
        else:
            yield from self._live.chunks(entry)


class GroupContents:
    """The contents of a layer with several distributions; entries relative to the image's root."""

    def __init__(self, owner: Mapping[str, tuple[str, str]], sources: Mapping[str, Contents]) -> None:
        self._owner = owner
        self._sources = sources

    def chunks(self, entry: Entry) -> Iterable[bytes]:
        key, path = self._owner[entry.path]
        return self._sources[key].chunks(Entry(path, "file", entry.executable, entry.size, entry.sha256))


def diff_ids(
    layers: Sequence[wheellayers.GroupLayer],
    sources: Mapping[str, DistributionContents],
    versions: Mapping[str, str],
    *,
    facts: FactCache,
    kind: LayerKind = "distributions",
) -> tuple[Layer, ...]:
    """The layers with their diff IDs, in the given order. `versions`: by key, for people.

    The caller checks that no file changed after its sha256 was computed. The tar is a function of the entries, so a layer with
    the same entries as an earlier one has the same diff ID, which is cached. Threads help, because reading and hashing release
    the interpreter lock.
    """

    def make_layer(group: wheellayers.GroupLayer) -> Layer:
        diff_id = known_layer(group, facts=facts)
        if diff_id is None:
            diff_id = layer.diff_id(members(group.entries, GroupContents(group.owner, sources)))
            if not any(sources[name].differs for name in group.names):
                facts.put(KIND, layer.recipe(group.entries), diff_id.encode())
        return Layer(
            kind=kind,
            diff_id=diff_id,
            holds=tuple(f"{name}=={versions[name]}" for name in group.names),
        )

    def size(group: wheellayers.GroupLayer) -> int:
        return sum(entry.size for entry in group.entries)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {group.names: pool.submit(make_layer, group) for group in sorted(layers, key=size, reverse=True)}
        return tuple(futures[group.names].result() for group in layers)


def known_layer(group: wheellayers.GroupLayer, *, facts: FactCache) -> str | None:
    """The cached diff ID of exactly these entries."""
    cached = facts.get(KIND, layer.recipe(group.entries))
    return None if cached is None else cached.decode()


def tree_blob(entries: Sequence[Entry], contents: Contents, *, facts: FactCache) -> TreeBlob:
    """The blob of a tree, hashed but not written."""
    cached = known_blob(entries, facts=facts)
    if cached is not None:
        return cached
    measured = layer.Measured(tar.write(members(entries, contents))).read()
    blob = TreeBlob(sha256=measured.digest, size=measured.size, files=len(entries))
    remember_blob(entries, blob, facts=facts)
    return blob


def known_blob(entries: Sequence[Entry], *, facts: FactCache) -> TreeBlob | None:
    """The cached blob of exactly these entries: a tar is a function of its entries."""
    return facts.recall(BLOB, layer.recipe(entries), TreeBlob)


def remember_blob(entries: Sequence[Entry], blob: TreeBlob, *, facts: FactCache) -> None:
    facts.put(BLOB, layer.recipe(entries), codec.canonical(blob))
