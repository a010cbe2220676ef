"""Pickles, and the tensors that torch puts into them (torch/_utils.py)."""

import pickle

from .dtypes import DTYPES, STORAGES
from .standins import Array, Default, Dtype, Ordered, opaque
from .tensor import Storage, strided


class Reader(pickle.Unpickler):
    """Imports nothing: whatever a pickle names is one of ours, or a stand-in."""

    def __init__(self, file: object, storages: "object" = None) -> None:
        pickle.Unpickler.__init__(self, file, encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
        self._storages = storages

    def find_class(self, module: str, name: str) -> object:
        if module in ("torch._utils", "torch._tensor"):
            if name == "_rebuild_tensor_v2":
                return _tensor_v2
            if name == "_rebuild_tensor_v3":
                return _tensor_v3
            if name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
                return _parameter
        if module == "collections" and name == "OrderedDict":
            return Ordered
        if module == "collections" and name == "defaultdict":
            return Default
        if module.partition(".")[0] == "numpy":
            if name == "_reconstruct":
                return _reconstruct
            if name == "ndarray":
                return Array
            if name == "dtype":
                return Dtype
        if module in ("builtins", "__builtin__") and name in ("set", "frozenset", "complex", "bytearray"):
            return {"set": set, "frozenset": frozenset, "complex": complex, "bytearray": bytearray}[name]
        if module == "_codecs" and name == "encode":  # how protocol 2 spells bytes
            return _encode
        return opaque("%s.%s" % (module, name))

    def persistent_load(self, pid: object) -> object:
        if self._storages is None or not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            return opaque("persistent")(repr(pid))
        name = getattr(pid[1], "name", "").rpartition(".")[2]
        dtype = STORAGES.get(name) or DTYPES.get(name)
        data = self._storages(str(pid[2]))  # type: ignore[operator]
        if dtype is None:
            return opaque("storage." + name)(bytes(data))
        return Storage(dtype, data)


def _tensor_v2(storage: object, offset: int, size: "tuple[int, ...]", stride: "tuple[int, ...]", *_: object) -> object:
    if not isinstance(storage, Storage):
        return opaque("torch._utils._rebuild_tensor_v2")(storage, offset, size, stride)
    return strided(storage, storage.dtype, offset, tuple(size), tuple(stride))


def _tensor_v3(
    storage: object,
    offset: int,
    size: "tuple[int, ...]",
    stride: "tuple[int, ...]",
    _grad: object,
    _hooks: object,
    dtype: object,
    *_: object,
) -> object:
    name = getattr(dtype, "name", "").rpartition(".")[2]
    if not isinstance(storage, Storage) or name not in DTYPES:
        return opaque("torch._utils._rebuild_tensor_v3")(storage, offset, size, stride, dtype)
    return strided(storage, DTYPES[name], offset, tuple(size), tuple(stride))


def _parameter(data: object, *_: object) -> object:
    return data


def _reconstruct(*_: object) -> object:
    return Array()


def _encode(text: object, *_: object) -> object:
    return text.encode("latin-1", "replace") if isinstance(text, str) else text
