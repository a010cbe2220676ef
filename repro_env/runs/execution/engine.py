"""Load the image into the engine of the Docker runner."""

from __future__ import annotations

from repro_env.delivery.targets import engine as output
from repro_env.delivery.targets.engine import Layer
from repro_env.io import engine as engines
from repro_env.oci import config, tar
from repro_env.schema.image import PLAIN, Blob
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store.store import Store


def load(spec: Spec, store: Store, tell: Tell) -> None:
    """Load the image into the engine from the unpacked layers in the store, unless the engine already has it.

    Raises `EngineError`, `BuildError`, `StoreError`.
    """
    image_id, diff_ids = spec.expected.image_id, [layer.diff_id for layer in spec.expected.layers]
    with engines.connect() as engine:
        if not engine.find_image(image_id):
            with tell.progress(0, f"loading the image into {engine.facts.product}"):
                layers = [_layer(store, diff_id) for diff_id in diff_ids]
                output.load(engine, config.config(spec.identity, diff_ids), layers, output.default_name(image_id))


def _layer(store: Store, diff_id: str) -> Layer:
    size = 2 * tar.BLOCK  # the end of the archive
    for entry, _ in store.layers.members(diff_id):
        size += len(tar.header(entry)) + (-(-entry.size // tar.BLOCK) * tar.BLOCK if entry.kind == "file" else 0)
    return Layer(diff_id, Blob(media_type=PLAIN, digest=diff_id, size=size), lambda: tar.write(store.layers.members(diff_id)))
