"""Files with a sequence of pickles, and the tensors and arrays that torch, NumPy and joblib put into them.

torch.save before its zip format, and `pickle` for a storage, write three pickles of a header (a magic number, the protocol, the
machine), a pickle of the object, a pickle of the keys of its storages, and for each storage the number of elements in 8 bytes
and the elements (torch/serialization.py, `_legacy_save`; torch/_utils.py). `joblib.dump` writes a pickle in which the bytes of
each array follow its description (joblib/numpy_pickle.py).
"""

import io
import mmap
import pickle
import struct
from functools import partial
from typing import Any, Callable, ClassVar

from .arrays import code_of, from_buffer, itemsize, scalar
from .standins import Array, Datetime, Default, Dtype, Opaque, Ordered, Path, Text, WithFacts, stand_in
from .tensor import DTYPES, KINDS, STORAGES, Storage, Tensor, UnreadableError, contiguous, read_view, size_of

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_WRAPPER = "NumpyArrayWrapper"


class Reader(pickle.Unpickler):
    """An unpickler that imports nothing: each class or function is replaced by one of this package or by a stand-in.

    `storages` returns the memory of a torch storage, from its key, the bytes of an element and the number of elements.
    """

    def __init__(self, file: Any, storages: "Callable[[str, int, int], memoryview] | None" = None) -> None:
        pickle.Unpickler.__init__(self, file, encoding="utf-8", errors="surrogateescape")
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        if module == "joblib.numpy_pickle":
            raise JoblibError
        return replacement_of(module, name)

    def persistent_load(self, pid: object) -> object:
        if isinstance(pid, tuple) and len(pid) == 4 and pid[0] == "module":  # a class with its source, in torch's older format
            return pid[1]
        if self._storages is None or not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            return stand_in("persistent")(pid)
        name = getattr(pid[1], "name", "").rpartition(".")[2]
        dtype = STORAGES.get(name) or DTYPES.get(name)
        if dtype is None:
            raise UnreadableError("has a storage of an unknown dtype: %s" % name)
        width = KINDS[dtype][0]
        origin = data = self._storages(str(pid[2]), width, pid[4])
        start = 0
        if len(pid) > 5 and isinstance(pid[5], tuple):  # a part of a storage, in the older format
            _, offset, size = pid[5]
            start = offset * width
            data = data[start : start + size * width]
        return Storage(dtype, data, origin, start, str(pid[3]))


class JoblibError(Exception):
    """The file was written by joblib: the bytes of arrays are inside the pickle."""


def replacement_of(module: str, name: str) -> Any:
    """The replacement for a class or function in a pickle."""
    top, path = module.partition(".")[0], "%s.%s" % (module, name)
    if top == "pathlib":
        return stand_in(path, Path)
    replacement = REPLACEMENTS.get((top, name), stand_in(path))  # type: Any
    if isinstance(replacement, type):
        return replacement
    function = partial(_call, replacement, stand_in(path))
    function.name = path  # type: ignore[attr-defined]
    return function


def _call(function: "Callable[..., object]", fallback: "type[Opaque]", *args: object) -> object:
    """The result of a replacement; an object of the fallback class if it does not support the arguments."""
    try:
        result = function(*args)
    except TypeError:
        result = None
    return fallback(*args) if result is None else result


def _tensor_v3(
    storage: object,
    offset: int,
    size: "tuple[int, ...]",
    stride: "tuple[int, ...]",
    grad: object,
    hooks: object,
    dtype: object,
    metadata: object = None,
) -> "Tensor | None":
    kind = DTYPES.get(getattr(dtype, "name", "").rpartition(".")[2])
    return _tensor_v2(storage, offset, size, stride, grad, hooks, metadata, dtype=kind) if kind else None


def _tensor_v2(
    storage: object,
    offset: int,
    size: "tuple[int, ...]",
    stride: "tuple[int, ...]",
    grad: object,
    hooks: object,
    metadata: object = None,
    *,
    dtype: "str | None" = None,
) -> "Tensor | None":
    """`metadata`: operations that torch deferred (conjugate, negate). The elements are compared without them."""
    if not isinstance(storage, Storage):
        return None
    tensor = read_view(storage, dtype or storage.dtype, offset, tuple(size), tuple(stride))
    facts = {"class": Text("torch.Tensor"), "requires_grad": grad}  # type: dict[str, object]
    if not contiguous(size, stride):
        facts["strides"] = Text(str(tuple(stride)))
    if storage.device != "cpu":
        facts["device"] = storage.device
    if hooks:
        facts["hooks"] = hooks
    if metadata:
        facts["metadata"] = metadata
    return tensor.with_facts(facts)


def _subclass(function: object, kind: object, args: object, state: object = None) -> object:
    """A tensor of a subclass, or with attributes."""
    value = function(*args) if callable(function) and isinstance(args, tuple) else args
    return _add_facts(value, Text(getattr(kind, "name", kind)), {"state": state} if state else {})


def _parameter(data: object, grad: object = None, hooks: object = None, state: object = None) -> object:
    optional = {"hooks": hooks, "state": state}
    facts = {"requires_grad": grad, **{name: value for name, value in optional.items() if value}}
    return _add_facts(data, Text("torch.nn.parameter.Parameter"), facts)


def _add_facts(value: object, kind: object, facts: "dict[str, object]") -> object:
    """A tensor or its stand-in, with more facts."""
    if isinstance(value, Tensor):
        return value.with_facts({**facts, "class": kind})
    return WithFacts(value, {"about " + name: fact for name, fact in {**facts, "tensor class": kind}.items()})


