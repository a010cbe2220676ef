"""GPUs, and the numeric libraries as a framework really loads them: observations, never identity.

A fact that cannot be had is None or empty, and `unknown` says why. Nothing here is guessed from a package's name.
"""

from __future__ import annotations

from typing import Literal

from repro_env.model.codec import Frozen
from repro_env.model.text import AbsPath, Digest, Line

Vendor = Literal["nvidia", "amd"]

How = Literal["mapped", "static", "beside"]
"""`mapped`: a shared library of its own in the process. `static`: linked into the one at `path`. `beside`: not mapped yet; it
lies beside one that loads it on first use, as cuDNN and MKL load their parts."""


class Device(Frozen, frozen=True, kw_only=True):
    """One GPU, or one MIG instance of one."""

    index: int
    """Of the GPU among its vendor's, as the driver counts them."""
    instance: int | None = None
    """Of a MIG instance: which one of that GPU. None for the GPU itself."""
    vendor: Vendor
    name: Line
    architecture: Line
    """NVIDIA's compute capability (`9.0`), or AMD's `gfx942`; empty when unknown."""
    units: int | None
    """Streaming multiprocessors, or compute units: they decide how work is split, and so the order of sums."""
    memory: int | None
    """Bytes."""
    partition: Line
    """How the GPU is divided: MIG's `off`, `on` or an instance's profile (`1g.10gb`); AMD's `SPX/NPS1`; empty without such a thing."""
    ecc: bool | None
    uuid: Digest | None
    """sha256 of the device's UUID: tells two devices apart without naming either."""
    topology: tuple[Line, ...] = ()
    """How it reaches each GPU of its vendor, in their order: `self`, `nvlink x18`, `xgmi`, and over PCIe from near to far
    `internal`, `pix`, `pxb`, `phb`, `node`, `sys`; empty for a MIG instance and where there is one GPU."""
    unknown: tuple[Line, ...] = ()
    """`<what>: <why>` for each fact that the device did not give."""


class Accelerators(Frozen, frozen=True, kw_only=True):
    """The GPUs of a machine and the drivers that serve them."""

    devices: tuple[Device, ...] = ()
    """NVIDIA's first; by index, then instance."""
    driver: Line = ""
    """Version of NVIDIA's kernel driver; empty when there is none."""
    newest: Line = ""
    """The newest CUDA that NVIDIA's driver serves: `13.0`."""
    amdgpu: Line = ""
    """Version of AMD's kernel driver: `6.12.12`, or `of the kernel` where it is the kernel's own; empty when there is none."""
    rocm: Line = ""
    """Version of the ROCm under `/opt/rocm`; empty when there is none."""
    why: Line = ""
    """Why there is no device: no driver, library and driver do not match, no permission …; empty when there are devices."""
    unknown: tuple[Line, ...] = ()
    """`<what>: <why>` for what was not told of the whole machine, or of a device that does not answer at all."""


class Library(Frozen, frozen=True, kw_only=True):
    """A numeric library, as a process that imported a framework has it."""

    name: Line
    """`cudart`, `cublas`, `cublaslt`, `cudnn`, `nccl`, `cufft`, `cusolver`, `cusparse`, `nvrtc`, `mkl`, `openblas`, `rocblas` …"""
    version: Line
    """As the library itself says when asked; empty when it has no such function."""
    build: Line = ""
    """What more it says of itself: OpenBLAS names the kind of CPU whose code it chose."""
    how: How = "mapped"
    path: AbsPath
    """Of the file as it was mapped, symlinks resolved."""
    owner: Line = ""
    """As `environment.SharedLibrary.owner`."""
    sha256: Digest | None = None
    """None for a driver's, which is never captured, and where the file is not read."""


class Threads(Frozen, frozen=True, kw_only=True):
    """How many threads one library uses if the program does not say otherwise."""

    library: Line
    """`torch`, `torch interop`, `openmp`, `mkl`, `openblas`, `blis`."""
    path: AbsPath | None = None
    """Of the library that was asked: two OpenMP runtimes in one process are two. None for torch's own numbers."""
    count: int


class Seen(Frozen, frozen=True, kw_only=True):
    """One GPU as torch sees it, by the number that programs name it by."""

    name: Line
    architecture: Line
    """`9.0`, or AMD's `gfx942:sramecc+:xnack-`."""
    units: int
    memory: int
    """Bytes."""


class Frameworks(Frozen, frozen=True, kw_only=True):
    """What PyTorch (and the numeric libraries below it) are when they are really loaded, in a process of their own."""

    problem: Line = ""
    """What went wrong: crashed on import, took too long; facts from before are here all the same. Empty when nothing did."""
    torch: Line = ""
    """`torch.__version__`; empty when it is not installed or does not import."""
    torch_git: Line = ""
    cuda: Line = ""
    """`torch.version.cuda`: what it was built for."""
    hip: Line = ""
    arch: tuple[Line, ...] = ()
    """`sm_90`, `compute_90`, `gfx942` …: what it has code for."""
    cpu_capability: Line = ""
    """`torch.backends.cpu.get_cpu_capability()`: which code path this CPU gets."""
    devices: tuple[Seen, ...] = ()
    """GPUs that torch sees, in its order (`CUDA_VISIBLE_DEVICES` is obeyed)."""
    triton: Line = ""
    versions: tuple[Line, ...] = ()
    """`<name> <version>` of each other numeric package that was imported, or that lies there unimported."""
    needs_compiler: bool = False
    """Triton is installed, which calls a C compiler at run time, or `torch.compile`, which calls a C++ compiler."""
    libraries: tuple[Library, ...] = ()
    """Sorted by name, then path."""
    threads: tuple[Threads, ...] = ()
    """Sorted by library, then path."""
    unknown: tuple[Line, ...] = ()
    """`<what>: <why>`."""
