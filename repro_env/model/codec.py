"""Bytes <-> frozen types. The only place that knows how a value is written down.

Two forms: `canonical` (sorted keys, no white space; what digests are taken of) and
`pretty` (the same, indented; what people read on disk).
"""

from __future__ import annotations

import hashlib
import re
import threading
from typing import Any, TypeVar

import msgspec

from repro_env.model.errors import SpecError, SpecVersionError


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every stored type: immutable, unknown keys refused on decoding.

    msgspec does not pass `kw_only` on to subclasses, and type checkers want `frozen` again, so each says both.
    """


T = TypeVar("T")


def canonical(value: Any) -> bytes:
    """The one byte form of a value: UTF-8 JSON, sorted keys, no white space."""
    return msgspec.json.encode(value, order="sorted")


def pretty(value: Any) -> bytes:
    """`canonical`, indented by two and ended by a newline: for files that people read."""
    return msgspec.json.format(canonical(value), indent=2) + b"\n"


def digest(value: Any) -> str:
    """`sha256:<hex>` of the canonical form of a value."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


_LONG_NUMBER = re.compile(rb"[\s:,\[-][0-9]{19}")
"""Finds text that may hold a number too large to be encoded again."""
_lock = threading.Lock()
_decoders: dict[Any, Any] = {}


def decoder(into: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, for all threads.

    Made by one thread at a time: msgspec 0.22 can crash when two threads meet a type for the first time at once.
    """
    found = _decoders.get(into)
    if found is None:
        with _lock:
            found = _decoders.setdefault(into, msgspec.json.Decoder(into))
    made: msgspec.json.Decoder[T] = found
    return made


def decode(data: bytes, into: type[T], *, where: str) -> T:
    """Decode JSON strictly. Raises `SpecError` naming the place inside the document."""
    try:
        value = decoder(into).decode(data)
    except msgspec.ValidationError as error:
        raise SpecError(
            f"not a valid {into.__name__}: {error}",
            where=where,
            hint="the file was edited, or written by a version this one does not know",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last: nested too deep
        raise SpecError(
            f"not complete JSON: {error}",
            where=where,
            hint="the file is truncated or damaged; capture again or restore it from its backup",
        ) from None
    try:
        if _LONG_NUMBER.search(data):
            msgspec.msgpack.encode(value)  # JSON accepts numbers of any size, MessagePack does not
    except OverflowError:
        hint = "the file was edited or damaged; restore it from a copy"
        raise SpecError("holds a number that needs more than 64 bits", where=where, hint=hint) from None
    return value


class _Header(msgspec.Struct):
    schema: str


def schema_of(data: bytes, *, family: str, newest: int, where: str) -> int:
    """Read only `schema` (`<family>/<number>`), so that a newer file says "newer" and not "unknown key"."""
    try:
        header = msgspec.json.decode(data, type=_Header).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last: nested too deep
        raise SpecError(
            f"not a {family} file: {error}",
            where=where,
            hint="the file is truncated, damaged, or something else; capture again or restore it",
        ) from None
    name, _, number = header.rpartition("/")
    if name != family or not (number.isascii() and number.isdigit()):
        raise SpecError(f"not a {family} file: its schema is {header!r}", where=where, hint="name a file that repro-env wrote")
    if int(number) > newest:
        raise SpecVersionError(
            f"written by a newer repro-env (schema {number}, this version reads up to {newest})",
            where=where,
            hint="pip install --upgrade repro-env",
        )
    return int(number)
