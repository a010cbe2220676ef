"""The command `repro-env show`: return a spec, and which of its files are on this machine.

The spec is untrusted: only its directory and the store are read, and no path that it names is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from repro_env.schema.errors import StoreError
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.spec import Spec
from repro_env.specs.argument import SpecName, open_spec
from repro_env.store.filenames import hex_of
from repro_env.store.specs.blobs import SpecBlobs as Blobs
from repro_env.store.store import Store


class ShownLayer(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    diff_id: str
    size: int
    """Bytes of the tar for a tree, or of the wheels or packages in the layer."""
    holds: tuple[str, ...]
    stored: bool


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    sha256: str
    size: int
    """Uncompressed bytes, as the spec states."""
    here: bool
    stored: int
    """Bytes of its file next to the spec; 0 if the file is missing."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    spec: Spec
    directory: Path
    """Directory of the spec."""
    spec_digest: str
    image: str
    """`in the store`, `not in the store`, or why the store cannot be read."""
    layers: tuple[ShownLayer, ...]
    """Lowest first."""
    blobs: tuple[Blob, ...]


def show(spec: SpecName = None, *, tell: Tell = SILENT) -> Shown:
    """Return what a spec holds, part by part, and what of it is on this machine."""
    opened = open_spec(spec, tell=tell)
    store, why = None, ""
    try:
        store = Store.open()
    except StoreError as error:  # a spec can be shown without a store
        why = str(error)
    return Shown(
        spec=opened.spec,
        directory=opened.directory,
        spec_digest=opened.spec.digest,
        image=why or ("in the store" if store is not None and _is_built(opened.spec, store) else "not in the store"),
        layers=tuple(_layers(opened.spec, store)),
        blobs=tuple(_blobs(opened.spec, opened.directory)),
    )


def _is_built(spec: Spec, store: Store) -> bool:
    """Whether the store has the image and its layers. The layers are not read."""
    has_image = store.images.get(spec.expected.image_id) is not None
    return has_image and all(_is_stored(layer.diff_id, store) for layer in spec.expected.layers)


def _is_stored(digest: str, store: Store) -> bool:
    return (store.root / "layers" / hex_of(digest)).is_dir()


def _layers(spec: Spec, store: Store | None) -> Iterator[ShownLayer]:
    trees = {tree.sha256: tree.size for tree in spec.trees.values()}
    sizes = {artifact.label: artifact.size for artifact in spec.identity.artifacts}
    for layer in spec.expected.layers:
        yield ShownLayer(
            kind=layer.kind,
            diff_id=layer.diff_id,
            size=trees.get(layer.diff_id, 0) + sum(sizes.get(name, 0) for name in layer.holds),
            holds=layer.holds,
            stored=store is not None and _is_stored(layer.diff_id, store),
        )


def _blobs(spec: Spec, directory: Path) -> Iterator[Blob]:
    blobs = Blobs(directory / "blobs")
    bundled = spec.bundled
    files = {  # a downloadable base may be missing
        tree.sha256: (what, tree.size)
        for what, tree in reversed(spec.trees.items())
        if tree.sha256 in bundled or blobs.path(tree.sha256) is not None
    }
    artifacts = (artifact for artifact in spec.identity.artifacts if artifact.sha256 in bundled)
    files |= {artifact.sha256: (artifact.filename, artifact.size) for artifact in artifacts}
    for digest, (what, size) in files.items():
        path = blobs.path(digest)
        yield Blob(
            what=what, sha256=digest, size=size, here=path is not None, stored=path.stat().st_size if path is not None else 0
        )