def _reconstruct(kind: object, *_: object) -> object:
    name = getattr(kind, "name", "numpy.ndarray")
    return Array() if name == "numpy.ndarray" else Array(Text(name))


def _encode(text: str, coding: str) -> "bytes | None":
    """Bytes, as protocol 2 of pickles writes them."""
    return (
        text.encode("latin-1") if type(text) is str and coding == "latin1" and all(ord(letter) < 256 for letter in text) else None
    )


REPLACEMENTS = {
    ("torch", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch", "_rebuild_parameter"): _parameter,
    ("torch", "_rebuild_parameter_with_state"): _parameter,
    ("torch", "_rebuild_from_type_v2"): _subclass,
    # A storage that `pickle` wrote instead of torch.save: a file in the older format, as bytes.
    ("torch", "_load_from_bytes"): lambda data: read_pickles(memoryview(data)),
    ("numpy", "_reconstruct"): _reconstruct,
    ("numpy", "_frombuffer"): from_buffer,
    ("numpy", "scalar"): scalar,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
    ("collections", "OrderedDict"): Ordered,
    ("collections", "defaultdict"): Default,
    ("datetime", "datetime"): Datetime,
    ("_codecs", "encode"): _encode,
    **{(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (set, frozenset, complex, bytearray)},
}  # type: dict[tuple[str, str], Any]
"""(package, name) of a class or function in a pickle -> its replacement."""


_Slow = pickle.__dict__["_Unpickler"]  # type: Any


class Joblib(_Slow):  # type: ignore[misc]
    """The unpickler written in Python: the one in C cannot be stopped where the bytes of an array follow."""

    def __init__(self, data: "memoryview", file: Any) -> None:
        _Slow.__init__(self, file, encoding="utf-8", errors="surrogateescape")
        self._data = data
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        if module == "joblib.numpy_pickle" and name != _WRAPPER:
            raise UnreadableError("was written by an unsupported version of joblib")
        return stand_in(_WRAPPER) if module == "joblib.numpy_pickle" else replacement_of(module, name)

    def load_build(self) -> None:
        _Slow.load_build(self)
        wrapper = self.stack[-1]
        if isinstance(wrapper, Opaque) and wrapper.name == _WRAPPER:
            self.stack[-1] = self._array(wrapper)

    dispatch: ClassVar[Any] = dict(_Slow.dispatch)
    dispatch[pickle.BUILD[0]] = load_build

    def _array(self, wrapper: Opaque) -> object:
        """The array whose bytes follow in the file."""
        description = next((value for kind, value in wrapper.__dict__["parts"] if kind == "state"), None)
        if (
            not isinstance(description, dict)
            or not isinstance(description.get("dtype"), Dtype)
            or not isinstance(description.get("shape"), tuple)
        ):
            raise UnreadableError("has a joblib array without a description")
        dtype, shape = description["dtype"], description["shape"]
        width = itemsize(code_of(dtype))
        if width is None:
            raise UnreadableError("has a joblib array of an unknown dtype")
        kind = getattr(description.get("subclass"), "name", "numpy.ndarray")
        array = Array() if kind in ("numpy.ndarray", "numpy.memmap") else Array(Text(kind))
        if code_of(dtype)[1] == "O":
            return stand_in("numpy.ndarray of objects")(Reader(self._file).load())
        if description.get("numpy_array_alignment_bytes") is not None:
            self._file.seek(self._file.read(1)[0], 1)
        at, size = self._file.tell(), width * size_of(shape)
        if at + size > len(self._data):
            raise UnreadableError("is cut off")
        self._file.seek(at + size)
        array.__setstate__((1, shape, dtype, description.get("order") == "F", bytes(self._data[at : at + size])))
        return array


def read_pickles(data: "memoryview") -> object:
    """The object that was pickled into a file; a list if there are several."""
    # A mapped file is read without a copy.
    file = data.obj if isinstance(data.obj, mmap.mmap) and len(data.obj) == len(data) else io.BytesIO(data)
    file.seek(0)
    objects = []
    while file.tell() < len(data):
        start = file.tell()
        try:
            value = Reader(file).load()
        except JoblibError:
            file.seek(start)
            value = Joblib(data, file).load()
        objects.append(_read_torch(file, data) if type(value) is int and value == _MAGIC else value)
    if not objects:
        raise UnreadableError("is empty")
    return objects[0] if len(objects) == 1 else objects


def _read_torch(file: Any, data: "memoryview") -> object:
    if Reader(file).load() != _PROTOCOL:
        raise UnreadableError("has an unknown version of torch's older format")
    machine = Reader(file).load()
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise UnreadableError("was written on a big-endian machine")
    start = file.tell()
    sizes = {}  # type: dict[str, tuple[int, int]]

    def note_size(key: str, width: int, count: int) -> "memoryview":
        if sizes.setdefault(key, (width, count)) != (width, count):
            raise UnreadableError("has a storage with two sizes")
        return memoryview(bytes(width * count))

    Reader(file, note_size).load()  # read again below, with the bytes of its storages
    keys = Reader(file).load()
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(sizes):
        raise UnreadableError("does not have all of its storages")
    storages = {}
    at = file.tell()
    for key in map(str, keys):
        width, count = sizes[key]
        end = at + 8 + width * count
        if end > len(data) or bytes(data[at : at + 8]) != struct.pack("<q", count):
            raise UnreadableError("is cut off, or has a storage whose size differs")
        storages[key] = data[at + 8 : end]
        at = end
    file.seek(start)
    value = Reader(file, lambda key, *_: storages[key]).load()
    file.seek(at)
    return value
