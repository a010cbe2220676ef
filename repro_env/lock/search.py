"""Nothing secret in what is carried: trees and wheels are searched before they are written anywhere.

The source has its own refusal (`capture.source`). What comes from an index is public and not searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from repro_env.capture import secrets
from repro_env.capture.globs import globs
from repro_env.capture.secrets import Secret
from repro_env.image import layer
from repro_env.image.entry import Contents, Entry
from repro_env.model import codec
from repro_env.model.credentials import RULE
from repro_env.model.errors import CaptureError
from repro_env.store.facts import FactCache


class Search:
    """One search through all that a capture carries."""

    def __init__(self, declared: Sequence[str], facts: FactCache) -> None:
        """`declared`: globs of files that hold no secret whatever they look like. `facts` remembers what was clean."""
        self._declared = globs(declared)
        self._facts = facts
        self._refused: dict[Secret, None] = {}
        self.notes: list[str] = []
        """A line for each file that seems to hold a secret and is bundled because the user declared it."""

    def clean(self, sha256: str) -> bool:
        """Whether all files of the wheel or archive with this digest were searched before, and none held a secret."""
        return self._facts.get("secrets", codec.digest([RULE, "whole", sha256])) is not None

    def whole(self, sha256: str, entries: Iterable[Entry], contents: Contents, shown: Callable[[str], str]) -> bool:
        """`tree`, of all files of a wheel or archive: `clean` knows it from then on."""
        found = len(self.notes) + len(self._refused)
        self._tree(list(entries), contents, shown)
        clean = len(self.notes) + len(self._refused) == found
        if clean:
            self._facts.put("secrets", codec.digest([RULE, "whole", sha256]), b"none")
        return clean

    def tree(self, entries: Iterable[Entry], contents: Contents, shown: Callable[[str], str]) -> bool:
        """Search the files of a tree and their names. Returns whether the tree may be bundled.

        `shown` maps a path to the form that messages use.
        """
        listed = list(entries)
        digest = hashlib.sha256(msgspec.msgpack.encode(listed)).hexdigest()  # of all entries: picking the files takes longer
        refused = len(self._refused)
        return self.clean(digest) or self.whole(digest, listed, contents, shown) or len(self._refused) == refused

    def refuse(self) -> None:
        """Raises `CaptureError` with every secret found."""
        if self._refused:
            files = len(dict.fromkeys(one.path for one in self._refused))
            raise CaptureError(
                f"{files} file{' holds' if files == 1 else 's hold'} a secret and would be part of the capture",
                where="the environment",
                hint="remove the secrets from the files and pass them to runs with `exec --env NAME`;\n"
                f"     --not-secret accepts a file that holds none:\n     {secrets.report(list(self._refused), '--not-secret')}",
            )

    def _tree(self, entries: Sequence[Entry], contents: Contents, shown: Callable[[str], str]) -> None:
        files = [entry for entry in entries if entry.kind == "file" and entry.size]
        key = codec.digest([RULE, layer.recipe(entries)])
        if self._facts.get("secrets", key) is not None:
            return
        clean = True
        for secret in (*secrets.in_names(entry.path for entry in entries), *_found(files, contents)):
            clean = False
            self._add(Secret(shown(secret.path), secret.line, secret.kind))
        if clean:
            self._facts.put("secrets", key, b"none")

    def _add(self, secret: Secret) -> None:
        if secrets.is_declared(secret, self._declared):
            self.notes.append(secrets.declaration(secret))
        else:
            self._refused[secret] = None


def _found(files: Iterable[Entry], contents: Contents) -> Iterator[Secret]:
    for entry in files:
        for found in secrets.in_chunks(contents.chunks(entry), entry.path):
            yield Secret(entry.path, *found)
