"""Kinds of elements: how wide, how they are read, and what torch and NumPy call them.

Names are those of safetensors. A name that is not here is kept: such elements are compared byte by byte.
"""

# name -> (bytes of an element, kind); kinds: i, u integers; f, b floats of IEEE layout and bfloat16; c two of these;
# e4, e5, z4, z5, e8 floats of 8 bits (OCP FP8; those without a minus zero; a bare exponent); ? truth values
KINDS = {
    name: (int(width), kind)
    for name, width, kind in (
        one.split(":")
        for one in (
            "F64:8:f F32:4:f F16:2:f BF16:2:b F8_E4M3:1:e4 F8_E5M2:1:e5 F8_E4M3FNUZ:1:z4 F8_E5M2FNUZ:1:z5 F8_E8M0:1:e8 "
            "I64:8:i I32:4:i I16:2:i I8:1:i U64:8:u U32:4:u U16:2:u U8:1:u BOOL:1:? C32:4:c C64:8:c C128:16:c"
        ).split()
    )
}
FLOATS = ("f", "b", "e4", "e5", "z4", "z5", "e8")
PARTS = {"C32": "F16", "C64": "F32", "C128": "F64"}
"""A complex number is two of these."""


def _table(text: str) -> "dict[str, str]":
    """`a:b c:d` as a dict."""
    return {name: value for name, _, value in (one.partition(":") for one in text.split())}


STORAGES = _table(
    "DoubleStorage:F64 FloatStorage:F32 HalfStorage:F16 BFloat16Storage:BF16 LongStorage:I64 IntStorage:I32 "
    "ShortStorage:I16 CharStorage:I8 ByteStorage:U8 UntypedStorage:U8 BoolStorage:BOOL ComplexFloatStorage:C64 "
    "ComplexDoubleStorage:C128"
)
QUANTIZED = {"QInt8Storage": 1, "QUInt8Storage": 1, "QInt32Storage": 4, "QUInt4x2Storage": 1, "QUInt2x4Storage": 1}
"""torch's storages of quantized numbers -> bytes of an element."""
DTYPES = _table(
    "float64:F64 float32:F32 float16:F16 bfloat16:BF16 float8_e4m3fn:F8_E4M3 float8_e5m2:F8_E5M2 "
    "float8_e4m3fnuz:F8_E4M3FNUZ float8_e5m2fnuz:F8_E5M2FNUZ float8_e8m0fnu:F8_E8M0 int64:I64 "
    "int32:I32 int16:I16 int8:I8 uint64:U64 uint32:U32 uint16:U16 uint8:U8 bool:BOOL complex32:C32 complex64:C64 "
    "complex128:C128"
)
NUMPY = _table("f8:F64 f4:F32 f2:F16 i8:I64 i4:I32 i2:I16 i1:I8 u8:U64 u4:U32 u2:U16 u1:U8 b1:BOOL c8:C64 c16:C128")


def width(dtype: str) -> int:
    """Bytes of an element; 1 for a kind that is not known here."""
    return KINDS[dtype][0] if dtype in KINDS else 1
