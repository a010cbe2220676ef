"""Manifests of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEX = "a" * 64
MANIFEST: dict[str, Any] = {
    "schema": "repro-env/checkpoint/1",
    "serial": 7,
    "step": 700,
    "epoch": 3,
    "batch": None,
    "created": "2026-07-01T10:15:30Z",
    "run": "01a1fd02-1a59-73ca-8e91-4a5f0000000a",
    "parent": {"run": "", "path": "/c/000006-step-600", "sha256": HEX, "step": 600},
    "code": {"digest": f"sha256:{HEX}", "script": {"path": "train.py", "sha256": HEX}},
    "data": {"train": f"sha256:{HEX}"},
    "splits": {"train": {"count": 1, "sha256": HEX}},
    "recipe": {"lr": [1]},
    "image": None,
    "spec": None,
    "seeds": {"master": 0, "torch": 1},
    "world": {"size": 1, "backend": ""},
    "parts": {"model": "model.safetensors"},
    "files": {"model.safetensors": {"sha256": HEX, "size": 3}},
    "versions": {"python": "3.11"},
}


def write_manifest(directory: Path, content: object = MANIFEST) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "manifest.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
