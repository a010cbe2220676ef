"""Launches for tests of runners and plans."""

from __future__ import annotations

import os
from typing import Any

from repro_env.schema.environment import Variable
from repro_env.schema.run import Launch, User

DIGEST = "sha256:" + "0" * 64


def make(workspace: str, **changes: Any) -> Launch:
    """A launch of the current user in a source directory, with `changes`."""
    values: dict[str, Any] = {
        "run_id": "x",
        "image": DIGEST,
        "layers": (),
        "prefix": f"{workspace}/.venv",
        "trees": (),
        "argv": ("/bin/true",),
        "env": (Variable(name="PATH", value=os.environ["PATH"]),),
        "cwd": workspace,
        "workspace": workspace,
        "snapshot": DIGEST,
        "mounts": (),
        "tools": "/tools",
        "reports": "/reports",
        "user": User(uid=os.getuid(), gid=os.getgid(), name="ann", home="/home/ann"),
        "hostname": "repro-env",
        "network": False,
    }
    return Launch(**values | changes)
