"""What a trace reads of tensors: a few bytes of each as a screen, or all of them as sha256. Changes none. Python 3.8 and newer.

Memory is read by its address, and only where torch says that there are as many bytes. A tensor without bytes of its own (on
`meta`, sparse, its storage given back, a class that wraps others) is left out of a screen and has an empty digest.
"""

from __future__ import annotations

import ctypes
import sys
from hashlib import sha256
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as the interpreter's own start
    from typing import Any

torch: Any = sys.modules["torch"]
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_TENSORS = 64
"""In a screen."""
_WINDOW = 512
"""Bytes of each."""
_PIECE = 64 << 20
"""Bytes that are copied from a device at once."""


def local(tensor: Any) -> Any:
    """The part of a distributed tensor that is here: to ask for all of it, every rank would have to."""
    part = getattr(tensor, "to_local", None)
    return tensor.detach() if part is None else part().detach()


def is_away(tensor: Any) -> bool:
    """Whether reading it means to wait for a device."""
    return tensor is not None and tensor.device.type != "cpu"


def wait_for(params: list[Any]) -> None:
    """Until a device has done what it was asked for: reading from it would wait for that, which is no cost of ours."""
    if any(param.is_cuda for param in params):
        torch.cuda.synchronize()


def crc(tensor: Any, before: int) -> int:
    """CRC-32 of bytes that come from a device."""
    return crc32(_memory(tensor.data_ptr(), tensor.numel()), before)


class Screen:
    """CRC-32 of 512 bytes out of the middle of each of at most 64 tensors."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: list[tuple[Any, Any]] = []
        """(address, elements, type) of a tensor in memory; its bytes there. Used only while the tensor says that it is still there."""

    def read(self, params: list[Any]) -> tuple[int | None, list[Any]]:
        """Of what is in memory, None for nothing, and the bytes that are still on devices."""
        count = min(len(params), _TENSORS)
        if len(self._windows) != count:
            self._windows = [(None, b"")] * count
        found = 0
        there: dict[str, list[Any]] = {}
        for place, (key, window) in enumerate(self._windows):
            param = params[place * len(params) // count]
            if key is not None and type(param) in _PLAIN and key == (param.data_ptr(), param.numel(), param.dtype):
                found = crc32(window, found)
                continue
            bytes_, key = self._look(local(param), there)
            self._windows[place] = (key if type(param) in _PLAIN else None, bytes_)
            found = crc32(bytes_, found)
        return (found if any(window for _, window in self._windows) else None), [
            torch.cat(there[device]) for device in sorted(there)
        ]

    @staticmethod
    def _look(tensor: Any, there: dict[str, list[Any]]) -> tuple[Any, Any]:
        if not _has_bytes(tensor):
            return b"", None
        offset, size = _middle(tensor)
        if tensor.device.type == "cpu":
            return _memory(tensor.data_ptr() + offset, size), (tensor.data_ptr(), tensor.numel(), tensor.dtype)
        there.setdefault(str(tensor.device), []).append(_view(tensor, offset, size))
        return b"", None


def weights(params: list[Any]) -> str:
    """The end of a line: a digest of all parameters, and the beginnings of their own."""
    digests = [_digest(param) for param in params]
    whole = sha256(b"".join(digests)).hexdigest() if all(digests) else ""
    short = ", ".join('"%s"' % digest.hex()[:16] for digest in digests)
    return f', "sha256": "{whole}", "tensors": [{short}]'


def _digest(param: Any) -> bytes:
    """sha256 of a tensor's type, shape and elements; empty for one that has no bytes to read."""
    tensor = local(param)
    if not _has_bytes(tensor):
        return b""
    hasher = sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    flat = tensor.contiguous().reshape(-1)
    each = max(1, _PIECE // flat.element_size())
    for start in range(0, flat.numel(), each):
        piece = flat[start : start + each].cpu()
        hasher.update(_memory(piece.data_ptr(), piece.numel() * piece.element_size()))
    return hasher.digest()


def _has_bytes(tensor: Any) -> bool:
    """Whether its elements lie in memory, ours or a device's: an address that is none would end the process."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False  # a class that stands for other tensors
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return False
    if tensor.numel() == 0:
        return True
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))  # noqa: B905
    return bool(tensor.data_ptr()) and (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _middle(tensor: Any) -> tuple[int, int]:
    """Offset, from its first element, and size of the bytes to look at."""
    whole = tensor.numel() * tensor.element_size()
    if not tensor.is_contiguous():  # in its memory there may be more, or less, than its elements
        whole = min(whole, tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size())
    size = min(whole, _WINDOW)
    return (whole - size) // 2, size


def _view(tensor: Any, offset: int, size: int) -> Any:
    """Some bytes of a tensor on a device, where they are."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset() * tensor.element_size() + offset, (size,))


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address) if size else b""
