"""A step as a line of a trace, and what it reads of tensors: losses, rates, a few bytes as a screen, or all bytes as a sha256.

No tensor is changed. Standard library only, Python 3.8 and later.

Memory is read by its address, after checking that the storage is large enough. A tensor without bytes of its own (on `meta`,
sparse, with a freed storage, or a wrapper of other tensors) is not part of a screen, and has an empty digest.
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
"""The most tensors in a screen."""
_WINDOW = 512
"""Bytes of each tensor in a screen."""
_PIECE = 64 << 20
"""Bytes that are copied from a device in one piece."""


def local(tensor: Any) -> Any:
    """The local part of a distributed tensor: reading the complete tensor would need every rank."""
    part = getattr(tensor, "to_local", None)
    return tensor.detach() if part is None else part().detach()


def is_on_device(tensor: Any) -> bool:
    """Whether reading a tensor waits for a device."""
    return tensor is not None and tensor.device.type != "cpu"


def crc(tensor: Any, before: int) -> int:
    """CRC-32 of the bytes of a tensor, continued from `before`."""
    return crc32(_memory(tensor.data_ptr(), tensor.numel()), before)


class Line:
    """A step. Some of its values may still be on a device."""

    __slots__ = ("crc", "head", "losses", "on_device", "tail")

    def __init__(self, head: str, losses: list[Any] | None, tail: str) -> None:
        self.head = head
        self.losses = losses
        self.crc: int | None = None
        """The checksum of the tensors in memory."""
        self.on_device: list[Any] = []
        """The bytes of the screen that are still on devices."""
        self.tail = tail

    @property
    def is_pending(self) -> bool:
        """Whether reading its values waits for a device."""
        return bool(self.on_device) or any(map(is_on_device, self.losses or ()))

    def text(self) -> str:
        line = self.head
        if self.losses is not None:
            line += ', "loss": [%s]' % ", ".join(map(_value, self.losses))
        for screen in self.on_device:
            self.crc = crc(screen.cpu(), self.crc or 0)
        if self.crc is not None:
            line += ', "screen": "%08x"' % self.crc
        return line + self.tail + "}\n"


def loss(tensor: Any) -> Any:
    """The tensor if it is a single number, else None: the trace must not keep a large tensor alive."""
    if not hasattr(tensor, "detach"):
        return None  # a gradient edge
    part = local(tensor)
    return part if part.numel() == 1 and part.dtype.is_floating_point else None


def _value(loss: Any) -> str:
    try:
        return "null" if loss is None else number(loss.item())
    except (RuntimeError, TypeError, ValueError):  # a tensor without a value: on `meta`, or a wrapper of other tensors
        return "null"


def rate(value: Any) -> float | None:
    """A learning rate; None if reading it would wait for a device."""
    if hasattr(value, "numel") and value.numel() == 1 and not is_on_device(value):
        value = value.item()
    return float(value) if isinstance(value, (int, float)) else None


def number(value: float | None) -> str:
    """A number as JSON; NaN and infinity, which JSON lacks, as a string."""
    text = "null" if value is None else repr(float(value))
    return f'"{text}"' if text in ("nan", "inf", "-inf") else text


class Screen:
    """CRC-32 of 512 bytes from the middle of each of at most 64 tensors."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: list[tuple[Any, Any]] = []
        """For each tensor: (address, elements, dtype) if it is in memory, and its bytes. Used while the tensor has this address."""

    def read(self, params: list[Any]) -> tuple[int | None, list[Any]]:
        """The checksum of the tensors in memory (None if there are none), and the bytes that are still on devices."""
        count = min(len(params), _TENSORS)
        if len(self._windows) != count:
            self._windows = [(None, b"")] * count
        checksum = 0
        on_devices: dict[str, list[Any]] = {}
        for number, (key, window) in enumerate(self._windows):
            param = params[number * len(params) // count]
            if key is not None and type(param) in _PLAIN and key == (param.data_ptr(), param.numel(), param.dtype):
                checksum = crc32(window, checksum)
                continue
            bytes_, key = self._window(local(param), on_devices)
            self._windows[number] = (key if type(param) in _PLAIN else None, bytes_)
            checksum = crc32(bytes_, checksum)
        return (checksum if any(window for _, window in self._windows) else None), [
            torch.cat(on_devices[device]) for device in sorted(on_devices)
        ]

    @staticmethod
    def _window(tensor: Any, on_devices: dict[str, list[Any]]) -> tuple[Any, Any]:
        """(bytes, key) of a tensor in memory. The bytes of a tensor on a device are added to `on_devices`."""
        if not _has_bytes(tensor):
            return b"", None
        offset, size = _middle(tensor)
        if tensor.device.type == "cpu":
            return _memory(tensor.data_ptr() + offset, size), (tensor.data_ptr(), tensor.numel(), tensor.dtype)
        on_devices.setdefault(str(tensor.device), []).append(_view(tensor, offset, size))
        return b"", None


def weights(params: list[Any]) -> str:
    """The end of a line: a digest of all parameters, and 16 digits of the digest of each."""
    digests = [_digest(param) for param in params]
    total = sha256(b"".join(digests)).hexdigest() if all(digests) else ""
    short = ", ".join('"%s"' % digest.hex()[:16] for digest in digests)
    return f', "sha256": "{total}", "tensors": [{short}]'


def _digest(param: Any) -> bytes:
    """The sha256 of the dtype, shape and elements of a tensor; empty if it has no bytes to read."""
    tensor = local(param)
    if not _has_bytes(tensor):
        return b""
    hasher = sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    flat = tensor.contiguous().reshape(-1)
    step = max(1, _PIECE // flat.element_size())
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].cpu()
        hasher.update(_memory(piece.data_ptr(), piece.numel() * piece.element_size()))
    return hasher.digest()


def _has_bytes(tensor: Any) -> bool:
    """Whether the elements are in memory or on a device. Reading from an invalid address would crash the process."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False  # a wrapper of other tensors
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return False
    if tensor.numel() == 0:
        return True
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))  # noqa: B905
    return bool(tensor.data_ptr()) and (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _middle(tensor: Any) -> tuple[int, int]:
    """Offset from the first element, and size, of the bytes in the middle."""
    total = tensor.numel() * tensor.element_size()
    if not tensor.is_contiguous():  # its elements may have gaps, or share their bytes
        total = min(total, tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size())
    size = min(total, _WINDOW)
    return (total - size) // 2, size


def _view(tensor: Any, offset: int, size: int) -> Any:
    """Some bytes of a tensor, on its device."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset() * tensor.element_size() + offset, (size,))


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address) if size else b""
