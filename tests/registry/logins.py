"""Credentials for registries."""

from __future__ import annotations

import base64
import json
from pathlib import Path

SECRET = "right horse"
HASHED = "$2y$05$abcdefghijklmnopqrstuuB05BVy0V7KomGh8K56xgiHLq3Wkqh46"
"""bcrypt, the only algorithm that `docker-registry` supports."""


def login(directory: Path, host: str, user: str = "me", password: str = SECRET, **more: str) -> None:
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (directory / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth} | more}}))
