"""TensorBoard event files: the scalars in them, without TensorBoard.

A file is a row of records: length (8 bytes, little endian), its masked CRC-32C (4), that many bytes, their masked
CRC-32C (4) (TensorFlow, `record_writer.h`). Each holds one `Event` (`event.proto`); its `summary` holds values by
tag (`summary.proto`): `simple_value`, as torch's `SummaryWriter` writes it, or a `TensorProto` without dimensions, as
TensorFlow 2 does.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import BinaryIO

_LARGEST = 1 << 16
"""Bytes of a record that is looked at: scalars are small, images and histograms are not."""
_HEADER = struct.Struct("<QI")
_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), reflected."""
_MASK = 0xA282EAD8
_SUMMARY, _VALUE, _TAG, _SIMPLE, _TENSOR = 5, 1, 1, 2, 8
_FORMATS = {1: ("<f", 5), 2: ("<d", 6)}
"""`DataType` of a tensor -> how a number of it is packed, and its own field in `TensorProto`: float and double."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""Wire types of Protocol Buffers."""


class DamagedError(Exception):
    """The file ends in the middle of a record, or holds what is none. What came before it was good."""


def scalars(file: BinaryIO, most: int) -> Iterator[tuple[str, float]]:
    """(tag, value) in the order of writing. Raises `DamagedError`, also when over `most` bytes would have to be read."""
    read = 0
    while True:
        header = file.read(_HEADER.size)
        if not header:
            return
        if len(header) < _HEADER.size:
            raise DamagedError("it ends in the middle of a record")
        size, check = _HEADER.unpack(header)
        if check != _checksum(header[:8]):
            raise DamagedError("it holds what is no record")
        read += _HEADER.size + 4 + (size if size <= _LARGEST else 0)
        if read > most:
            raise DamagedError(f"over {most:,} bytes of records")
        if size > _LARGEST:
            if size >= 1 << 62:
                raise DamagedError("it holds what is no record")
            file.seek(size + 4, 1)  # past the end, the next read says so only by being empty
            continue
        data = file.read(size + 4)
        if len(data) < size + 4:
            raise DamagedError("it ends in the middle of a record")
        if struct.unpack("<I", data[size:])[0] != _checksum(data[:size]):
            raise DamagedError("a record is not what its checksum says")
        try:
            yield from _of_event(data[:size])
        except (ValueError, IndexError, struct.error):
            raise DamagedError("a record is no event") from None


def _of_event(data: bytes) -> list[tuple[str, float]]:
    found = []
    for number, value in _fields(data):
        if number != _SUMMARY or not isinstance(value, bytes):
            continue
        for inner, one in _fields(value):
            if inner == _VALUE and isinstance(one, bytes):
                scalar = _of_value(one)
                if scalar is not None:
                    found.append(scalar)
    return found


def _of_value(data: bytes) -> tuple[str, float] | None:
    tag, number = "", None
    for field, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if field == _TAG:
            tag = value.decode(errors="replace")
        elif field == _SIMPLE and len(value) == 4:
            number = float(struct.unpack("<f", value)[0])
        elif field == _TENSOR:
            number = _of_tensor(value)
    return None if number is None else (tag, number)


def _of_tensor(data: bytes) -> float | None:
    """A `TensorProto` of one float; None for any other."""
    fields = list(_fields(data))
    kind = next((value for number, value in fields if number == 1), 0)
    shape = next((value for number, value in fields if number == 2), b"")
    if (
        not isinstance(kind, int)
        or kind not in _FORMATS
        or not isinstance(shape, bytes)
        or any(n == 2 for n, _ in _fields(shape))
    ):
        return None
    form, own = _FORMATS[kind]
    for number, value in fields:
        if number in (4, own) and isinstance(value, bytes) and len(value) == struct.calcsize(form):
            return float(struct.unpack(form, value)[0])
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: whole numbers as such, all else as bytes. Raises `ValueError`."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            whole, at = _varint(data, at)
            yield key >> 3, whole
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("a field ends behind its message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where the next field begins)."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number that does not end")


def _checksum(data: bytes) -> int:
    """The masked CRC-32C."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


@functools.cache
def _table() -> tuple[int, ...]:
    made = []
    for start in range(256):
        crc = start
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        made.append(crc)
    return tuple(made)
