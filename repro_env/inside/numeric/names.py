"""What a library is called here, by its file. The hooks of a run read it by itself: it needs no file beside it."""

from __future__ import annotations

import os
import re

NAMES = {
    "libcudart": "cudart",
    "libcublas": "cublas",
    "libcublasLt": "cublaslt",
    "libcudnn": "cudnn",
    "libnccl": "nccl",
    "libcufft": "cufft",
    "libcurand": "curand",
    "libcusolver": "cusolver",
    "libcusolverMg": "cusolvermg",
    "libcusparse": "cusparse",
    "libcusparseLt": "cusparselt",
    "libcudss": "cudss",
    "libcutensor": "cutensor",
    "libnvrtc": "nvrtc",
    "libnvrtc-builtins": "nvrtc builtins",
    "libnvJitLink": "nvjitlink",
    "libnvshmem_host": "nvshmem",
    "libcuda": "cuda driver",
    "libamdhip64": "hip",
    "librocblas": "rocblas",
    "libhipblas": "hipblas",
    "libhipblaslt": "hipblaslt",
    "libMIOpen": "miopen",
    "librccl": "rccl",
    "librocfft": "rocfft",
    "libhipfft": "hipfft",
    "librocsolver": "rocsolver",
    "libhipsolver": "hipsolver",
    "librocsparse": "rocsparse",
    "libhipsparse": "hipsparse",
    "libhipsparselt": "hipsparselt",
    "librocrand": "rocrand",
    "libhiprand": "hiprand",
    "libhiprtc": "hiprtc",
    "libmagma": "magma",
    "libgomp": "openmp",
    "libiomp5": "openmp",
    "libomp": "openmp",
    "libblis": "blis",
    "libblis-mt": "blis",
    "libflexiblas": "flexiblas",
    "libblas": "blas",
    "liblapack": "lapack",
    "libdnnl": "onednn",
    "libtbb": "tbb",
    "libarmpl_lp64_mp": "armpl",
    "libarm_compute": "acl",
}
"""By the file's name without what comes after `.so` and without what wheel builders add to it."""
FAMILIES = (("cudnn ", re.compile("libcudnn_(.+)")), ("mkl ", re.compile("libmkl_(.+)")))
OPENBLAS = re.compile(r"lib(?:scipy_)?openblas")
ADDED = re.compile(r"-[0-9a-f]{8}(?=-|\.|\Z)|-r\d+(?=-|\.|\Z)")
"""What auditwheel and OpenBLAS's own makefile put into a file's name."""


def name_of(path: str) -> str:
    """What this library is called here; empty for one that does not compute."""
    stem = ADDED.sub("", os.path.basename(path).partition(".so")[0])
    stem = re.sub(r"\.\d+(?:\.[\w]+)*\Z", "", stem)  # `libopenblasp.0.3.21`
    if OPENBLAS.match(stem):
        return "openblas"
    for prefix, pattern in FAMILIES:
        part = pattern.fullmatch(stem)
        if part:
            return prefix + part.group(1)
    return NAMES.get(stem, "")
