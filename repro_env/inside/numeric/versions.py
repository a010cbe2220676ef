"""How each library says its version."""

from __future__ import annotations

import re

from .calls import numbers, parts, returned, text_of, written
from .functions import openblas

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def dotted(number: int, *weights: int) -> str:
    """`dotted(92600, 10000, 100, 1)` is `9.26.0`."""
    found = []
    for weight in weights:
        found.append(str(number // weight))
        number %= weight
    return ".".join(found)


def dotted_list(found: list[int]) -> str:
    return ".".join(str(part) for part in found)


def cudnn_version(number: int) -> str:
    return dotted(number, 10000, 100, 1) if number >= 90000 else dotted(number, 1000, 100, 1)


def nccl_version(library: Any) -> str:
    (number,) = numbers(library, "ncclGetVersion")
    return dotted(number, 10000, 100, 1) if number >= 10000 else dotted(number, 1000, 100, 1)


def mkl_version(library: Any) -> str:
    said = written(library, "mkl_get_version_string", "c_int")
    found = re.search(r"Version (\d[\d.]*)", said)
    return found.group(1) if found else said


def openblas_version(library: Any) -> tuple[str, str]:
    for name in openblas("openblas_get_config"):
        if hasattr(library, name):
            said = (returned(library, name, "c_char_p") or b"").decode("utf-8", "replace").strip()
            found = re.match(r"OpenBLAS (\S+)", said)
            return (found.group(1) if found else "", said)
    return ("", "")


def flexiblas_version(library: Any) -> tuple[str, str]:
    return (dotted_list(numbers(library, "flexiblas_get_version", 3)), written(library, "flexiblas_current_backend"))


def onednn_version(library: Any) -> str:
    import ctypes

    class Version(ctypes.Structure):
        _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int)]

    library.dnnl_version.restype = ctypes.POINTER(Version)
    said = library.dnnl_version().contents
    return dotted_list([said.major, said.minor, said.patch])


VERSIONS: dict[str, Callable[[Any], Any]] = {
    "cudart": lambda library: dotted(numbers(library, "cudaRuntimeGetVersion")[0], 1000, 10),
    "cuda driver": lambda library: dotted(numbers(library, "cuDriverGetVersion")[0], 1000, 10),
    "cublas": lambda library: parts(library, "cublasGetProperty"),
    "cublaslt": lambda library: parts(library, "cublasLtGetProperty"),
    "cudnn": lambda library: cudnn_version(returned(library, "cudnnGetVersion")),
    "nccl": nccl_version,
    "rccl": nccl_version,
    "cufft": lambda library: parts(library, "cufftGetProperty"),
    "curand": lambda library: parts(library, "curandGetProperty"),
    "cusolver": lambda library: parts(library, "cusolverGetProperty"),
    "cusparse": lambda library: parts(library, "cusparseGetProperty"),
    "cusparselt": lambda library: parts(library, "cusparseLtGetProperty"),
    "cudss": lambda library: parts(library, "cudssGetProperty"),
    "nvrtc": lambda library: dotted_list(numbers(library, "nvrtcVersion", 2)),
    "nvjitlink": lambda library: dotted_list(numbers(library, "nvJitLinkVersion", 2, "c_uint")),
    "nvshmem": lambda library: dotted_list(numbers(library, "nvshmemx_vendor_get_version_info", 3)),
    "hip": lambda library: dotted(numbers(library, "hipRuntimeGetVersion")[0], 10000000, 100000, 1),
    "hiprtc": lambda library: dotted_list(numbers(library, "hiprtcVersion", 2)),
    "rocblas": lambda library: written(library, "rocblas_get_version_string"),
    "rocfft": lambda library: written(library, "rocfft_get_version_string"),
    "rocsolver": lambda library: written(library, "rocsolver_get_version_string"),
    "miopen": lambda library: dotted_list(numbers(library, "miopenGetVersion", 3, "c_size_t")),
    "mkl rt": mkl_version,
    "mkl intel_lp64": mkl_version,
    "mkl intel_ilp64": mkl_version,
    "mkl gf_lp64": mkl_version,
    "openblas": openblas_version,
    "flexiblas": flexiblas_version,
    "blis": lambda library: text_of(library, "bli_info_get_version_str"),
    "onednn": onednn_version,
    "tbb": lambda library: text_of(library, "TBB_runtime_version"),
}
"""How each library says its version: none of these functions needs a GPU or a handle."""
