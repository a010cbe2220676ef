"""Damage the files of a store."""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.schema.spec import Spec
from repro_env.store.store import Store


def layer_file(spec: Spec, store: Store, kind: str = "distributions") -> Path:
    """Return the largest file of a layer."""
    layer = next(layer for layer in spec.expected.layers if layer.kind == kind)
    root = store.root / "layers" / layer.diff_id.removeprefix("sha256:")
    return max((path for path in root.rglob("*") if path.is_file()), key=lambda path: (path.stat().st_size, path))


def flip(path: Path) -> None:
    """Flip a bit without changing the file's times, as a failing disk does."""
    facts = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(facts.st_mode & 0o777)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def truncate(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size // 2)


def remove(path: Path) -> None:
    path.unlink()
