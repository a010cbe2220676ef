"""Layers that an output keeps as files. They are hashed while they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from repro_env.io.files import chunks_of, room, sha256_of
from repro_env.oci.layer import Measured
from repro_env.schema.errors import ArtifactError, UsageError, os_errors_as
from repro_env.schema.image import GZIP, Blob
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp


class BlobFiles:
    """Gzip layers in a directory, named by their digests. Safe to use from several threads and processes."""

    in_workers = True

    def __init__(self, directory: Path, temp: Temp) -> None:
        self._directory = directory
        self._temp = temp

    def __getstate__(self) -> dict[str, object]:
        """Return what `take` needs, for a copy in a worker process."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Path | Temp | str)}

    def path(self, digest: str) -> Path:
        return self._directory / hex_of(digest)

    def holds(self, blob: Blob) -> bool:
        """Return whether the file holds the blob. It is read."""
        path = self.path(blob.digest)
        try:
            return not path.is_symlink() and path.stat().st_size == blob.size and sha256_of(path) == path.name
        except OSError:
            return False

    def take(self, chunks: Callable[[], Iterator[bytes]]) -> Blob:
        """See `delivery.builder.sinks.Output.take`."""
        with room(self._directory), self._temp.directory() as temporary:
            layer = Measured(chunks())
            with (temporary / "blob").open("xb") as file:
                file.writelines(layer)
            blob = Blob(media_type=GZIP, digest=layer.digest, size=layer.size)
            path = self.path(blob.digest)
            if path.is_dir() and not path.is_symlink():
                what = "there is a directory in the place of a blob"
                raise ArtifactError(what, where=str(path), hint="remove it, or name another directory")
            (temporary / "blob").replace(path)
        return blob

    def read(self, digest: str) -> Iterator[bytes]:
        """Yield the bytes of a layer. Raises `ArtifactError` if it is missing."""
        try:
            yield from chunks_of(self.path(digest))
        except FileNotFoundError:
            raise ArtifactError(
                "the layer is missing", where=digest, hint="run the command again: the layer is sent then"
            ) from None


@contextmanager
def write_errors(directory: Path) -> Iterator[None]:
    """Turn errors of writing below a directory that the user named into `UsageError` or `DiskError`.

    Use it only for steps that read no other files.
    """
    with os_errors_as(UsageError, "the output cannot be written", where=directory, hint="name another path"), room(directory):
        yield
