"""The image config and the ID computed from it; the marker layer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from repro_env.image import layer, layout
from repro_env.image.entry import Entry, Member, ordered
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob
from repro_env.model.image import Layer, LayerKind
from repro_env.model.spec import Identity

CREATED = "1980-01-01T00:00:00Z"
LABEL = "io.repro-env.spec"


def config(identity: Identity, diff_ids: Sequence[str], *, working: str = "/") -> bytes:
    """The OCI image config, canonical JSON. It carries the spec digest and never an image ID, so there is no circle.

    `working`: the working folder, which is `/` unless the image holds the source too.
    """
    return codec.canonical(
        {
            "architecture": identity.platform.architecture,
            "config": {
                "Env": [f"{variable.name}={variable.value}" for variable in identity.config.env],
                "Labels": {LABEL: codec.digest(identity)},
                "WorkingDir": working,
            },
            "created": CREATED,
            "os": identity.platform.os,
            "rootfs": {"diff_ids": list(diff_ids), "type": "layers"},
        }
    )


def image_id(identity: Identity, layers: Iterable[Layer]) -> str:
    """`sha256:<hex>` of the config: what Docker shows as Image ID; independent of compression."""
    return "sha256:" + hashlib.sha256(config(identity, [one.diff_id for one in layers])).hexdigest()


def marker(identity: Identity) -> list[Member]:
    """The last layer: the marker file, and a symlink where the captured prefix was (unless the tree lies there)."""
    text = codec.canonical({"schema": "repro-env/image/1", "spec": codec.digest(identity)}) + b"\n"
    entries = [Entry(layout.inside(layout.MARKER), "file", size=len(text), sha256=hashlib.sha256(text).hexdigest())]
    if not identity.layout.in_place:
        entries.append(Entry(layout.inside(identity.layout.prefix), "link", target=layout.ENVIRONMENT))
    return list(_with(ordered(entries), text))


def _with(entries: Iterable[Entry], text: bytes) -> Iterator[Member]:
    for entry in entries:
        yield entry, ([text] if entry.kind == "file" else ())


def lower_layers(identity: Identity) -> list[Layer]:
    """The layers that carried trees make, below conda packages and distributions."""
    trees: list[tuple[LayerKind, TreeBlob | None]] = [
        ("base", identity.base),
        ("unowned", identity.unowned),
        ("interpreter", identity.interpreter.tree),
    ]
    return [Layer(kind=kind, diff_id=tree.sha256, holds=()) for kind, tree in trees if tree is not None]


def upper_layers(identity: Identity) -> list[Layer]:
    """The layers above all packages: the overlay, where there is one, and the marker."""
    overlay = identity.overlay
    above = [] if overlay is None else [Layer(kind="overlay", diff_id=overlay.sha256, holds=())]
    return [*above, marker_layer(identity)]


def marker_layer(identity: Identity) -> Layer:
    return Layer(kind="marker", diff_id=layer.diff_id(marker(identity)), holds=())
