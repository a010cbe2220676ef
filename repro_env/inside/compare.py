"""Compares files of tensors, pair by pair: `python compare.py WANTED OUT`.

WANTED is a JSON file: a list of [left, right, masks] with the paths of two files; masks are [pattern, flags of re, replacement], for
names in the files that hold a time or the like. OUT gets a JSON file, a list with one object a pair: see `compare`.
Read are .safetensors, what torch.save wrote (its zip format by a reader of our own, the older one by
`torch.load(weights_only=True)`), .npy, .npz and pickles. Classes that a pickle names are never imported: each becomes
an inert stand-in that keeps what it was made of. NumPy is used where the environment has it, for speed alone.

Formats: the safetensors README ("Format"); torch/serialization.py and torch/_utils.py; numpy/lib/format.py (NEP 1).
Runs in other people's interpreters: the standard library only, Python 3.8.
"""

import ast
import json
import math
import mmap
import pickle
import re
import signal
import struct
import sys
import zipfile
from typing import Any

_LONGEST = 24 * 3600
"""Seconds after which something is wrong."""
_DEEPEST = 200
_LEAVES = 2000000
"""Values of one file that are looked at."""
_NAMED = 100
"""Tensors, and values, of one file that are told one by one; the rest is counted."""
_TEXT = 500
"""Characters of a value that are told."""
_CHUNK = 1 << 20
"""Elements of a tensor that are compared at once."""
_FAR = 0.01
"""`verify.outputs.NEAR`."""
_HEADER = 100 << 20
"""Bytes of a safetensors header (the format's own limit)."""

# name -> (bytes of an element, kind); kinds: i, u integers; f, b floats of IEEE layout and bfloat16; e4, e5 of 8 bits;
# ? truth values; r raw bytes
_KINDS = {
    name: (int(width), kind)
    for name, width, kind in (
        one.split(":")
        for one in (
            "F64:8:f F32:4:f F16:2:f BF16:2:b F8_E4M3:1:e4 F8_E5M2:1:e5 I64:8:i I32:4:i I16:2:i "
            "I8:1:i U64:8:u U32:4:u U16:2:u U8:1:u BOOL:1:? C64:8:c C128:16:c"
        ).split()
    )
}


def _table(text: str) -> "dict[str, str]":
    """`a:b c:d` as a dict."""
    return {name: value for name, _, value in (one.partition(":") for one in text.split())}


_STORAGES = _table(
    "DoubleStorage:F64 FloatStorage:F32 HalfStorage:F16 BFloat16Storage:BF16 LongStorage:I64 IntStorage:I32 "
    "ShortStorage:I16 CharStorage:I8 ByteStorage:U8 UntypedStorage:U8 BoolStorage:BOOL ComplexFloatStorage:C64 "
    "ComplexDoubleStorage:C128"
)
_DTYPES = _table(
    "float64:F64 float32:F32 float16:F16 bfloat16:BF16 float8_e4m3fn:F8_E4M3 float8_e5m2:F8_E5M2 int64:I64 "
    "int32:I32 int16:I16 int8:I8 uint64:U64 uint32:U32 uint16:U16 uint8:U8 bool:BOOL complex64:C64 complex128:C128"
)
_NUMPY = _table("f8:F64 f4:F32 f2:F16 i8:I64 i4:I32 i2:I16 i1:I8 u8:U64 u4:U32 u2:U16 u1:U8 b1:BOOL c8:C64 c16:C128")


class UnreadableError(Exception):
    """A file is not what its format says; the text says why."""


class Tensor:
    """Elements in C order, little-endian."""

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: "tuple[int, ...]", data: "memoryview") -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data


class Opaque:
    """Stands for an object of a class that is not imported: what it was made of."""

    name = ""

    def __new__(cls, *args: object, **named: object) -> "Opaque":
        made = object.__new__(cls)
        made.__dict__["parts"] = [("args", args), ("named", named)] if named else [("args", args)] if args else []
        return made

    def __setstate__(self, state: object) -> None:
        self.__dict__["parts"].append(("state", state))

    def __setitem__(self, key: object, value: object) -> None:
        self.__dict__["parts"].append(("item", (key, value)))

    def append(self, value: object) -> None:
        self.__dict__["parts"].append(("entry", value))

    def extend(self, values: "list[object]") -> None:
        for value in values:
            self.append(value)

    def add(self, value: object) -> None:
        self.append(value)

    def __hash__(self) -> int:
        return id(self)


