"""Check the engine of the Docker runner, and load the image into it."""

from __future__ import annotations

from collections.abc import Iterable

from repro_env.delivery.targets import engine as output
from repro_env.delivery.targets.engine import Layer
from repro_env.io import engine as engines
from repro_env.oci import config, tar
from repro_env.sandbox.docker.runner import check_engine
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store.store import Store


def check() -> None:
    """Raise `EngineError` unless a container engine that can run images answers. Called before anything is rebuilt."""
    with engines.connect() as engine:
        check_engine(engine)


def load(spec: Spec, store: Store, tell: Tell) -> None:
    """Load the image into the engine from the unpacked layers in the store, unless the engine already has it.

    Raises `EngineError`, `BuildError`, `StoreError`.
    """
    layers = [_layer(store, layer.diff_id) for layer in spec.expected.layers]
    with engines.connect() as engine:
        if not output.has_image(engine, spec.expected.image_id):
            data = config.config(spec.identity, [layer.diff_id for layer in spec.expected.layers])
            with tell.progress(0, f"loading the image into {engine.facts.product}"):
                output.load(engine, data, layers, output.default_name(spec.expected.image_id))


def _layer(store: Store, diff_id: str) -> Layer:
    def size() -> int:
        total = 2 * tar.BLOCK  # the end of the archive
        for entry, _ in store.layers.members(diff_id):
            total += len(tar.header(entry)) + (-(-entry.size // tar.BLOCK) * tar.BLOCK if entry.kind == "file" else 0)
        return total

    def chunks() -> Iterable[bytes]:
        return tar.write(store.layers.members(diff_id))

    return Layer(diff_id, size, chunks)
