"""Search trees and wheels for secrets before they are bundled, and the files of a spec before they leave the machine.

The source is searched elsewhere (`environment.source.selection`). Files from an index are public and are not searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.secrets import scanner
from repro_env.environment.secrets.scanner import Secret
from repro_env.oci.entry import Contents, Entry
from repro_env.schema.errors import CaptureError
from repro_env.schema.globs import globs
from repro_env.store.facts import FactCache
from repro_env.store.specs import files


class SecretSearch:
    """The search through everything that a capture bundles."""

    def __init__(self, declared: Sequence[str], facts: FactCache) -> None:
        """`declared`: globs of files that contain no secret, whatever they look like. `facts` caches which files are clean."""
        self._declared = globs(declared)
        self._facts = facts
        self._secrets: dict[Secret, None] = {}
        self.notes: list[str] = []
        """A line for each bundled file that looks like it contains a secret, and that the user declared to be safe."""

    def is_clean(self, sha256: str) -> bool:
        """Whether all files of the wheel or archive with this digest were searched before without finding a secret."""
        return scanner.is_clean(self._facts, "whole", sha256)

    def search_archive(self, sha256: str, entries: Iterable[Entry], contents: Contents, shown: Callable[[str], str]) -> bool:
        """Like `search_tree` for all files of a wheel or archive; the result is cached for `is_clean`."""
        clean = True
        for secret in _secrets(list(entries), contents):
            clean = False
            self._add(Secret(shown(secret.path), secret.line, secret.kind))
        if clean:
            scanner.remember_clean(self._facts, "whole", sha256)
        return clean

    def search_tree(self, entries: Iterable[Entry], contents: Contents, shown: Callable[[str], str]) -> bool:
        """Search the files of a tree and their names. Returns whether the tree may be bundled.

        `shown` maps a path to the form that messages use.
        """
        listed = list(entries)
        # Of all entries: selecting the files would take longer.
        digest = hashlib.sha256(msgspec.msgpack.encode(listed)).hexdigest()
        refused = len(self._secrets)
        return self.is_clean(digest) or self.search_archive(digest, listed, contents, shown) or len(self._secrets) == refused

    def raise_if_found(self) -> None:
        """Raise `CaptureError` with a list of all secrets found, if there are any."""
        if self._secrets:
            files = len(dict.fromkeys(secret.path for secret in self._secrets))
            raise CaptureError(
                f"{files} file{' holds' if files == 1 else 's hold'} a secret and would be part of the capture",
                where="the environment",
                hint="remove the secrets from the files and pass them to runs with `exec --env NAME`;\n"
                f"     --not-secret accepts a file that holds none:\n     {scanner.report(list(self._secrets), '--not-secret')}",
            )

    def _add(self, secret: Secret) -> None:
        if scanner.is_declared(secret, self._declared):
            self.notes.append(scanner.declaration(secret))
        else:
            self._secrets[secret] = None


def check_files(directory: Path) -> None:
    """Raise `CaptureError` if a file of a spec contains a secret, since it may have been edited after the capture.

    The blobs of a spec cannot change: their digests are in it, and the capture searched them.
    """
    found = [secret for name in files.present(directory) for secret in scanner.in_file(directory, name)]
    if found:
        count = len({secret.path for secret in found})
        raise CaptureError(
            f"{count} file{' contains' if count == 1 else 's contain'} a secret; nothing was sent or written",
            where=str(directory),
            hint="remove the secrets and capture again:\n     " + scanner.report(found),
        )


def _secrets(entries: Sequence[Entry], contents: Contents) -> Iterator[Secret]:
    yield from scanner.in_names(entry.path for entry in entries)
    for entry in entries:
        if entry.kind == "file" and entry.size:
            yield from (Secret(entry.path, *match) for match in scanner.in_chunks(contents.chunks(entry), entry.path))
