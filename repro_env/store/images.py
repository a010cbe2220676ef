"""Image configs by image ID: `images/<hex>`. Each one was rebuilt or captured on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from repro_env.io.files import atomic_write
from repro_env.store.bootmarks import touch_if_old
from repro_env.store.filenames import hex_of


class Images:
    """The configs of the images whose layers the store has. A config's time is the time of the image's last use."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, image_id: str) -> bytes | None:
        """Return the config, or None if it is missing or damaged."""
        name = hex_of(image_id)
        path = self._root / name
        try:
            config = path.read_bytes()
            touch_if_old(path, path.stat().st_mtime)
        except OSError:
            return None
        return config if hashlib.sha256(config).hexdigest() == name else None

    def verify(self, image_id: str) -> bool:
        """Return whether the config is there and undamaged."""
        name = hex_of(image_id)
        try:
            return hashlib.sha256((self._root / name).read_bytes()).hexdigest() == name
        except OSError:
            return False

    def remove(self, image_id: str) -> None:
        """Remove an image, but not its layers."""
        (self._root / hex_of(image_id)).unlink(missing_ok=True)

    def put(self, config: bytes) -> str:
        """Store a config and return its image ID. Do this last: it means that all layers are there."""
        name = hashlib.sha256(config).hexdigest()
        atomic_write(self._root / name, config)
        return f"sha256:{name}"
