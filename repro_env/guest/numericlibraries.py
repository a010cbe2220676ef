"""The numeric libraries that are mapped into this process: their names and numbers of threads.

`frameworks.py` and the hooks of a run load this file by its path, so it imports only the standard library. Libraries are
read through ctypes, and only if they are already mapped, so no further library is loaded.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PLAIN_NAMES = (
    "cudart cublas cublaslt cudnn nccl cufft curand cusolver cusparse nvrtc rocblas miopen rccl blis flexiblas blas lapack"
)
NAMES = {"lib" + name: name for name in _PLAIN_NAMES.split()}
NAMES.update({"libnvrtc-builtins": "nvrtc builtins", "libcuda": "cuda driver", "libamdhip64": "hip", "libblis-mt": "blis"})
NAMES.update(dict.fromkeys(("libgomp", "libiomp5", "libomp"), "openmp"))
"""Stem of the file name in lower case, without suffixes that wheel builders add -> name."""
FAMILIES = (("cudnn ", re.compile("libcudnn_(.+)")), ("mkl ", re.compile("libmkl_(.+)")))
OPENBLAS = re.compile(r"lib(?:scipy_)?openblas")
SUFFIX = re.compile(r"-[0-9a-f]{8}(?=-|\.|\Z)|-r\d+(?=-|\.|\Z)")
"""Suffixes that auditwheel and the makefile of OpenBLAS add to the name of a file."""


def name_of(path: str) -> str:
    """The name of a library; empty if it is not a known numeric library."""
    stem = SUFFIX.sub("", os.path.basename(path).partition(".so")[0])
    stem = re.sub(r"\.\d+(?:\.[\w]+)*\Z", "", stem)  # `libopenblasp.0.3.21`
    if OPENBLAS.match(stem):
        return "openblas"
    for prefix, pattern in FAMILIES:
        part = pattern.fullmatch(stem)
        if part:
            return prefix + part.group(1)
    return NAMES.get(stem.lower(), "")


def mapped_libraries() -> list[str]:
    """The sorted paths of the shared libraries that are mapped into this process."""
    paths = set()
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = line.rstrip(b"\n").split(None, 5)[5:]
            if path and path[0].startswith(b"/") and b".so" in os.path.basename(path[0]) and os.path.exists(path[0]):
                paths.add(os.fsdecode(path[0]))
    return sorted(paths)


PARTS = (
    (re.compile(r"libmkl_.*\.so(.*)"), "libmkl_"),
    (re.compile(r"libcudnn\.so(\.\d+)"), "libcudnn_"),
    (re.compile(r"libnvrtc\.so(\.\d+)"), "libnvrtc-builtins"),
)
"""(file name with its version, prefix of the libraries that it loads on first use)."""


def deferred_parts(path: str) -> list[str]:
    """The paths of the libraries that this library loads on first use: in the same directory, with the same version."""
    directory, file = os.path.split(path)
    for pattern, prefix in PARTS:
        match = pattern.match(file)
        if match:
            ending = ".so" + match.group(1)
            names = [name for name in os.listdir(directory) if name.startswith(prefix)]
            return [os.path.join(directory, name) for name in names if name.endswith(ending) or ending + "." in name]
    return []


def openblas(function: str) -> tuple[str, ...]:
    """The names of an OpenBLAS function in all builds: builds for 64-bit integers and those of SciPy rename the functions."""
    return tuple(prefix + function + suffix for prefix in ("", "scipy_") for suffix in ("", "64_", "_64", "64"))


THREADS = {
    "openmp": ("omp_get_max_threads",),
    **dict.fromkeys(("mkl rt", "mkl intel_lp64", "mkl intel_ilp64", "mkl gf_lp64"), ("MKL_Get_Max_Threads",)),
    "openblas": openblas("openblas_get_num_threads"),
    "blis": ("bli_thread_get_num_threads",),
    "flexiblas": ("flexiblas_get_num_threads",),
}
"""Name of a library -> functions that return its number of threads. The first one that the library has is called."""


def find_function(path: str, names: tuple[str, ...]) -> Any:
    """The first of these functions that a mapped library has, or None."""
    import ctypes

    for name in names:
        try:
            return getattr(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), name)
        except (OSError, AttributeError):  # noqa: PERF203
            continue
    return None


def find_thread_counter(path: str) -> Any:
    """The function of a mapped library that returns its number of threads, or None."""
    return find_function(path, THREADS.get(name_of(path), ()))


def openblas_config(path: str) -> str:
    """The configuration text of OpenBLAS, which names the CPU type whose code it chose."""
    import ctypes

    function = find_function(path, openblas("openblas_get_config"))
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return (function() or b"").decode("utf-8", "replace").strip()


def cpu_capability(torch: Any, config: str) -> str:
    """The instruction set that PyTorch uses. `config`: the text of `torch.__config__.show()`."""
    backend = getattr(torch.backends, "cpu", None)
    if backend is not None:
        return str(backend.get_cpu_capability())
    match = re.search(r"CPU capability usage: (.*)", config)
    return match.group(1).strip() if match else ""
