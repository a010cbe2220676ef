"""Search the source, trees and wheels for secrets before they are bundled, and the files of a spec before they leave the machine.

Files from an index are public and are not searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.secrets import scanner
from repro_env.environment.secrets.scanner import Item, Secret
from repro_env.io.files import chunks_of
from repro_env.schema import redact
from repro_env.schema.credentials import RULE
from repro_env.schema.errors import CaptureError, ReproEnvError
from repro_env.schema.globs import globs
from repro_env.store.facts import FactCache
from repro_env.store.specs import files

_SHOWN = 100
"""Maximum number of files that an error lists; further files are only counted."""


class SecretSearch:
    """The search through everything that a capture bundles."""

    def __init__(self, declared: Sequence[str], facts: FactCache | None) -> None:
        """`declared`: globs of files that contain no secret, whatever they look like. `facts` caches which files are clean."""
        self._declared = globs(declared)
        self._facts = facts
        self._secrets: dict[str, dict[str, None]] = {}
        """Path -> the kinds of its secrets, with their lines."""
        self.notes: list[str] = []
        """A line for each bundled file that looks like it contains a secret, and that the user declared to be safe."""

    def add(self, secret: Secret) -> None:
        if any(glob.matches(secret.path.lstrip("/")) for glob in self._declared):
            line = f", line {secret.line}" if secret.line else ""
            self.notes.append(
                f"{secret.path}{line} looks like a secret ({secret.kind}), included because --not-secret accepts it"
            )
        else:
            kind = f"{secret.kind} (line {secret.line})" if secret.line else secret.kind
            self._secrets.setdefault(secret.path, {})[kind] = None

    def raise_if_found(
        self, error: type[ReproEnvError] = CaptureError, where: str = "the environment", options: str = "--not-secret"
    ) -> None:
        """Raise an error with a list of all secrets found, if there are any.

        `options`: names of options that take the path, with which the user can continue, separated by spaces.
        """
        lines = []
        for path, kinds in self._secrets.items():
            shown = redact.secretless(path)
            choices = " or ".join(f"{option} '{shown}'" for option in options.split())
            lines.append("; ".join(filter(None, (f"{shown}: {', '.join(kinds)}", choices))))
        if lines:
            more = [f"and {len(lines) - _SHOWN} more files"] if len(lines) > _SHOWN else []
            raise error(
                f"{len(lines)} file{' contains' if len(lines) == 1 else 's contain'} a secret, so nothing was written or sent",
                where=where,
                hint="remove the secrets from these files, and pass them to runs with `exec --env NAME`"
                f"{'; or leave a file out, or accept it if it contains no secret' if options else ''}:\n     "
                + "\n     ".join((*lines[:_SHOWN], *more)),
            )

    def is_clean(self, digest: str) -> bool:
        """Whether all files of the archive or listing with this digest were searched before, by the same rules, without a finding."""
        return self._facts is not None and self._facts.get("secrets", f"{RULE} {digest}") is not None

    def search_archive(
        self, digest: str, files: Iterable[Item], read: Callable[[Item], Iterable[bytes]], shown: Callable[[str], str]
    ) -> bool:
        """Like `search_tree` for all files of a wheel or archive; the result is cached for `is_clean`."""
        clean = True
        for secret in scanner.in_files(files, read):
            clean = False
            self.add(Secret(shown(secret.path), secret.line, secret.kind))
        if clean and self._facts is not None:
            self._facts.put("secrets", f"{RULE} {digest}", b"none")
        return clean

    def search_tree(
        self, files: Iterable[Item], read: Callable[[Item], Iterable[bytes]], shown: Callable[[str], str] = str
    ) -> bool:
        """Search the files of a listing, which `read` returns, and their names. Returns whether they may be bundled.

        `shown` maps a path to the form that messages use.
        """
        listed = list(files)
        # Of all entries: selecting the files would take longer.
        digest = hashlib.sha256(msgspec.msgpack.encode(listed)).hexdigest()
        refused = len(self._secrets)
        return self.is_clean(digest) or self.search_archive(digest, listed, read, shown) or len(self._secrets) == refused


def check_files(directory: Path) -> None:
    """Raise `CaptureError` if a file of a spec contains a secret, since it may have been edited after the capture.

    The blobs of a spec cannot change: their digests are in it, and the capture searched them.
    """
    search = SecretSearch((), None)
    for name in files.present(directory):
        for match in scanner.in_chunks(chunks_of(directory / name), name):
            search.add(Secret(name, *match))
    search.raise_if_found(where=str(directory), options="")
