"""One layer, unpacked into the store and proven while it is written. Work of worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from repro_env.build import conda, packed
from repro_env.build.packed import MADE, Made, parts_key
from repro_env.build.sources import Artifact, Place, contents
from repro_env.image import config, layer, stack
from repro_env.image import wheel as rule
from repro_env.image.entry import Contents, Entry, Members, members
from repro_env.io.files import FileContents
from repro_env.lock.layers import KIND, GroupContents
from repro_env.model import codec
from repro_env.model.artifact import CondaPackage, TreeBlob
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError, BuildError, ReproEnvError
from repro_env.model.spec import Identity
from repro_env.model.talk import Advance
from repro_env.store.carried import Carried
from repro_env.store.store import Store


class Part(msgspec.Struct, frozen=True):
    """One distribution or conda package of a layer, and where its bytes are; `place` is None where only its facts are needed."""

    wheel: Artifact
    layout: Layout
    """Where it is installed to."""
    facts: rule.Facts | None
    """None of a conda package: to know what it becomes takes unpacking it, which is done once."""
    place: Place | None


class GroupJob(msgspec.Struct, frozen=True):
    """Unpack a layer of distributions or packages or, where it is unpacked, prove that it is the one of these artifacts."""

    diff_id: str
    parts: tuple[Part, ...]


class TreeJob(msgspec.Struct, frozen=True):
    """Unpack a carried tree."""

    blob: TreeBlob
    folder: str


class MarkerJob(msgspec.Struct, frozen=True):
    """Unpack the layer that says what the image is."""

    diff_id: str
    identity: Identity


Job = GroupJob | TreeJob | MarkerJob


class PlaceFailed(Exception):  # noqa: N818 it never leaves the builder
    """A wheel's bytes were not what its place claimed."""

    def __init__(self, name: str, error: ReproEnvError) -> None:
        super().__init__(name, error)
        self.name = name
        self.error = error


def serve(root: Path, job: Job, advance: Advance) -> None:
    """Do one job in the store at `root`. Raises `PlaceFailed`, or one of our errors."""
    store = Store.open(root)
    if isinstance(job, TreeJob):
        blob = job.blob
        tree = Carried(Path(job.folder) / "blobs").tree(blob)
        store.layers.unpack(blob.sha256, _counted(tree, advance), size=blob.size)
    elif isinstance(job, MarkerJob):
        store.layers.unpack(job.diff_id, config.marker(job.identity))
    else:
        _group(store, job, advance)


def _group(store: Store, job: GroupJob, advance: Advance) -> None:
    with ExitStack() as opened:
        installed: dict[str, rule.Installed] = {}
        sources: dict[str, Contents] = {}
        for part in job.parts:
            key = part.wheel.key
            installed[key], contained = _opened(part, store, opened)
            sources[key] = _Source(key, contained)
        _make(store, job, installed, sources, advance)


def _opened(part: Part, store: Store, opened: ExitStack) -> tuple[rule.Installed, Contents | None]:
    if isinstance(part.wheel, CondaPackage):
        archive = Path(part.place.where) if part.place is not None else None
        try:
            return conda.opened(part.wheel, archive, part.layout, store, opened)
        except ArtifactError as error:
            raise PlaceFailed(part.wheel.key, error) from None
    if part.facts is None:
        raise BuildError("has a wheel that nothing is known of", where=part.wheel.key, hint="rebuild again")
    installed = rule.canonical(part.facts, part.layout, name=part.wheel.name)
    return installed, contents(part.place, installed) if part.place is not None else None


def _make(
    store: Store, job: GroupJob, installed: Mapping[str, rule.Installed], sources: Mapping[str, Contents], advance: Advance
) -> None:
    diff_id = job.diff_id
    made = stack.layer(tuple(sorted(installed)), installed)
    key = parts_key(
        packed.Part(artifact=part.wheel, layout=part.layout) for part in sorted(job.parts, key=lambda one: one.wheel.key)
    )
    known = _known(store, key, made.entries)
    if known and known != diff_id:
        raise BuildError(
            f"the layer is {known}, not the expected {diff_id}",
            hint="the spec contradicts itself; capture again",
        )
    there = store.layers.path(diff_id)
    if there is not None:
        # The tree hashed to this diff ID when it was written; if these entries with its bytes do too, it is theirs.
        if not known and not _is_made_of(there, made.entries, diff_id):
            raise BuildError(
                f"the layer {diff_id} is in the store and holds something else",
                hint="the spec contradicts itself; capture again",
            )
    else:
        given = members(made.entries, GroupContents(made.owner, sources))
        store.layers.unpack(diff_id, _counted(given, advance), size=sum(entry.size for entry in made.entries))
    sizes = {name: one.size for name, one in installed.items()}
    store.facts.put(MADE, key, codec.canonical(Made(diff_id=diff_id, sizes=sizes)))
    if all(isinstance(part.wheel, CondaPackage) or (part.place and not part.place.whole) for part in job.parts):
        # Not of a whole wheel: its entries say what its RECORD says, which nobody compared with its bytes.
        store.facts.put(KIND, layer.recipe(made.entries), diff_id.encode())


def _known(store: Store, key: str, entries: Iterable[Entry]) -> str:
    """The diff ID of these parts, or of these entries, when it was computed before; else empty."""
    made = store.facts.recall(MADE, key, Made)
    return made.diff_id if made is not None else (store.facts.get(KIND, layer.recipe(entries)) or b"").decode()


def _is_made_of(tree: Path, entries: Iterable[Entry], diff_id: str) -> bool:
    try:
        return layer.diff_id(members(entries, FileContents(tree))) == diff_id
    except ArtifactError:  # a file is missing, or of another size
        return False


class _Source:
    """The bytes of one distribution; a failure says whose it was."""

    def __init__(self, name: str, inner: Contents | None) -> None:
        self._name = name
        self._inner = inner

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        if self._inner is None:  # the layer was there a moment ago, and somebody removed it
            raise PlaceFailed(
                self._name, ArtifactError("its layer was removed from the store", where=self._name, hint="rebuild again")
            )
        try:
            yield from self._inner.chunks(entry)
        except ReproEnvError as error:
            raise PlaceFailed(self._name, error) from None


def _counted(given: Members, advance: Advance) -> Members:
    for entry, chunks in given:
        yield entry, (_counting(chunks, advance) if entry.kind == "file" else chunks)


def _counting(chunks: Iterable[bytes], advance: Advance) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        advance(len(chunk))
