"""Kinds of elements: how wide, how they are read, and what torch and NumPy call them.

Names are those of safetensors.
"""

# name -> (bytes of an element, kind); kinds: i, u integers; f, b floats of IEEE layout and bfloat16; e4, e5 of 8 bits;
# ? truth values; r raw bytes
KINDS = {
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


STORAGES = _table(
    "DoubleStorage:F64 FloatStorage:F32 HalfStorage:F16 BFloat16Storage:BF16 LongStorage:I64 IntStorage:I32 "
    "ShortStorage:I16 CharStorage:I8 ByteStorage:U8 UntypedStorage:U8 BoolStorage:BOOL ComplexFloatStorage:C64 "
    "ComplexDoubleStorage:C128"
)

DTYPES = _table(
    "float64:F64 float32:F32 float16:F16 bfloat16:BF16 float8_e4m3fn:F8_E4M3 float8_e5m2:F8_E5M2 int64:I64 "
    "int32:I32 int16:I16 int8:I8 uint64:U64 uint32:U32 uint16:U16 uint8:U8 bool:BOOL complex64:C64 complex128:C128"
)

NUMPY = _table("f8:F64 f4:F32 f2:F16 i8:I64 i4:I32 i2:I16 i1:I8 u8:U64 u4:U32 u2:U16 u1:U8 b1:BOOL c8:C64 c16:C128")
