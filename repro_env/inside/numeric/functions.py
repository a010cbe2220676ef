"""Functions of a library that is mapped already. The hooks of a run read it by itself: it needs no file beside it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RTLD_NOLOAD = getattr(os, "RTLD_NOLOAD", 4)


def openblas(function: str) -> tuple[str, ...]:
    """Builds for 64-bit integers and SciPy's own have other names for the same functions."""
    return tuple(before + function + after for before in ("", "scipy_") for after in ("", "64_", "_64", "64"))


THREADS = {
    "openmp": ("omp_get_max_threads",),
    "mkl rt": ("MKL_Get_Max_Threads",),
    "mkl intel_lp64": ("MKL_Get_Max_Threads",),
    "mkl intel_ilp64": ("MKL_Get_Max_Threads",),
    "mkl gf_lp64": ("MKL_Get_Max_Threads",),
    "openblas": openblas("openblas_get_num_threads"),
    "blis": ("bli_thread_get_num_threads",),
    "flexiblas": ("flexiblas_get_num_threads",),
}
"""Those that say how many threads a library takes, by the library's name; the first that it has."""


def opened(path: str) -> Any:
    import ctypes

    return ctypes.CDLL(path, mode=RTLD_NOLOAD | os.RTLD_LAZY)


def function_of(path: str, name: str) -> Any:
    try:
        return getattr(opened(path), name)
    except (OSError, AttributeError):
        return None
