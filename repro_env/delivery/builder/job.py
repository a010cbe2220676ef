"""Jobs of worker processes, one for each layer, and the parts of a layer of distributions or conda packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from repro_env.delivery.builder import condapackages
from repro_env.delivery.builder.locations import Artifact, Location, contents
from repro_env.environment.wheels.layers import KIND
from repro_env.oci import layer, wheellayers
from repro_env.oci import wheel as rule
from repro_env.oci.entry import Contents
from repro_env.schema import codec
from repro_env.schema.artifact import CondaPackage, TreeBlob
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Layout
from repro_env.schema.errors import BuildError
from repro_env.schema.image import Blob, Packed
from repro_env.schema.spec import Identity
from repro_env.store.store import Store

LAYER_FACTS = "made"
"""Kind of the facts of layers, by their parts (`parts_key`)."""


class Part(msgspec.Struct, frozen=True):
    """One wheel or conda package of a layer."""

    artifact: Artifact
    layout: Layout
    """Where it is installed."""
    facts: rule.Facts | None = None
    """Known for every wheel that was found. Those of a conda package are read from its archive."""
    location: Location | None = None
    """None if its content is not needed."""


class LayerFacts(Frozen, frozen=True, kw_only=True):
    """What is known of a layer of packages that was made and proven."""

    diff_id: str
    sizes: dict[str, int]
    """Installed size of each part in bytes, by key, for the grouping rule."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of distributions or conda packages."""

    diff_id: str
    parts: tuple[Part, ...]
    known: Blob | None = None
    """The compressed layer if it was proven before: then nothing is decompressed to send it."""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A bundled tree, or a layer that was fetched complete."""

    blob: TreeBlob
    directory: str
    """The directory that holds `blobs/`."""
    unpacked: bool = False
    """Whether to send the unpacked layer in the store instead of the blob."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The marker layer."""

    diff_id: str
    identity: Identity


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The source as a layer, at its captured path."""

    blob: TreeBlob
    directory: str
    path: str


class HasBlob(msgspec.Struct, frozen=True, kw_only=True):
    """Ask whether the output has a blob."""

    blob: Blob


Job = Group | Tree | Marker | Source | HasBlob


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a job returns."""

    packed: Packed | None = None
    """The layer in the output; None if the output does not have the blob, or if the layer was unpacked."""
    sizes: dict[str, int] = {}
    """For a group, the installed size of each part in bytes, by key."""


class OpenGroup(msgspec.Struct, frozen=True):
    """A layer of packages, and the content of its parts."""

    layer: wheellayers.GroupLayer
    sources: dict[str, Contents | None]
    """By key; None for a part without a location."""
    sizes: dict[str, int]


def parts_key(parts: Iterable[Part]) -> str:
    """Return a key that is equal for layers of the same artifacts at the same layouts."""
    return codec.digest([(part.artifact, part.layout) for part in parts])


@contextmanager
def open_group(store: Store, job: Group) -> Iterator[OpenGroup]:
    """Open the parts of a layer, and compute its entries. Raises `ArtifactError`."""
    with ExitStack() as exits:
        contents_of = {part.artifact.key: open_part(store, part, exits) for part in job.parts}
        installed = {key: files for key, (files, _) in contents_of.items()}
        yield OpenGroup(
            wheellayers.layer(tuple(sorted(installed)), installed),
            {key: source for key, (_, source) in contents_of.items()},
            {key: files.size for key, files in installed.items()},
        )


def open_part(store: Store, part: Part, exits: ExitStack) -> tuple[rule.Installed, Contents | None]:
    """Return what a part installs, and the content of its files. Raises `ArtifactError`."""
    if isinstance(part.artifact, CondaPackage):
        archive = Path(part.location.where) if part.location is not None else None
        return condapackages.open_package(part.artifact, archive, part.layout, store, exits)
    if part.facts is None:
        raise BuildError("the stored facts about the wheel are missing", where=part.artifact.key, hint="rebuild again")
    installed = rule.canonical(part.facts, part.layout, name=part.artifact.name)
    return installed, contents(part.location, installed) if part.location is not None else None


def remember_group(store: Store, job: Group, group: OpenGroup) -> None:
    """Store the facts of a layer whose diff ID was proven."""
    facts = LayerFacts(diff_id=job.diff_id, sizes=group.sizes)
    store.facts.put(LAYER_FACTS, parts_key(job.parts), codec.canonical(facts))
    if all(isinstance(part.artifact, CondaPackage) or (part.location and not part.location.is_file) for part in job.parts):
        # Not for a complete wheel: its entries come from its RECORD, which was not compared with its bytes.
        store.facts.put(KIND, layer.recipe(group.layer.entries), job.diff_id.encode())
