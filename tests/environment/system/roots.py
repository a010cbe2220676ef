"""Write trees to a directory, and run commands with it as their root."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from repro_env.environment.system.tree import Tree
from repro_env.io import process


def write(root: Path, trees: Iterable[Tree]) -> None:
    """Write all entries, later trees over earlier ones, with `/dev/null` and `/dev/urandom`, which a chroot needs."""
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
    """The output of a command in the root, which must succeed."""
    result = process.run(["chroot", str(root), *argv], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env}, timeout=300)
    assert result.code == 0, result.stderr.decode() + result.stdout.decode()
    return result.stdout.decode()
