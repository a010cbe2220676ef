"""Observations of the numeric libraries that a framework loads, and of the GPUs that it can use. They are not part of any identity.

A fact that cannot be determined is None or empty, and `unknown` gives the reason. No fact is guessed from package names.
"""

from __future__ import annotations

from repro_env.schema.codec import Frozen
from repro_env.schema.text import AbsPath, Digest, Line


class Library(Frozen, frozen=True, kw_only=True):
    """A numeric library in a process that imported a framework. Its owner and its sha256 identify its version."""

    name: Line
    """`cudart`, `cublas`, `cublaslt`, `cudnn`, `nccl`, `cufft`, `cusolver`, `cusparse`, `mkl`, `openblas`, `rocblas` …"""
    build: Line = ""
    """OpenBLAS's configuration, with the CPU type for which it chose its code."""
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


class Device(Frozen, frozen=True, kw_only=True):
    """A GPU that torch can use."""

    name: Line
    architecture: Line
    """`9.0`, or AMD's `gfx942:sramecc+:xnack-`."""
    units: int
    """Number of multiprocessors. It determines how work is split, and so the order of sums."""
    memory: int
    """Bytes."""


class Frameworks(Frozen, frozen=True, kw_only=True):
    """PyTorch and the numeric libraries that it uses, as observed in a separate process that imports them."""

    problem: Line = ""
    """Why the process failed, such as a crash on import or a timeout; or empty. Facts from before the failure are kept."""
    torch: Line = ""
    """`torch.__version__`; empty if torch is not installed or cannot be imported."""
    cpu_capability: Line = ""
    """`torch.backends.cpu.get_cpu_capability()`: the code path that torch uses on this CPU."""
    cuda: Line = ""
    """`torch.version.cuda`: the version of CUDA that torch was built for; empty for other builds."""
    architectures: tuple[Line, ...] = ()
    """`torch.cuda.get_arch_list()`: what torch's kernels were compiled for, such as `sm_90` and `compute_120` (PTX)."""
    devices: tuple[Device, ...] = ()
    """GPUs in torch's order, which respects `CUDA_VISIBLE_DEVICES`."""
    libraries: tuple[Library, ...] = ()
    """Sorted by name, then path."""
    threads: tuple[Threads, ...] = ()
    """Sorted by library, then path."""
    unknown: tuple[Line, ...] = ()
    """`<what>: <why>`."""