class _Ordered(dict):  # type: ignore[type-arg]
    """`collections.OrderedDict` and the like; torch hangs a `_metadata` on it, which says nothing of values."""

    def __init__(self, *args: object) -> None:
        dict.__init__(self)
        if len(args) == 1 and isinstance(args[0], (list, tuple, dict)):
            dict.update(self, args[0])

    def __setstate__(self, state: object) -> None:
        pass


class _Default(_Ordered):
    def __init__(self, *args: object) -> None:
        _Ordered.__init__(self, *args[1:])


class Storage:
    """A flat piece of memory in a file that torch.save wrote."""

    __slots__ = ("data", "dtype")

    def __init__(self, dtype: str, data: "memoryview") -> None:
        self.dtype = dtype
        self.data = data


def _strided(storage: Storage, dtype: str, offset: int, shape: "tuple[int, ...]", stride: "tuple[int, ...]") -> Tensor:
    """The elements of a view of a storage, in C order. Raises `UnreadableError` for one that leaves its storage."""
    width = _KINDS[dtype][0]
    count = 1
    for size in shape:
        count *= size
    if any(size < 0 for size in shape) or any(step < 0 for step in stride) or offset < 0 or len(shape) != len(stride):
        raise UnreadableError("has a tensor with a negative size")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride)) if count else offset  # noqa: B905
    if count and (last + 1) * width > len(storage.data):
        raise UnreadableError("has a tensor that is larger than its storage")
    wanted, dense = 1, True
    for size, step in zip(reversed(shape), reversed(stride)):  # noqa: B905
        if size != 1 and step != wanted:
            dense = False
        wanted *= size
    if dense or not count:
        return Tensor(dtype, shape, storage.data[offset * width : (offset + count) * width])
    if count > len(storage.data) * 64:
        raise UnreadableError("has a tensor that is far larger than its storage")
    unit = min(width, 8)
    if width > unit:  # two numbers an element
        shape, stride, offset = (
            (*shape, width // unit),
            (*(step * (width // unit) for step in stride), 1),
            offset * (width // unit),
        )
    code: Any = {1: "B", 2: "H", 4: "I", 8: "Q"}[unit]
    cells: Any = storage.data[: len(storage.data) // unit * unit].cast(code)
    made = bytearray()
    starts = [offset]
    for size, step in zip(shape[:-1], stride[:-1]):  # noqa: B905
        starts = [start + number * step for start in starts for number in range(size)]
    size, step = shape[-1], stride[-1]
    for start in starts:
        row = cells[start : start + (size - 1) * step + 1 : step] if step else [cells[start]] * size
        made += row.tobytes() if isinstance(row, memoryview) else b"".join(struct.pack("<Q", one)[:unit] for one in row)
    if width > unit:
        shape = shape[:-1]
    return Tensor(dtype, shape, memoryview(bytes(made)))


def _tensor_v2(storage: object, offset: int, size: "tuple[int, ...]", stride: "tuple[int, ...]", *_: object) -> object:
    if not isinstance(storage, Storage):
        return _opaque("torch._utils._rebuild_tensor_v2")(storage, offset, size, stride)
    return _strided(storage, storage.dtype, offset, tuple(size), tuple(stride))


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
    if not isinstance(storage, Storage) or name not in _DTYPES:
        return _opaque("torch._utils._rebuild_tensor_v3")(storage, offset, size, stride, dtype)
    return _strided(storage, _DTYPES[name], offset, tuple(size), tuple(stride))


def _parameter(data: object, *_: object) -> object:
    return data


class _Array(Opaque):
    """`numpy.ndarray` in a pickle: made empty, then given (version, shape, dtype, Fortran order, bytes)."""

    name = "numpy.ndarray"


class _Dtype(Opaque):
    """`numpy.dtype`: made of its code, then given (version, byte order, ...)."""

    name = "numpy.dtype"


def _reconstruct(*_: object) -> object:
    return _Array()


def _array_of(one: "_Array") -> object:
    """A stand-in of an array as a tensor, where its elements are plain numbers."""
    state = next((value for kind, value in one.__dict__["parts"] if kind == "state"), None)
    if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], bytes) and isinstance(state[2], _Dtype)):
        return None
    code = _code_of(state[2])
    if code is None or not isinstance(state[1], tuple):
        return None
    return _numpy(code, state[1], bool(state[3]), memoryview(state[4]))


def _code_of(one: "_Dtype") -> "str | None":
    args, state = (), ()  # type: tuple[object, ...], tuple[object, ...]
    for kind, value in one.__dict__["parts"]:
        if kind == "args":
            args = value
        elif kind == "state" and isinstance(value, tuple):
            state = value
    order = state[1] if len(state) > 1 else "<"
    return "%s%s" % (order if order in ("<", ">") else "|", args[0]) if args else None


def _numpy(code: str, shape: "tuple[int, ...]", fortran: bool, data: "memoryview") -> "Tensor | None":
    """Elements of a NumPy dtype such as `<f4`; None for one that is no plain number."""
    dtype = _NUMPY.get(code.lstrip("<>|="))
    if dtype is None:
        return None
    width = _KINDS[dtype][0]
    count = 1
    for size in shape:
        count *= size
    if any(size < 0 for size in shape) or len(data) < count * width:
        raise UnreadableError("has an array that is cut off")
    if code[0] == ">":
        part = width // 2 if dtype[0] == "C" else width
        swapped = bytearray(len(data))
        for number in range(part):
            swapped[number::part] = bytes(data)[part - 1 - number :: part]
        data = memoryview(bytes(swapped))
    if not fortran or len(shape) < 2:
        return Tensor(dtype, shape, data[: count * width])
    stride, step = [], 1
    for size in shape:
        stride.append(step)
        step *= size
    return _strided(Storage(dtype, data), dtype, 0, shape, tuple(stride))


_opaques = {}  # type: dict[str, type[Opaque]]


def _opaque(name: str) -> "type[Opaque]":
    if name not in _opaques:
        _opaques[name] = type("Opaque", (Opaque,), {"name": name})
    return _opaques[name]


class _Reader(pickle.Unpickler):
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
            return _Ordered
        if module == "collections" and name == "defaultdict":
            return _Default
        if module.partition(".")[0] == "numpy":
            if name == "_reconstruct":
                return _reconstruct
            if name == "ndarray":
                return _Array
            if name == "dtype":
                return _Dtype
        if module in ("builtins", "__builtin__") and name in ("set", "frozenset", "complex", "bytearray"):
            return {"set": set, "frozenset": frozenset, "complex": complex, "bytearray": bytearray}[name]
        if module == "_codecs" and name == "encode":  # how protocol 2 spells bytes
            return _encode
        return _opaque("%s.%s" % (module, name))

    def persistent_load(self, pid: object) -> object:
        if self._storages is None or not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            return _opaque("persistent")(repr(pid))
        name = getattr(pid[1], "name", "").rpartition(".")[2]
        dtype = _STORAGES.get(name) or _DTYPES.get(name)
        data = self._storages(str(pid[2]))  # type: ignore[operator]
        if dtype is None:
            return _opaque("storage." + name)(bytes(data))
        return Storage(dtype, data)


def _encode(text: object, *_: object) -> object:
    return text.encode("latin-1", "replace") if isinstance(text, str) else text


def _mapped(path: str) -> "memoryview":
    with open(path, "rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _member(data: "memoryview", archive: "zipfile.ZipFile", info: "zipfile.ZipInfo") -> "memoryview":
    """What is in a zip, without a copy where it is stored as it is."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        return memoryview(archive.read(info))
    head = bytes(data[info.header_offset : info.header_offset + 30])
    if len(head) < 30 or head[:4] != b"PK\x03\x04":
        raise UnreadableError("has a damaged member")
    name, extra = struct.unpack("<HH", head[26:30])
    start = info.header_offset + 30 + name + extra
    if start + info.file_size > len(data):
        raise UnreadableError("is cut off")
    return data[start : start + info.file_size]


def read(path: str) -> object:
    """A file as dicts, lists, tensors and plain values. Raises whatever the bytes make it raise."""
    data = _mapped(path)
    start = bytes(data[:8])
    if path.endswith(".safetensors"):
        return _safetensors(data)
    if start[:6] == b"\x93NUMPY":
        return _npy(data)
    if start[:4] == b"PK\x03\x04":
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return _zip(data, archive)
    if path.endswith((".pkl", ".pickle")):
        with open(path, "rb") as file:
            return _Reader(file).load()
    return _older(path)


def _safetensors(data: "memoryview") -> object:
    if len(data) < 8:
        raise UnreadableError("is cut off")
    (size,) = struct.unpack("<Q", data[:8])
    if size > min(_HEADER, len(data) - 8):
        raise UnreadableError("has a header that is longer than the file")
    header = json.loads(bytes(data[8 : 8 + size]).decode("utf-8"))
    made = {}  # type: dict[str, object]
    for name, one in header.items():
        if name == "__metadata__":
            made[name] = one
            continue
        begin, end = one["data_offsets"]
        if not 0 <= begin <= end <= len(data) - 8 - size:
            raise UnreadableError("has a tensor outside of the file")
        # Kinds that are not known here are compared as bytes.
        known = one["dtype"] in _KINDS
        part = data[8 + size + begin : 8 + size + end]
        if known and math.prod(one["shape"]) * _KINDS[one["dtype"]][0] != end - begin:
            raise UnreadableError("has a tensor of another size than its shape")
        made[name] = Tensor(one["dtype"] if known else "U8", tuple(one["shape"]) if known else (end - begin,), part)
    return made


def _npy(data: "memoryview") -> object:
    version = data[6]
    width = 2 if version == 1 else 4
    (size,) = struct.unpack("<H" if width == 2 else "<I", data[8 : 8 + width])
    header = ast.literal_eval(bytes(data[8 + width : 8 + width + size]).decode("utf-8" if version > 2 else "latin-1"))
    body = data[8 + width + size :]
    code = header["descr"]
    found = _numpy(code, tuple(header["shape"]), bool(header["fortran_order"]), body) if isinstance(code, str) else None
    if found is not None:
        return found
    if isinstance(code, str) and code.lstrip("<>|=") == "O":
        import io

        return _Reader(io.BytesIO(bytes(body))).load()
    return {"descr": repr(code), "shape": tuple(header["shape"]), "bytes": Tensor("U8", (len(body),), body)}


def _zip(data: "memoryview", archive: "zipfile.ZipFile") -> object:
    members = {info.filename: info for info in archive.infolist()}
    pickled = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickled) == 1 and not any(name.endswith("/constants.pkl") for name in members):
        import io

        top = pickled[0].partition("/")[0]
        if top + "/byteorder" in members and bytes(_member(data, archive, members[top + "/byteorder"])) != b"little":
            raise UnreadableError("was written on a big-endian machine")

        def storage(key: str) -> "memoryview":
            name = "%s/data/%s" % (top, key)
            if name not in members:
                raise UnreadableError("lacks the storage %s" % key)
            return _member(data, archive, members[name])

        return _Reader(io.BytesIO(bytes(_member(data, archive, members[pickled[0]]))), storage).load()
    made = {}  # type: dict[str, object]
    for name, info in members.items():
        part = _member(data, archive, info)
        if bytes(part[:6]) == b"\x93NUMPY":
            made[name[:-4] if name.endswith(".npy") else name] = _npy(part)
        else:  # TorchScript, a joined archive: each member by its bytes; the first folder is named after the file
            made["/" + name.partition("/")[2] if "/" in name else name] = Tensor("U8", (len(part),), part)
    return made


def _older(path: str) -> object:
    """What torch.save wrote before its zip format. Needs torch; it loads tensors and plain values alone."""
    try:
        torch = __import__("torch")
    except ImportError:
        raise UnreadableError("is of no format that is read here") from None
    return _of_torch(torch, torch.load(path, map_location="cpu", weights_only=True), 0)


def _of_torch(torch: Any, one: object, depth: int) -> object:
    if depth > _DEEPEST:
        raise UnreadableError("is nested too deep")
    if isinstance(one, torch.Tensor):
        import ctypes

        plain = one.detach().resolve_conj().resolve_neg().contiguous()
        dtype = _DTYPES.get(str(plain.dtype).rpartition(".")[2])
        count = plain.numel() * plain.element_size()
        data = memoryview(ctypes.string_at(plain.data_ptr(), count) if count else b"")
        return Tensor(dtype or "U8", tuple(plain.shape) if dtype else (count,), data)
    if isinstance(one, dict):
        return {key: _of_torch(torch, value, depth + 1) for key, value in one.items()}
    if isinstance(one, (list, tuple)):
        return [_of_torch(torch, value, depth + 1) for value in one]
    return one


def flat(root: object) -> "tuple[dict[str, Tensor], dict[str, object]]":
    """(tensors, values) by dotted name. A value is a number, or text that says what it is."""
    tensors = {}  # type: dict[str, Tensor]
    values = {}  # type: dict[str, object]
    above = set()  # type: set[int]
    left = [_LEAVES]

    def put(name: str, value: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise UnreadableError("has more values than are looked at")
        while name in values or name in tensors:
            name += "'"
        if isinstance(value, Tensor):
            tensors[name] = value
        else:
            values[name] = value

    def visit(name: str, one: object, depth: int) -> None:
        if depth > _DEEPEST:
            raise UnreadableError("is nested too deep")
        if isinstance(one, _Array):
            found = _array_of(one)
            one = one if found is None else found
        if isinstance(one, Storage):
            one = Tensor(one.dtype, (len(one.data) // _KINDS[one.dtype][0],), one.data)
        if isinstance(one, Tensor) or one is None or isinstance(one, (bool, int, float, str)):
            put(name, one if isinstance(one, (Tensor, bool, int, float, str)) else "None")
            return
        if isinstance(one, (bytes, bytearray, memoryview)):
            data = memoryview(bytes(one))
            put(name, Tensor("U8", (len(data),), data))
            return
        if isinstance(one, (complex, range, slice)) or one is Ellipsis:
            put(name, repr(one))
            return
        if isinstance(one, type):
            put(name, "class " + getattr(one, "name", one.__name__))
            return
        if callable(one) and not isinstance(one, Opaque):
            put(name, "function " + getattr(one, "__name__", "?"))
            return
        if id(one) in above:
            put(name, "(itself)")
            return
        above.add(id(one))
        below = name + "." if name else ""
        if isinstance(one, dict):
            if not one:
                put(name, "{}")
            for key, value in one.items():
                visit(below + _key(key), value, depth + 1)
        elif isinstance(one, (list, tuple)):
            if not one:
                put(name, "[]")
            for number, value in enumerate(one):
                visit(below + str(number), value, depth + 1)
        elif isinstance(one, (set, frozenset)):
            put(name, "{%s}" % ", ".join(sorted(_key(value) for value in one)))
        elif isinstance(one, Opaque):
            put(name + "()", one.name)
            count = {}  # type: dict[str, int]
            for kind, value in one.__dict__["parts"]:
                if kind == "item":
                    visit(below + _key(value[0]), value[1], depth + 1)
                elif kind == "state" and isinstance(value, dict):
                    for key in value:
                        visit(below + _key(key), value[key], depth + 1)
                else:
                    number = count.get(kind, 0)
                    count[kind] = number + 1
                    visit(below + "%s%s" % (kind, number or ""), value, depth + 1)
        else:
            put(name, "%s object" % type(one).__name__)
        above.discard(id(one))

    visit("", root, 0)
    return tensors, values


def _key(one: object) -> str:
    if isinstance(one, str):
        return one
    if isinstance(one, tuple):
        return "(%s)" % ", ".join(_key(value) for value in one)
    if isinstance(one, (bool, int, float, bytes)) or one is None:
        return repr(one)
    return getattr(one, "name", type(one).__name__) + "()" if isinstance(one, (Opaque, type)) else type(one).__name__


def _small_floats(exponent: int, mantissa: int) -> "list[float]":
    """The 256 values of an 8-bit float (OCP FP8: E4M3 without infinities, E5M2 as IEEE)."""
    bias = (1 << (exponent - 1)) - 1
    made = []
    for code in range(256):
        sign = -1.0 if code & 128 else 1.0
        high, low = (code & 127) >> mantissa, code & ((1 << mantissa) - 1)
        if mantissa == 3 and code & 127 == 127:
            made.append(math.nan)
        elif mantissa == 2 and high == 31:
            made.append(math.nan if low else sign * math.inf)
        elif high:
            made.append(sign * (1 + low / (1 << mantissa)) * 2.0 ** (high - bias))
        else:
            made.append(sign * low / (1 << mantissa) * 2.0 ** (1 - bias))
    return made


def _floats(dtype: str, data: bytes) -> "list[float]":
    """Elements as numbers."""
    width, kind = _KINDS[dtype]
    if kind == "b":
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    if kind in ("e4", "e5"):
        table = _small_floats(4, 3) if kind == "e4" else _small_floats(5, 2)
        return [table[code] for code in data]
    code = {"f": {8: "d", 4: "f", 2: "e"}, "i": {8: "q", 4: "i", 2: "h", 1: "b"}, "u": {8: "Q", 4: "I", 2: "H", 1: "B"}}
    return list(struct.unpack("<%d%s" % (len(data) // width, "B" if kind == "?" else code[kind][width]), data))


def _ordered(width: int, data: bytes) -> "list[int]":
    """Floats as integers in the order of their values, neighbours next to each other; both zeros are 0."""
    code = {8: "q", 4: "i", 2: "h", 1: "b"}[width]
    least = -(1 << (8 * width - 1))
    return [one if one >= 0 else least - one for one in struct.unpack("<%d%s" % (len(data) // width, code), data)]


class _Sum:
    """What two tensors of one shape have of differences, gathered in pieces."""

    def __init__(self) -> None:
        self.differing = 0
        self.first = -1
        self.ulp = 0
        self.absolute = 0.0
        self.diff2 = 0.0
        self.left2 = 0.0
        self.specials = 0
        """Elements of which one alone is no number, or infinite."""

    def plain(self, dtype: str, at: int, left: bytes, right: bytes) -> None:
        """A piece, `at` elements from the beginning, without NumPy."""
        width, kind = _KINDS[dtype]
        floating = kind in ("f", "b", "e4", "e5")
        ones, others = _floats(dtype, left), _floats(dtype, right)
        places = _ordered(width, left), _ordered(width, right) if floating else []
        for number, (one, other) in enumerate(zip(ones, others)):  # noqa: B905
            if math.isfinite(one):
                self.left2 += float(one) * float(one)
            if left[number * width : (number + 1) * width] == right[number * width : (number + 1) * width]:
                continue
            self.differing += 1
            if self.first < 0:
                self.first = at + number
            if not (math.isfinite(one) and math.isfinite(other)):
                self.specials += 0 if one == other or (one != one and other != other) else 1
                continue
            away = abs(float(one) - float(other)) if floating else float(abs(int(one) - int(other)))
            self.absolute = max(self.absolute, away)
            self.diff2 += away * away
            if floating:
                self.ulp = max(self.ulp, abs(places[0][number] - places[1][number]))

    def fast(self, numpy: Any, dtype: str, at: int, left: "memoryview", right: "memoryview") -> None:
        """As `plain`, with NumPy."""
        width, kind = _KINDS[dtype]
        bits = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}[width]
        raw, other_raw = (numpy.frombuffer(one, bits) for one in (left, right))
        unequal = raw != other_raw
        count = int(unequal.sum())
        floating = kind in ("f", "b", "e4", "e5")
        if kind == "b":
            ones, others = ((one.astype("<u4") << 16).view("<f4") for one in (raw, other_raw))
        elif kind in ("e4", "e5"):
            table = numpy.array(_small_floats(4, 3) if kind == "e4" else _small_floats(5, 2))
            ones, others = table[raw], table[other_raw]
        elif kind == "?":
            ones, others = raw, other_raw
        else:
            ones, others = raw.view("<%s%d" % (kind, width)), other_raw.view("<%s%d" % (kind, width))
        with numpy.errstate(all="ignore"):
            values = ones.astype("f8")
            finite = numpy.isfinite(values)
            self.left2 += float((values[finite] ** 2).sum())
            if not count:
                return
            self.differing += count
            if self.first < 0:
                self.first = at + int(unequal.argmax())
            values, other_values = values[unequal], others[unequal].astype("f8")
            both = numpy.isfinite(values) & numpy.isfinite(other_values)
            same = (values == other_values) | (numpy.isnan(values) & numpy.isnan(other_values))
            self.specials += int((~both & ~same).sum())
            if not both.any():
                return
            away = abs(values[both] - other_values[both])
            self.absolute = max(self.absolute, float(away.max()))
            self.diff2 += float((away**2).sum())
            if floating:
                signed = "<i%d" % width
                places = []
                for one in (raw, other_raw):
                    whole = one[unequal][both].view(signed).astype("i8")
                    least = -(1 << (8 * width - 1))
                    places.append(numpy.where(whole >= 0, whole, least - whole))
                high = numpy.maximum(places[0], places[1])
                low = numpy.minimum(places[0], places[1])
                # As unsigned numbers: the distance of two 64-bit floats may not fit a signed one.
                self.ulp = max(self.ulp, int((high.view("u8") - low.view("u8")).max()))


def _numpy_module() -> Any:
    try:
        return __import__("numpy")
    except Exception:
        return None


def differences(name: str, left: Tensor, right: Tensor, numpy: Any) -> "dict[str, Any] | None":
    """What differs between two tensors of one name; None where nothing does, bit for bit."""
    made = {"name": name, "dtype": left.dtype, "shape": list(left.shape)}  # type: dict[str, Any]
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        made.update(now_dtype=right.dtype, now_shape=list(right.shape))
        return made
    if left.data == right.data:
        return None
    dtype = left.dtype
    if _KINDS[dtype][1] == "c":
        dtype = "F32" if dtype == "C64" else "F64"
    width = _KINDS[dtype][0]
    parts = _KINDS[left.dtype][0] // width
    found = _Sum()
    size = _CHUNK * width
    for at in range(0, len(left.data), size):
        one, other = left.data[at : at + size], right.data[at : at + size]
        if numpy is not None:
            found.fast(numpy, dtype, at // width, one, other)
        else:
            found.plain(dtype, at // width, bytes(one), bytes(other))
    made.update(
        count=len(left.data) // width // parts,
        differing=found.differing,
        at=_place(found.first // parts, left.shape),
        ulp=found.ulp if _KINDS[dtype][1] in ("f", "b", "e4", "e5") else -1,
        absolute=found.absolute,
        diff2=_finite(found.diff2),
        left2=_finite(found.left2),
        specials=found.specials,
    )
    return made


def _relative(one: "dict[str, Any]") -> float:
    """L2 norm of the difference over that of the left side."""
    if "now_dtype" in one or one["specials"]:
        return math.inf
    if not one["left2"]:
        return math.inf if one["diff2"] else 0.0
    return math.sqrt(one["diff2"] / one["left2"])


def _finite(one: float) -> float:
    return one if math.isfinite(one) else sys.float_info.max


def _place(number: int, shape: "tuple[int, ...]") -> "list[int]":
    made = []
    for size in reversed(shape):
        made.append(number % size)
        number //= size
    return made[::-1]


def _paired(before: "dict[str, Any]", now: "dict[str, Any]", masks: "list[tuple[Any, str]]") -> "list[list[str]]":
    """Give names of `now` that only it has the names of `before` that they equal once masked, where one alone does. Returns them."""

    def plain(names: "list[str]") -> "dict[str, str]":
        found = {}  # type: dict[str, list[str]]
        for name in names:
            masked = name
            for pattern, replacement in masks:
                masked = pattern.sub(replacement, masked)
            found.setdefault(masked, []).append(name)
        return {masked: each[0] for masked, each in found.items() if len(each) == 1}

    if not masks:
        return []
    ones = plain([name for name in before if name not in now])
    others = plain([name for name in now if name not in before])
    renamed = []
    for masked, name in ones.items():
        if masked in others:
            now[name] = now.pop(others[masked])
            renamed.append([name, others[masked]])
    return renamed


def compare(left: str, right: str, numpy: Any, masks: "list[Any]" = []) -> "dict[str, object]":  # noqa: B006
    """Two files:

    problem      why they could not be compared; nothing else then
    tensors      how many there are on the left
    different    those that differ, the 100 that differ most: see `differences`; all of them are in `unequal`
    odd          of these, tensors that hold no floats, have another shape or kind, or a value that is no number on one side alone
    far          of the others, those whose relative L2 distance is over 0.01
    diff2/left2  of the others, sums of squares: of the differences, of the left side
    missing/new  names of tensors on one side only, at most 100; all of them are in `gone` and `come`
    values       how many other values there are on the left
    others       [name, left, right] of values that differ, at most 100, null for none; all of them are in `other`
    renamed      [left, right], at most 100: names that are the same once masked
    """
    try:
        before, now = flat(read(left)), flat(read(right))
        patterns = [(re.compile(pattern, flags), replacement) for pattern, flags, replacement in masks]
        renamed = [row for place in (0, 1) for row in _paired(before[place], now[place], patterns)]
        unequal = []
        for name, one in before[0].items():
            if name in now[0]:
                found = differences(name, one, now[0][name], numpy)
                if found is not None:
                    unequal.append(found)
    except Exception as error:
        return {
            "problem": ("%s: %s" % (type(error).__name__, error))[:_TEXT]
            if not isinstance(error, UnreadableError)
            else str(error)
        }
    floats = [one for one in unequal if one.get("ulp", -1) >= 0 and not one["specials"]]
    worst = sorted(range(len(unequal)), key=lambda number: -_relative(unequal[number]))[:_NAMED]
    missing = [name for name in before[0] if name not in now[0]]
    new = [name for name in now[0] if name not in before[0]]
    others = []
    for name in list(before[1]) + [name for name in now[1] if name not in before[1]]:
        was, value = before[1].get(name), now[1].get(name)
        if type(was) is not type(value) or _said(was) != _said(value):
            others.append([name, _said(was), _said(value)])
    return {
        "problem": "",
        "tensors": len(before[0]),
        "different": [unequal[number] for number in sorted(worst)],
        "unequal": len(unequal),
        "odd": len(unequal) - len(floats),
        "far": sum(_relative(one) > _FAR for one in floats),
        "diff2": _finite(sum(one["diff2"] for one in floats)),
        "left2": _finite(sum(one["left2"] for one in floats)),
        "missing": missing[:_NAMED],
        "gone": len(missing),
        "new": new[:_NAMED],
        "come": len(new),
        "values": len(before[1]),
        "others": [[_cut(text) for text in row] for row in others[:_NAMED]],
        "other": len(others),
        "renamed": [[_cut(text) for text in row] for row in renamed[:_NAMED]],
    }


def _said(value: object) -> "str | None":
    """A value as text that no other value of its type has."""
    if value is None:
        return None
    return value if isinstance(value, str) else repr(value)


def _cut(text: "str | None") -> "str | None":
    if text is None:
        return None
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def main() -> None:
    signal.alarm(_LONGEST)
    with open(sys.argv[1], encoding="utf-8") as file:
        wanted = json.load(file)
    numpy = _numpy_module()
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        json.dump([compare(left, right, numpy, masks) for left, right, masks in wanted], out)


if __name__ == "__main__":
    main()
