"""Observations of GPUs, and of the numeric libraries that a framework loads. They are not part of any identity.

A fact that cannot be determined is None or empty, and `unknown` gives the reason. No fact is guessed from package names.
"""

from __future__ import annotations

from typing import Literal

from repro_env.schema.codec import Frozen
from repro_env.schema.text import AbsPath, Digest, Line

Vendor = Literal["nvidia", "amd"]

How = Literal["mapped", "static", "beside"]
"""`mapped`: a shared library that the process has loaded. `static`: linked into the library at `path`. `beside`: not loaded yet,
but in the same directory as a library that loads it on first use, such as the parts of cuDNN and MKL."""


class Device(Frozen, frozen=True, kw_only=True):
    """A GPU, or a MIG instance of a GPU."""

    index: int
    """Index of the GPU, as counted by its vendor's driver."""
    instance: int | None = None
    """Index of a MIG instance of this GPU; None for the GPU itself."""
    vendor: Vendor
    name: Line
    architecture: Line
    """NVIDIA's compute capability (`9.0`), or AMD's `gfx942`; empty when unknown."""
    units: int | None = None
    """Number of streaming multiprocessors or compute units, as PyTorch reports it. It determines how work is split, and so the
    order of sums."""
    memory: int | None
    """Bytes."""
    partition: Line
    """How the GPU is partitioned: `off`, `on` or an instance's profile (`1g.10gb`) for MIG; `SPX/NPS1` for AMD; otherwise empty."""
    ecc: bool | None
    uuid: Digest | None
    """sha256 of the device's UUID. It distinguishes devices without recording the UUID itself."""
    unknown: tuple[Line, ...] = ()
    """`<what>: <why>` for each fact that the device did not report."""


class Accelerators(Frozen, frozen=True, kw_only=True):
    """The GPUs of a machine and their drivers."""

    devices: tuple[Device, ...] = ()
    """NVIDIA's devices first; sorted by index, then instance."""
    driver: Line = ""
    """Version of NVIDIA's kernel driver, or empty."""
    newest: Line = ""
    """The newest CUDA version that NVIDIA's driver supports, such as `13.0`."""
    amdgpu: Line = ""
    """Version of AMD's kernel driver, such as `6.12.12`; `of the kernel` for the kernel's built-in driver; or empty."""
    rocm: Line = ""
    """Version of the ROCm in `/opt/rocm`, or empty."""
    why: Line = ""
    """Why no device was found: no driver, library and driver do not match, no permission; empty if a device was found."""
    unknown: tuple[Line, ...] = ()
    """`<what>: <why>` for each fact that could not be read about the machine, or about a device that does not respond."""


class Library(Frozen, frozen=True, kw_only=True):
    """A numeric library in a process that imported a framework."""

    name: Line
    """`cudart`, `cublas`, `cublaslt`, `cudnn`, `nccl`, `cufft`, `cusolver`, `cusparse`, `mkl`, `openblas`, `rocblas` …"""
    version: Line
    """The version that the library itself reports (CUDA, its driver, cuDNN, NCCL, MKL, OpenBLAS); empty for other libraries."""
    build: Line = ""
    """More that the library reports: for OpenBLAS, the CPU type for which it chose its code."""
    how: How = "mapped"
    path: AbsPath
    """Path of the loaded file, symlinks resolved."""
    owner: Line = ""
    """See `environment.SharedLibrary.owner`."""
    sha256: Digest | None = None
    """None for a driver library, which is never captured, and for a file that was not read."""


class Threads(Frozen, frozen=True, kw_only=True):
    """The default number of threads of a library."""

    library: Line
    """`torch`, `torch interop`, `openmp`, `mkl`, `openblas`, `blis`."""
    path: AbsPath | None = None
    """Path of the library, because a process can have two OpenMP runtimes. None for the numbers that torch reports."""
    count: int


class VisibleDevice(Frozen, frozen=True, kw_only=True):
    """A GPU that is visible to torch, which numbers them in order."""

    name: Line
    architecture: Line
    """`9.0`, or AMD's `gfx942:sramecc+:xnack-`."""
    units: int
    memory: int
    """Bytes."""


class Frameworks(Frozen, frozen=True, kw_only=True):
    """PyTorch and the numeric libraries that it uses, as observed in a separate process that imports them."""

    problem: Line = ""
    """Why the process failed, such as a crash on import or a timeout; or empty. Facts from before the failure are kept."""
    torch: Line = ""
    """`torch.__version__`; empty if torch is not installed or cannot be imported."""
    torch_git: Line = ""
    cuda: Line = ""
    """`torch.version.cuda`: the CUDA version that torch was built for."""
    hip: Line = ""
    arch: tuple[Line, ...] = ()
    """The architectures that torch was compiled for: `sm_90`, `compute_90`, `gfx942` …"""
    cpu_capability: Line = ""
    """`torch.backends.cpu.get_cpu_capability()`: the code path that torch uses on this CPU."""
    devices: tuple[VisibleDevice, ...] = ()
    """GPUs in torch's order, which respects `CUDA_VISIBLE_DEVICES`."""
    triton: Line = ""
    versions: tuple[Line, ...] = ()
    """`<name> <version>` of each other numeric package that was imported or is installed."""
    needs_compiler: bool = False
    """Whether a compiler may be needed at run time: a C compiler for Triton, or a C++ compiler for `torch.compile`."""
    libraries: tuple[Library, ...] = ()
    """Sorted by name, then path."""
    threads: tuple[Threads, ...] = ()
    """Sorted by library, then path."""
    unknown: tuple[Line, ...] = ()
    """`<what>: <why>`."""
