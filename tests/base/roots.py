"""Trees written into a folder, and commands run in it as its root."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from repro_env.base.tree import Tree
from repro_env.io import process


def write(root: Path, trees: Iterable[Tree]) -> None:
    """Every entry of every tree, later trees over earlier ones; with `/dev/null` and `/dev/urandom`, which a chroot has to have."""
    for tree in trees:
        for entry in tree.entries:
            path = root / entry.path
            if entry.kind == "dir":
                path.mkdir(exist_ok=True)
            elif entry.kind == "link":
                if not path.is_symlink():
                    path.symlink_to(entry.target)
            else:
                with path.open("wb") as file:
                    file.writelines(tree.contents.chunks(entry))
                path.chmod(0o755 if entry.executable else 0o644)
    for name, minor in (("null", 3), ("urandom", 9)):
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))


def run(root: Path, *argv: str, **env: str) -> str:
    """What a command in the root prints; it has to end well."""
    done = process.run(["chroot", str(root), *argv], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env}, timeout=300)
    assert done.code == 0, done.stderr.decode() + done.stdout.decode()
    return done.stdout.decode()
