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
from repro_env.model.errors import CaptureError
from repro_env.store.facts import FactCache


class Search:
    """One search through all that a capture carries."""

    def __init__(self, declared: Sequence[str], facts: FactCache) -> None:
        """`declared`: globs of files that hold no secret whatever they look like. `facts` remembers what was clean."""
        self._declared = globs(declared)
        self._facts = facts
        self.told: list[str] = []
        """A line for each file that looks as if it held a secret, and is carried since the user declared it."""

    def clean(self, sha256: str) -> bool:
        """Whether all files of the wheel or archive with this digest were searched before, and none held a secret."""
        return self._facts.get("secrets", codec.digest([secrets.RULE, "whole", sha256])) is not None

    def whole(self, sha256: str, entries: Iterable[Entry], contents: Contents, shown: Callable[[str], str]) -> None:
        """`tree`, of all files of a wheel or archive: `clean` knows it from then on."""
        told = len(self.told)
        self._tree(list(entries), contents, shown)
        if len(self.told) == told:
            self._facts.put("secrets", codec.digest([secrets.RULE, "whole", sha256]), b"none")

    def tree(self, entries: Iterable[Entry], contents: Contents, shown: Callable[[str], str]) -> None:
        """Search the files of a tree; `shown` says how people know a path. Raises `CaptureError` for a secret."""
        listed = list(entries)
        digest = hashlib.sha256(msgspec.msgpack.encode(listed)).hexdigest()  # of all: to pick the texts takes longer
        if not self.clean(digest):
            self.whole(digest, listed, contents, shown)

    def _tree(self, entries: Sequence[Entry], contents: Contents, shown: Callable[[str], str]) -> None:
        files = [entry for entry in entries if entry.kind == "file" and entry.size and secrets.may_be_text(entry.path)]
        key = codec.digest([secrets.RULE, layer.recipe(files)])
        if not files or self._facts.get("secrets", key) is not None:
            return
        clean = True
        for secret in _found(files, contents):
            clean = False
            self._refuse(Secret(shown(secret.path), secret.line, secret.kind))
        if clean:
            self._facts.put("secrets", key, b"none")

    def _refuse(self, secret: Secret) -> None:
        if not secrets.is_declared(secret, self._declared):
            raise CaptureError(
                f"line {secret.line} holds a secret ({secret.kind}), and the file would be carried",
                where=secret.path,
                hint=f"take it out of the file, and give it to runs with `exec --env NAME`; if it is none: --not-secret '{secret.path}'",
            )
        self.told.append(secrets.declaration(secret))


def _found(files: Iterable[Entry], contents: Contents) -> Iterator[Secret]:
    for entry in files:
        found = secrets.in_chunks(contents.chunks(entry))
        if found is not None:
            yield Secret(entry.path, *found)
