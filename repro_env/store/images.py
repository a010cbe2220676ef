"""Image configs, by image ID: `images/<hex>`. One that is here was rebuilt or captured on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from repro_env.io.files import atomic_write
from repro_env.store.boot import touch_if_old
from repro_env.store.digests import hex_of


class Images:
    """The configs of the images that the store holds the layers of. A config's time is that of the image's last use."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, image_id: str) -> bytes | None:
        """The config, or None; a damaged one counts as absent."""
        name = hex_of(image_id)
        path = self._root / name
        try:
            config = path.read_bytes()
            touch_if_old(path, path.stat().st_mtime)
        except OSError:
            return None
        return config if hashlib.sha256(config).hexdigest() == name else None

    def ids(self, beginning: str) -> tuple[str, ...]:
        """IDs of the images whose digits begin so, sorted."""
        names = sorted(path.name for path in self._root.glob("[0-9a-f]*") if len(path.name) == 64)
        return tuple(f"sha256:{name}" for name in names if name.startswith(beginning.removeprefix("sha256:")))

    def verify(self, image_id: str) -> bool:
        """Whether the config is there and whole."""
        name = hex_of(image_id)
        try:
            return hashlib.sha256((self._root / name).read_bytes()).hexdigest() == name
        except OSError:
            return False

    def remove(self, image_id: str) -> None:
        """Forget an image; its layers stay."""
        (self._root / hex_of(image_id)).unlink(missing_ok=True)

    def put(self, config: bytes) -> str:
        """Keep a config; returns its image ID. To be done last: it says that all layers are there."""
        name = hashlib.sha256(config).hexdigest()
        atomic_write(self._root / name, config)
        return f"sha256:{name}"
