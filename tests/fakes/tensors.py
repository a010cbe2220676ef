"""Files of tensors in the formats of safetensors, NumPy and torch.save, written without these libraries."""

from __future__ import annotations

import io
import json
import math
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

CODES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "U8": "B", "BOOL": "?"}
_STORAGES = {"F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage", "I64": "LongStorage", "U8": "ByteStorage"}


class Tensor:
    """Numbers in C order. `grad`: with `requires_grad`; `parameter`: as `torch.nn.Parameter`."""

    def __init__(
        self,
        values: Sequence[float],
        shape: tuple[int, ...] | None = None,
        dtype: str = "F32",
        *,
        grad: bool = False,
        parameter: bool = False,
        hooks: Mapping[int, str] | None = None,
    ) -> None:
        self.values = list(values)
        self.shape = (len(self.values),) if shape is None else shape
        self.dtype = dtype
        self.grad = grad
        self.parameter = parameter
        self.hooks = OrderedDict(hooks or {})

    @property
    def data(self) -> bytes:
        return struct.pack(f"<{len(self.values)}{CODES[self.dtype]}", *self.values)

    def changed(self, at: int, value: float) -> Tensor:
        values = list(self.values)
        values[at] = value
        return Tensor(values, self.shape, self.dtype)

    def next(self, at: int, steps: int = 1) -> Tensor:
        """A copy in which one element is moved by `steps` units in the last place."""
        code = {"F64": "q", "F32": "i", "F16": "h"}[self.dtype]
        (bits,) = struct.unpack(f"<{code}", struct.pack(f"<{CODES[self.dtype]}", self.values[at]))
        (value,) = struct.unpack(f"<{CODES[self.dtype]}", struct.pack(f"<{code}", bits + steps))
        return self.changed(at, value)


def safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    body = b""
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [len(body), len(body) + len(tensor.data)],
        }
        body += tensor.data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def npy(tensor: Tensor, *, fortran: bool = False) -> bytes:
    code = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}[tensor.dtype]
    header = f"{{'descr': '{code}', 'fortran_order': {fortran}, 'shape': {tensor.shape!r}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + tensor.data


def npz(arrays: Mapping[str, Tensor], *, when: tuple[int, int, int, int, int, int] = (1980, 1, 1, 0, 0, 0)) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", when), npy(array))
    return made.getvalue()


def checkpoint(value: object, *, name: str = "archive") -> bytes:
    """A file as torch.save writes it: a zip of a pickle and one member for each storage. `value` can hold `Tensor` and plain values."""
    storages: list[bytes] = []
    with _torch() as (storage_of, rebuild, rebuild_parameter):

        class Pickler(pickle.Pickler):
            def persistent_id(self, obj: Any) -> Any:
                if not isinstance(obj, _Storage):
                    return None
                storages.append(obj.data)
                return ("storage", storage_of(obj.dtype), str(len(storages) - 1), "cpu", obj.count)

            def reducer_override(self, obj: Any) -> Any:
                if not isinstance(obj, Tensor):
                    return NotImplemented
                stride = tuple(math.prod(obj.shape[axis + 1 :]) for axis in range(len(obj.shape)))
                storage = _Storage(obj.dtype, obj.data, len(obj.values))
                if obj.parameter:
                    plain = Tensor(obj.values, obj.shape, obj.dtype)
                    return rebuild_parameter, (plain, obj.grad, obj.hooks)
                return rebuild, (storage, 0, obj.shape, stride, obj.grad, obj.hooks)

        pickled = io.BytesIO()
        Pickler(pickled, protocol=2).dump(value)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        members = {"data.pkl": pickled.getvalue(), "byteorder": b"little", "version": b"3\n"}
        members |= {f"data/{number}": data for number, data in enumerate(storages)}
        for path, data in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name}/{path}", (1980, 1, 1, 0, 0, 0)), data)
    return made.getvalue()


class _Storage:
    def __init__(self, dtype: str, data: bytes, count: int) -> None:
        self.dtype, self.data, self.count = dtype, data, count


@contextmanager
def _torch() -> Iterator[Any]:
    """Modules with the names of torch, so that a pickle contains these names."""
    top, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def rebuild(*args: object) -> None:
        """Never called."""

    def rebuild_parameter(*args: object) -> None:
        """Never called."""

    for name, function in (("_rebuild_tensor_v2", rebuild), ("_rebuild_parameter", rebuild_parameter)):
        function.__module__, function.__qualname__ = "torch._utils", name
        setattr(utils, name, function)
    for storage in _STORAGES.values():
        setattr(top, storage, type(storage, (), {"__module__": "torch", "__qualname__": storage}))
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": top, "torch._utils": utils})
    try:
        yield (lambda dtype: getattr(top, _STORAGES[dtype])), rebuild, rebuild_parameter
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def events(values: Sequence[tuple[int, str, float]], *, at: float) -> bytes:
    """A TensorBoard event file of (step, tag, value), written one second after another from `at`."""
    bodies = [b"\x09" + struct.pack("<d", at) + _bytes(3, b"brain.Event:2")]
    for number, (step, tag, value) in enumerate(values, 1):
        scalar = _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
        bodies.append(b"\x09" + struct.pack("<d", at + number) + b"\x10" + bytes([step]) + _bytes(5, _bytes(1, scalar)))
    return b"".join(struct.pack("<QI", len(body), 0) + body + bytes(4) for body in bodies)


def _bytes(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2, len(data)]) + data
