"""Observations of the numeric libraries that a framework loads, and of the GPUs that it can use. They are not part of any identity.

A fact that cannot be determined is None or empty, and `unknown` gives the reason. No fact is guessed from package names.
"""

from __future__ import annotations

from repro_env.schema.codec import Frozen
from repro_env.schema.text import AbsPath, Digest, Line


class Library(Frozen, frozen=True, kw_only=True):
    """A numeric library that a framework loaded."""

    name: Line
    """`cudart`, `cublas`, `cublaslt`, `cudnn`, `nccl`, `cufft`, `cusolver`, `cusparse`, `mkl`, `openblas`, `rocblas` …"""
    build: Line = ""
    """OpenBLAS's configuration, with the chosen CPU type."""
    path: AbsPath
    """Resolved."""
    owner: Line = ""
    """As in `SharedLibrary`."""
    sha256: Digest | None = None
    """None for a driver library, and for a file that was not read."""


class Threads(Frozen, frozen=True, kw_only=True):
    """The default number of threads of a library."""

    library: Line
    """`torch`, `torch interop`, `openmp`, `mkl`, `openblas`, `blis`."""
    path: AbsPath | None = None
    """Of the library; None for the numbers that torch reports."""
    count: int


class Device(Frozen, frozen=True, kw_only=True):
    """A GPU that torch can use."""

    name: Line
    architecture: Line
    """`9.0`, or AMD's `gfx942:sramecc+:xnack-`."""
    units: int
    """Number of multiprocessors, on which the order of sums depends."""
    memory: int
    """Bytes."""


class Frameworks(Frozen, frozen=True, kw_only=True):
    """PyTorch and the numeric libraries that it uses."""

    problem: Line = ""
    """Why asking them failed, such as a crash or a timeout. Facts from before are kept."""
    torch: Line = ""
    """`torch.__version__`."""
    cpu_capability: Line = ""
    """`torch.backends.cpu.get_cpu_capability()`."""
    cuda: Line = ""
    """`torch.version.cuda`."""
    architectures: tuple[Line, ...] = ()
    """`torch.cuda.get_arch_list()`, such as `sm_90` and `compute_120` (PTX)."""
    devices: tuple[Device, ...] = ()
    """In torch's order."""
    libraries: tuple[Library, ...] = ()
    """Sorted by name, then path."""
    threads: tuple[Threads, ...] = ()
    """Sorted by library, then path."""
    unknown: tuple[Line, ...] = ()
    """`<what>: <why>`."""
