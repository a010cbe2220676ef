"""Pickles, and the tensors that torch puts into them (torch/_utils.py)."""

import pickle
from functools import partial
from typing import Any, Callable

from .arrays import buffered, scalar
from .dtypes import DTYPES, QUANTIZED, STORAGES, width
from .standins import Array, Default, Dtype, Known, Opaque, Ordered, Text, opaque
from .tensor import Storage, Tensor, contiguous, flipped, strided


class Reader(pickle.Unpickler):
    """Imports nothing: whatever a pickle names is one of ours, or a stand-in.

    `storages` gives the bytes of a storage of torch: its key, and the bytes of an element -> memory. `nested` reads a
    string of bytes that is a file of torch's older format.
    """

    def __init__(
        self,
        file: Any,
        storages: "Callable[[str, int], memoryview] | None" = None,
        nested: "Callable[[memoryview], object] | None" = None,
    ) -> None:
        pickle.Unpickler.__init__(self, file, encoding="utf-8", errors="surrogateescape")
        self._storages = storages
        self._nested = nested

    def find_class(self, module: str, name: str) -> Any:
        if module == "joblib.numpy_pickle":
            raise JoblibError
        return named(module, name, self._nested)

    def persistent_load(self, pid: object) -> object:
        if isinstance(pid, tuple) and len(pid) == 4 and pid[0] == "module":  # a class, with its source, in torch's older format
            return pid[1]
        if self._storages is None or not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            return opaque("persistent")(pid)
        name = getattr(pid[1], "name", "").rpartition(".")[2]
        dtype = STORAGES.get(name) or DTYPES.get(name)
        if dtype is None:
            data = self._storages(str(pid[2]), QUANTIZED.get(name, 1))
            return opaque("storage." + name)(Tensor("bytes", (len(data),), data), str(pid[3]))
        whole = data = self._storages(str(pid[2]), width(dtype))
        start = 0
        if len(pid) > 5 and isinstance(pid[5], tuple):  # a part of a storage, in the older format
            _, offset, size = pid[5]
            start = offset * width(dtype)
            data = data[start : start + size * width(dtype)]
        return Storage(dtype, data, whole, start, str(pid[3]))


class JoblibError(Exception):
    """What follows is joblib's: pickles with the bytes of arrays between them."""


def named(module: str, name: str, nested: "Callable[[memoryview], object] | None") -> Any:
    """What stands for a thing that a pickle names. `nested`: as of a `Reader`."""
    if (module, name) == ("torch.storage", "_load_from_bytes") and nested is not None:
        return partial(_load_from_bytes, nested)
    top = module.partition(".")[0]
    if top == "torch" and name in _TORCH and module in ("torch._utils", "torch._tensor", "torch.storage"):
        return _TORCH[name]
    if name in _NUMPY and module in ("numpy", *("numpy.%s.%s" % (core, part) for core in ("core", "_core") for part in _PARTS)):
        return _NUMPY[name]
    if top == "pathlib" and name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path", "PurePath"):
        return partial(_path, opaque("pathlib." + name))
    if (module, name) in _PLAIN:
        return _PLAIN[module, name]
    return opaque("%s.%s" % (module, name))


def _tensor_v2(storage: object, offset: int, size: "tuple[int, ...]", stride: "tuple[int, ...]", *more: object) -> object:
    """`more`: whether a gradient is wanted, hooks, and what is still to be done to the elements."""
    if not isinstance(storage, Storage) or not 2 <= len(more) <= 3:
        return opaque("torch._utils._rebuild_tensor_v2")(storage, offset, size, stride, *more)
    return _tensor(storage, storage.dtype, offset, size, stride, *more)


def _tensor_v3(
    storage: object,
    offset: int,
    size: "tuple[int, ...]",
    stride: "tuple[int, ...]",
    grad: object,
    hooks: object,
    dtype: object,
    *more: object,
) -> object:
    name = getattr(dtype, "name", "").rpartition(".")[2]
    if not isinstance(storage, Storage) or name not in DTYPES or len(more) > 1:
        return opaque("torch._utils._rebuild_tensor_v3")(storage, offset, size, stride, grad, hooks, dtype, *more)
    return _tensor(storage, DTYPES[name], offset, size, stride, grad, hooks, *more)


