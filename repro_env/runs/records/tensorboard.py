"""Read TensorBoard event files, without TensorBoard: their scalars, and the fields of a message.

A file is a sequence of records: the length (8 bytes, little endian), its masked CRC-32C (4 bytes), the data, and the
masked CRC-32C of the data (4 bytes) (TensorFlow, `record_writer.h`). Each record holds one `Event` (`event.proto`). It has a
wall time and a `summary`, which holds values by tag (`summary.proto`): torch's `SummaryWriter` writes `simple_value`, and TensorFlow 2 a
`TensorProto` without dimensions.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_LARGEST = 1 << 16
"""The largest record that is read, in bytes: scalars are small, images and histograms are not."""
_HEADER = struct.Struct("<QI")
_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), reflected."""
_MASK = 0xA282EAD8
TIME, SUMMARY, VALUE, TAG, SIMPLE, _TENSOR = 1, 5, 1, 1, 2, 8
_FORMATS = {b"\x01": ("<f", 5), b"\x02": ("<d", 6)}
"""`DataType` of a tensor (float, double) -> the format of its numbers, and the number of its field in `TensorProto`."""
_VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
"""Wire types of Protocol Buffers."""


class DamagedError(Exception):
    """The file is truncated or damaged. The scalars before the damage are valid."""


def scalars(file: BinaryIO, max_size: int) -> Iterator[tuple[str, float]]:
    """Yield (tag, value) in the order of writing. Raises `DamagedError`, also if the small records exceed `max_size` bytes."""
    total = 0
    while True:
        header = file.read(_HEADER.size)
        if not header:
            return
        if len(header) < _HEADER.size:
            raise DamagedError("the file ends in the middle of a record")
        size, check = _HEADER.unpack(header)
        if check != _checksum(header[:8]):
            raise DamagedError("a record has a wrong checksum")
        total += _HEADER.size + 4 + (size if size <= _LARGEST else 0)
        if total > max_size:
            raise DamagedError(f"the file has more than {max_size:,} bytes of records")
        if size > _LARGEST:
            if size >= 1 << 62:
                raise DamagedError("the length of a record is invalid")
            file.seek(size + 4, 1)  # beyond the end of the file, the next read returns nothing
            continue
        data = file.read(size + 4)
        if len(data) < size + 4:
            raise DamagedError("the file ends in the middle of a record")
        if struct.unpack("<I", data[size:])[0] != _checksum(data[:size]):
            raise DamagedError("a record has a wrong checksum")
        try:
            yield from _of_event(data[:size])
        except (ValueError, IndexError, struct.error):
            raise DamagedError("a record is not a valid event") from None


def _of_event(event: bytes) -> Iterator[tuple[str, float]]:
    for summary in _messages(event, SUMMARY):
        for value in _messages(summary, VALUE):
            scalar = _of_value(value)
            if scalar is not None:
                yield scalar


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    return (field.data for field in fields(message) if (field.number, field.wire_type) == (number, BYTES))


def _of_value(data: bytes) -> tuple[str, float] | None:
    tag, number = "", None
    for field in fields(data):
        if (field.number, field.wire_type) == (TAG, BYTES):
            tag = field.data.decode(errors="replace")
        elif (field.number, field.wire_type) == (SIMPLE, FOUR_BYTES):
            number = float(struct.unpack("<f", field.data)[0])
        elif (field.number, field.wire_type) == (_TENSOR, BYTES):
            number = _of_tensor(field.data)
    return None if number is None else (tag, number)


def _of_tensor(data: bytes) -> float | None:
    """Return the number in a `TensorProto` of one float or double; None for any other tensor."""
    parts = {field.number: field.data for field in fields(data)}
    number_format, typed_field = _FORMATS.get(parts.get(1, b""), ("", 0))
    if not number_format or any(field.number == 2 for field in fields(parts.get(2, b""))):
        return None
    values = (parts.get(number, b"") for number in (4, typed_field))
    value = next((value for value in values if len(value) == struct.calcsize(number_format)), None)
    return None if value is None else float(struct.unpack(number_format, value)[0])


class Field(NamedTuple):
    """A field of a message in Protocol Buffers."""

    number: int
    wire_type: int
    data: bytes
    """The value, without its key and length."""
    encoded: bytes
    """The complete field."""


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message. Raises `ValueError` or `IndexError` if it is not a message."""
    at = 0
    while at < len(message):
        start = at
        key, at = _varint(message, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            size = _varint(message, at)[1] - at
        elif wire_type == BYTES:
            size, at = _varint(message, at)
        elif wire_type in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire_type == EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        data, at = message[at : at + size], at + size
        if at > len(message):
            raise ValueError("a field is longer than its message")
        yield Field(key >> 3, wire_type, data, message[start:at])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("an integer is truncated")


def _checksum(data: bytes) -> int:
    """Return the masked CRC-32C."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


@functools.cache
def _table() -> tuple[int, ...]:
    table = []
    for start in range(256):
        crc = start
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
