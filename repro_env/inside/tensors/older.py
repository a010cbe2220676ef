"""What torch.save wrote before its zip format."""

from typing import Any

from .dtypes import DTYPES
from .tensor import Tensor
from .unreadable import UnreadableError

DEEPEST = 200


def older(path: str) -> object:
    """What torch.save wrote before its zip format. Needs torch; it loads tensors and plain values alone."""
    try:
        torch = __import__("torch")
    except ImportError:
        raise UnreadableError("is of no format that is read here") from None
    return _of_torch(torch, torch.load(path, map_location="cpu", weights_only=True), 0)


def _of_torch(torch: Any, one: object, depth: int) -> object:
    if depth > DEEPEST:
        raise UnreadableError("is nested too deep")
    if isinstance(one, torch.Tensor):
        import ctypes

        plain = one.detach().resolve_conj().resolve_neg().contiguous()
        dtype = DTYPES.get(str(plain.dtype).rpartition(".")[2])
        count = plain.numel() * plain.element_size()
        data = memoryview(ctypes.string_at(plain.data_ptr(), count) if count else b"")
        return Tensor(dtype or "U8", tuple(plain.shape) if dtype else (count,), data)
    if isinstance(one, dict):
        return {key: _of_torch(torch, value, depth + 1) for key, value in one.items()}
    if isinstance(one, (list, tuple)):
        return [_of_torch(torch, value, depth + 1) for value in one]
    return one
