"""Encode and decode frozen types as JSON.

There are two forms: `canonical` (sorted keys, no white space), from which digests are computed, and `pretty` (the same,
indented), for files that people read.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any, TypeVar

import msgspec

from repro_env.schema.errors import SpecError, SpecVersionError, UsageError


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all stored types. They are immutable, and decoding rejects unknown keys.

    Each subclass repeats `frozen` and `kw_only`: msgspec does not inherit `kw_only`, and type checkers require `frozen`.
    """


T = TypeVar("T")


def canonical(value: Any) -> bytes:
    """Encode a value in its canonical form: UTF-8 JSON with sorted keys and without white space.

    Raises `UsageError` for a text that is not UTF-8, which only a name in a file system can be (PEP 383).
    """
    try:
        return msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError as error:
        raise UsageError(
            "this name is not valid UTF-8, which a spec and a record require",
            where=repr(error.object.encode(errors="surrogateescape")),
            hint="rename the file or directory",
        ) from None


def pretty(value: Any) -> bytes:
    """Encode a value for people: as `canonical`, but indented by two spaces and with a final newline."""
    return msgspec.json.format(canonical(value), indent=2) + b"\n"


def digest(value: Any) -> str:
    """Return `sha256:<hex>` of the canonical form of a value."""
    return digest_of(canonical(value))


def digest_of(data: bytes) -> str:
    """Return `sha256:<hex>` of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def fits(text: object, into: Any) -> bool:
    """Whether this is text that a stored type can contain, such as `AbsPath`."""
    try:
        msgspec.convert(text, type=into)
        str(text).encode()
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


_lock = threading.Lock()
_decoders: dict[Any, Any] = {}


def decoder(into: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type, which all threads share.

    A lock protects its creation: msgspec 0.22 can crash when two threads create decoders of a new type at the same time.
    """
    cached = _decoders.get(into)
    if cached is None:
        with _lock:
            cached = _decoders.setdefault(into, msgspec.json.Decoder(into))
    result: msgspec.json.Decoder[T] = cached
    return result


def unpack(data: bytes, into: Any) -> Any:
    """Decode MessagePack that this package wrote. Raises `msgspec.MsgspecError`. Its decoders are made as those of `decoder`."""
    key = ("msgpack", into)
    with _lock:
        cached = _decoders[key] = _decoders.get(key) or msgspec.msgpack.Decoder(into)
    return cached.decode(data)


def decode(data: bytes, into: type[T], *, where: str) -> T:
    """Decode JSON strictly. Raises `SpecError`, whose message contains the position in the document."""
    try:
        value = decoder(into).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # RecursionError: nested too deeply
        problem = f"not a valid {into.__name__}" if isinstance(error, msgspec.ValidationError) else "not complete JSON"
        hint = "the file is damaged, was edited, or was written by another version of repro-env; restore it from a backup"
        raise SpecError(f"{problem}: {error}", where=where, hint=hint) from None
    try:
        msgspec.msgpack.encode(value)  # JSON accepts numbers of any size, MessagePack does not
    except OverflowError:
        hint = "the file was edited or damaged; restore it from a backup"
        raise SpecError("this file contains a number that needs more than 64 bits", where=where, hint=hint) from None
    return value


class _Header(msgspec.Struct):
    schema: str


def schema_of(data: bytes, *, family: str, newest: int, where: str) -> int:
    """Read only `schema` (`<family>/<number>`) and return its number.

    Raises `SpecVersionError` for a newer schema, where decoding the file would report an unknown key instead.
    """
    try:
        header = msgspec.json.decode(data, type=_Header).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # RecursionError: nested too deeply
        raise SpecError(
            f"not a {family} file: {error}",
            where=where,
            hint="the file is truncated, damaged, or of another kind; capture again, or restore it from a backup",
        ) from None
    name, _, number = header.rpartition("/")
    if name != family or not (number.isascii() and number.isdigit()):
        hint = "choose a file that repro-env wrote"
        raise SpecError(f"not a {family} file: its schema is {header!r}", where=where, hint=hint)
    if int(number) > newest:
        raise SpecVersionError(
            f"this file was written by a newer version of repro-env (schema {number}, this version reads up to {newest})",
            where=where,
            hint="upgrade repro-env: pip install --upgrade repro-env",
        )
    return int(number)
