"""Facts about NVIDIA's GPUs from NVML, a library of the driver."""

from __future__ import annotations

from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.text import Line


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


def read() -> Nvidia:
    """Return the facts that NVML reports. They are empty without a driver, or if NVML does not start."""
    import pynvml  # 8,000 lines, which only runs with GPUs need

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Nvidia()
    try:
        return Nvidia(redact.line(pynvml.nvmlSystemGetDriverVersion()), tuple(map(_gpu, range(pynvml.nvmlDeviceGetCount()))))
    except pynvml.NVMLError:
        return Nvidia()
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    import pynvml

    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = redact.line(pynvml.nvmlDeviceGetName(device))
    except pynvml.NVMLError:
        return Gpu("a GPU that NVML cannot read")
    try:
        return Gpu(name, "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(device)))
    except pynvml.NVMLError:
        return Gpu(name)
