"""Files of libraries that write when they made them, or a random name, into a field of their own: that field, and all the rest.

Each field is found by what its library writes around it, and is a value with a name. What counts is decided elsewhere.
"""

import re
from typing import Container

from .standins import Text
from .tensor import Tensor

CATBOOST = b"CBM1"
"""How a model of CatBoost begins (catboost/libs/model/model.cpp)."""
_SMALL = 16 << 20
"""Bytes. Nothing is looked for in what is larger."""
_PROPERTIES = re.compile(rb"<dcterms:(created|modified)(?: [^<>]{0,100})?>([^<>]{1,40})</dcterms:")
"""ECMA-376 part 2, core properties."""
_SAVED = re.compile(rb'"(date_saved)": "([^"\\]{1,40})"')
_SHARED = re.compile(rb'(?<="shared_object_id": )[0-9]{1,20}(?![0-9.eE])')
"""The address of an object while the model was saved: it says which objects are one (keras/src/saving/serialization_lib.py)."""
_SKOPS = re.compile(rb'(?<="__id__": )[0-9]{1,20}(?![0-9.eE])|(?<="file": ")[0-9]{1,20}(?=\.[a-z]{1,10}")')
"""The same of skops, which also names its files by them (skops/io/_utils.py, `get_state`)."""
_GUID = re.compile(rb"[\x1c-\x23]\0\0\0([0-9a-f]{1,8}(?:-[0-9a-f]{1,8}){3})(?=\0{1,7}\x0a\0\0\0model_guid\0)")
_FINISHED = re.compile(
    rb"(?<=\x14\0\0\0)([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)(?=\0{1,7}\x11\0\0\0train_finish_time\0)"
)
"""A text of FlatBuffers: its length, the text, zeros. Before the name of a field stands its value."""


def told(name: str, members: "Container[str]", data: "memoryview") -> object:
    """A member of a zip that has such members."""
    if len(data) > _SMALL:
        return whole(data)
    if name == "docProps/core.xml" and "[Content_Types].xml" in members:
        return _fields(data, _PROPERTIES)
    if "model.weights.h5" in members and "config.json" in members:  # Keras
        if name == "metadata.json":
            return _fields(data, _SAVED)
        if name == "config.json":
            return numbered(data, _SHARED, "shared_object_id")[0]
    return whole(data)


def skops(data: "memoryview") -> "tuple[object, dict[str, str]]":
    """`schema.json` of a model that skops saved, and the names of its files without a suffix: as they are, as they are told."""
    if len(data) > _SMALL or b'"_skops_version":' not in bytes(data):
        return whole(data), {}
    return numbered(data, _SKOPS, "skops_object_id")


def catboost(data: "memoryview") -> object:
    """A model as CatBoost saves it, by itself and in a pickle of it."""
    found = bytes(data)
    fields = {}  # type: dict[str, object]
    for name, pattern in (("model_guid", _GUID), ("train_finish_time", _FINISHED)):
        places = list(pattern.finditer(found))
        if len(places) != 1:
            return whole(data)
        (start, end), fields[name] = places[0].span(1), places[0].group(1).decode("ascii")
        if name == "model_guid":  # a part of it that begins with a zero is shorter, and its length is before it
            start, end = places[0].start(), start + _padded(end - start)
        found = found[:start] + bytes(end - start) + found[end:]
    return {Text("the rest"): whole(memoryview(found)), **fields}


def _padded(size: int) -> int:
    return (size + 4) // 4 * 4


def whole(data: "memoryview") -> Tensor:
    return Tensor("bytes", (len(data),), data)


def _fields(data: "memoryview", pattern: "re.Pattern[bytes]") -> object:
    fields = {}  # type: dict[str, object]
    for one in pattern.finditer(data):
        name = one.group(1).decode("ascii")
        if name in fields:
            return whole(data)
        fields[name] = one.group(2).decode("utf-8", "surrogateescape")
    found, at, rest = bytes(data), 0, b""
    for one in pattern.finditer(found):
        rest += found[at : one.start(2)]
        at = one.end(2)
    rest += found[at:]
    return {Text("the rest"): whole(memoryview(rest)), **fields} if fields else whole(data)


def numbered(data: "memoryview", pattern: "re.Pattern[bytes]", name: str) -> "tuple[object, dict[str, str]]":
    """Each address as its number by first use: where two objects are one, that counts. Also which is which."""
    order = {}  # type: dict[bytes, int]

    def number(one: "re.Match[bytes]") -> bytes:
        return b"%d" % order.setdefault(one.group(0), len(order))

    rest = pattern.sub(number, bytes(data))
    if not order:
        return whole(data), {}
    made = {Text("the rest"): whole(memoryview(rest)), name: [int(one) for one in order]}
    return made, {one.decode("ascii"): str(at) for one, at in order.items()}
