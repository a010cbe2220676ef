"""How functions of C libraries give numbers and texts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def numbers(library: Any, function: str, count: int = 1, kind: str = "c_int") -> list[int]:
    """What a function writes to as many integers as it is given."""
    import ctypes

    values = [getattr(ctypes, kind)() for _ in range(count)]
    code = getattr(library, function)(*[ctypes.byref(value) for value in values])
    if code:
        raise OSError("%s gives error %d" % (function, code))
    return [value.value for value in values]


def parts(library: Any, function: str) -> str:
    """Major, minor and patch from one of CUDA's `…GetProperty` functions."""
    import ctypes

    found = []
    for which in range(3):
        value = ctypes.c_int()
        code = getattr(library, function)(which, ctypes.byref(value))
        if code:
            raise OSError("%s gives error %d" % (function, code))
        found.append(str(value.value))
    return ".".join(found)


def returned(library: Any, function: str, kind: str = "c_size_t") -> Any:
    import ctypes

    call = getattr(library, function)
    call.restype = getattr(ctypes, kind)
    call.argtypes = []
    return call()


def written(library: Any, function: str, wide: str = "c_size_t") -> str:
    """What a function writes as text."""
    import ctypes

    buffer = ctypes.create_string_buffer(512)
    getattr(library, function)(buffer, getattr(ctypes, wide)(len(buffer)))
    return buffer.value.decode("utf-8", "replace").strip()


def text_of(library: Any, function: str) -> str:
    return str((returned(library, function, "c_char_p") or b"").decode("utf-8", "replace").strip())