def _tensor(
    storage: Storage,
    dtype: str,
    offset: int,
    size: "tuple[int, ...]",
    stride: "tuple[int, ...]",
    grad: object,
    hooks: object,
    metadata: object = None,
) -> Tensor:
    """`metadata`: what torch left to be done to the elements (a conjugate, a minus), and anything else."""
    made = strided(storage, dtype, offset, tuple(size), tuple(stride))
    if isinstance(metadata, dict) and metadata.get("conj"):
        made = flipped(made, conjugate=True)
    if isinstance(metadata, dict) and metadata.get("neg"):
        made = flipped(made, conjugate=False)
    facts = {"class": Text("torch.Tensor"), "requires_grad": grad}  # type: dict[str, object]
    if not contiguous(size, stride):
        facts["strides"] = Text(str(tuple(stride)))
    if storage.device != "cpu":
        facts["device"] = storage.device
    more = {"hooks": hooks, "metadata": metadata}
    return made.with_facts({**facts, **{name: value for name, value in more.items() if value}})


def _subclass(function: object, kind: object, args: object, state: object = None) -> object:
    """A tensor of a class of someone's own, or with attributes."""
    made = function(*args) if callable(function) and not isinstance(function, Opaque) and isinstance(args, tuple) else args
    return _more(made, kind if not hasattr(kind, "name") else Text(kind.name), {"state": state} if state else {})


def _parameter(data: object, grad: object = None, hooks: object = None, state: object = None) -> object:
    more = {"hooks": hooks, "state": state}
    facts = {"requires_grad": grad, **{name: value for name, value in more.items() if value}}
    return _more(data, Text("torch.nn.parameter.Parameter"), facts)


def _more(value: object, kind: object, facts: "dict[str, object]") -> object:
    """A tensor, or what stands for one, of which more is said."""
    if isinstance(value, Tensor):
        return value.with_facts({**facts, "class": kind})
    return Known(value, {"about " + name: fact for name, fact in {**facts, "tensor class": kind}.items()})


def _load_from_bytes(nested: "Callable[[memoryview], object]", data: object) -> object:
    """What `pickle` makes of a storage of torch: the older format, in a string of bytes."""
    return nested(memoryview(data)) if isinstance(data, bytes) else opaque("torch.storage._load_from_bytes")(data)


def _reconstruct(kind: object = None, *_: object) -> object:
    name = getattr(kind, "name", "numpy.ndarray")
    return Array() if name == "numpy.ndarray" else Array(Text(name))


def _buffered(*args: Any) -> object:
    found = buffered(*args) if len(args) >= 4 else None
    return opaque("numpy._frombuffer")(*args) if found is None else found


def _scalar(*args: Any) -> object:
    found = scalar(*args) if args else None
    return opaque("numpy.scalar")(*args) if found is None else found


def _encode(text: object, coding: object = None, *more: object) -> object:
    """How protocol 2 spells bytes."""
    if isinstance(text, str) and coding == "latin1" and not more and all(ord(one) < 256 for one in text):
        return text.encode("latin-1")
    return opaque("_codecs.encode")(text, coding, *more)


def _path(kind: "type[Opaque]", *parts: object) -> object:
    if not all(isinstance(part, str) for part in parts):
        return kind(*parts)
    return kind("/".join(parts).replace("//", "/", 1))  # type: ignore[arg-type]


def _moment(*args: object) -> object:
    """`datetime.datetime`: ten bytes, and perhaps a zone."""
    if not args or not isinstance(args[0], bytes) or len(args[0]) != 10:
        return opaque("datetime.datetime")(*args)
    year, (month, day, hour, minute, second), parts = args[0][0] * 256 + args[0][1], args[0][2:7], args[0][7:]
    fold = " (again)" if month > 127 else ""
    when = "%04d-%02d-%02d %02d:%02d:%02d.%06d%s" % (
        *(year, month & 127, day, hour, minute, second),
        *(int.from_bytes(parts, "big"), fold),
    )
    return opaque("datetime.datetime")(when, *args[1:])


_TORCH = {
    "_rebuild_tensor_v2": _tensor_v2,
    "_rebuild_tensor_v3": _tensor_v3,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
    "_rebuild_from_type_v2": _subclass,
}
_PARTS = ("multiarray", "numeric")
_NUMPY = {"_reconstruct": _reconstruct, "_frombuffer": _buffered, "scalar": _scalar, "ndarray": Array, "dtype": Dtype}
_PLAIN = {
    ("collections", "OrderedDict"): Ordered,
    ("collections", "defaultdict"): Default,
    ("datetime", "datetime"): _moment,
    ("_codecs", "encode"): _encode,
    **{(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (set, frozenset, complex, bytearray)},
}  # type: dict[tuple[str, str], Any]
