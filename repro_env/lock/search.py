"""Nothing secret in what is carried: trees and wheels are searched before they are written anywhere.

The source has its own refusal (`capture.source`). What comes from an index is public and not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from repro_env.capture import secrets
from repro_env.capture.globs import Glob
from repro_env.capture.secrets import Secret
from repro_env.image import layer
from repro_env.image.entry import Contents, Entry
from repro_env.model import codec
from repro_env.model.errors import CaptureError
from repro_env.store.facts import FactCache


def search(
    entries: Iterable[Entry],
    contents: Contents,
    *,
    shown: Callable[[str], str],
    declared: Sequence[Glob],
    facts: FactCache,
) -> list[str]:
    """Search the files of a tree. `shown` says how a path is shown to people; `declared` are those that hold none.

    Returns a line for each secret that the user declared to be none. Raises `CaptureError` for the first other one.
    """
    files = [entry for entry in entries if entry.kind == "file" and entry.size and secrets.may_be_text(entry.path)]
    key = codec.digest([secrets.RULE, layer.recipe(files)])
    if not files or facts.get("secrets", key) is not None:
        return []
    told = []
    for secret in _found(files, contents):
        secret = Secret(shown(secret.path), secret.line, secret.kind)
        if not secrets.is_declared(secret, declared):
            raise CaptureError(
                f"line {secret.line} holds a secret ({secret.kind}), and the file would be carried",
                where=secret.path,
                hint=f"take it out of the file, and give it to runs with `exec --env NAME`; if it is none: --not-secret '{secret.path}'",
            )
        told.append(secrets.declaration(secret))
    if not told:
        facts.put("secrets", key, b"none")
    return told


def _found(files: Iterable[Entry], contents: Contents) -> Iterator[Secret]:
    for entry in files:
        found = secrets.in_chunks(contents.chunks(entry))
        if found is not None:
            yield Secret(entry.path, *found)
