"""Audit a directory of runs, and change what it finds."""

from __future__ import annotations

from pathlib import Path

from repro_env.api import audit
from repro_env.api.audit import Audit
from repro_env.schema.progress import Silent
from repro_env.store.store import Store
from tests.api.place import Place


def run_audit(place: Place, *words: str, runs: Path | None = None, store: Store | None = None, ask: bool = False) -> Audit:
    directory = runs or place.project / "runs"
    return audit.audit(directory, words, here=place.project, store=store or place.store, ask=ask, tell=Silent())


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def drop_image(place: Place) -> None:
    (place.store.root / "images" / place.spec.expected.image_id.removeprefix("sha256:")).unlink()
    for layer in place.spec.expected.layers:
        place.store.layers.discard(layer.diff_id)
