"""The store: what this user's machine keeps of images, by what it is.

Everything in it can be made again, but for two things: the source of a recorded run, where no commit has it, and the list of
the folders that hold runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.io.files import room
from repro_env.io.hashes import FileHashes
from repro_env.model.errors import StoreError
from repro_env.store.blobs import Blobs
from repro_env.store.boot import Boot
from repro_env.store.bytecode import Bytecode
from repro_env.store.facts import FactCache
from repro_env.store.folders import Folders
from repro_env.store.images import Images
from repro_env.store.layers import Layers
from repro_env.store.lease import Lease
from repro_env.store.seen import Seen
from repro_env.store.temp import Temp

_FOLDERS = ("blobs", "boot", "bytecode", "facts", "images", "layers", "locks", "runs", "specs", "uses")
_HINT = "set REPRO_ENV_STORE to a folder of your own on a local disk"


class Store:
    """Owned by one user, readable by nobody else. Safe to use from several processes at once."""

    def __init__(self, root: Path) -> None:
        """Use `open`."""
        temp = Temp(root / "temp")
        boot = Boot(root / "boot")
        self.root = root
        self.blobs = Blobs(root / "blobs", temp=temp, boot=boot)
        self.lease = Lease(root / "uses")
        self.layers = Layers(
            root / "layers",
            locks=root / "locks",
            temp=temp,
            boot=boot,
            links=root / "merged",
            damaged=root / "damaged",
            named=self.lease.named,
        )
        self.images = Images(root / "images")
        self.bytecode = Bytecode(root / "bytecode", locks=root / "locks", temp=temp, boot=boot)
        self.facts = FactCache(root / "facts")
        self.hashes = FileHashes(root / "hashes.db")
        self.folders = Folders(root / "specs", locks=root / "locks", temp=temp, boot=boot)
        self.seen = Seen(root / "runs")
        self.runs = root / "runs.db"
        """An index of run records (`catalog.index`)."""
        self.temp = temp
        self.boot = boot

    @staticmethod
    def open(root: Path | None = None) -> Store:
        """`root`, else $REPRO_ENV_STORE, else $XDG_CACHE_HOME/repro-env, else ~/.cache/repro-env; made when missing.

        Raises `StoreError` when it cannot be used, is another user's, or others may write in it. Removes what
        killed processes left behind.
        """
        folder = (root or _default()).absolute()
        try:
            with room(folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                facts = folder.stat()
                if facts.st_uid != os.geteuid():
                    raise StoreError(f"belongs to another user (uid {facts.st_uid})", where=str(folder), hint=_HINT)
                if facts.st_mode & 0o022:
                    raise StoreError("can be written by other users", where=str(folder), hint=f"chmod 700 {folder}")
                for name in _FOLDERS:
                    (folder / name).mkdir(mode=0o700, exist_ok=True)
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise StoreError("cannot be written", where=str(folder), hint=_HINT)
                store = Store(folder.resolve())
                store.temp.clean()
        except OSError as error:
            raise StoreError(f"cannot be used: {error.strerror}", where=str(folder), hint=_HINT) from None
        return store


def _default() -> Path:
    if given := os.environ.get("REPRO_ENV_STORE"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if cache.startswith("/"):  # a relative one is to be ignored (XDG Base Directory Specification)
        return Path(cache) / "repro-env"
    try:
        return Path.home() / ".cache" / "repro-env"
    except RuntimeError:
        raise StoreError("there is no home folder to put it in", where="the store", hint=_HINT) from None
