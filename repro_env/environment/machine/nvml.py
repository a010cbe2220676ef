"""Facts about NVIDIA's GPUs from NVML, a library of the driver, through ctypes (https://docs.nvidia.com/deploy/nvml-api)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.text import Line

_LIBRARY = "libnvidia-ml.so.1"
_LONGEST = 96
"""NVML_DEVICE_NAME_V2_BUFFER_SIZE."""


class Gpu(Frozen, frozen=True):
    name: Line
    """`NVIDIA H100 80GB HBM3`."""
    capability: Line = ""
    """Compute capability, such as `9.0`; empty if unknown, and for GPUs of other manufacturers."""
    is_model: bool = True
    """Whether the name is that of the model. MIG devices are parts of one."""


class Nvidia(Frozen, frozen=True):
    driver: Line = ""
    """Version of the driver, such as `580.95.05`; empty without a driver."""
    gpus: tuple[Gpu, ...] = ()
    """In NVML's order, that of the PCI bus."""


def read(library: str = _LIBRARY) -> Nvidia:
    """Return the facts that NVML reports. They are empty without a driver, or if NVML does not start.

    `library`: name or path of NVML.
    """
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2() != 0:
            return Nvidia()
    except (OSError, AttributeError):
        return Nvidia()
    try:
        driver = ctypes.create_string_buffer(_LONGEST)
        failed = nvml.nvmlSystemGetDriverVersion(driver, _LONGEST)
        return Nvidia("" if failed else _text(driver), tuple(_devices(nvml)))
    finally:
        nvml.nvmlShutdown()


def _text(buffer: ctypes.Array[ctypes.c_char]) -> str:
    return redact.line(buffer.value.decode("utf-8", "replace"))


def _devices(nvml: ctypes.CDLL) -> Iterator[Gpu]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return
    for index in range(count.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_LONGEST)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or nvml.nvmlDeviceGetName(device, name, _LONGEST):
            yield Gpu("a GPU that NVML cannot read")
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        failed = nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
        yield Gpu(_text(name), "" if failed else f"{major.value}.{minor.value}")
