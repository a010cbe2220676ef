"""Packages and shared libraries that look like PyTorch's: small, and built by the machine's compiler."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.parts import need

LIBRARIES = {
    "libcudart-d0da41ae.so.11.0": "int cudart;",
    "libcublas.so.12": "int cublas;",
    "libcudnn.so.8": "int cudnn;",
    "libcudnn_ops_infer.so.8": "int ops;",
    "libcudnn_cnn_infer.so.8": "int cnn;",
    "libcudnn_ops.so.9": "int of_another_version;",
    "libnccl.so.2": "int nccl;",
    "libnvrtc.so.12": "int nvrtc;",
    "libnvrtc-builtins.so.12.4": "int builtins;",
    "libcuda.so.1": "int cuda;",
    "librocblas.so.4": "int rocblas;",
    "libmkl_rt.so.2": "int MKL_Get_Max_Threads(void) { return 7; }",
    "libmkl_avx2.so.2": "int avx2;",
    "libopenblasp-r0-39a31c03.2.18.so": 'const char *openblas_get_config(void) { return "OpenBLAS 0.2.18 NO_LAPACKE DYNAMIC_ARCH Zen"; } '
    "int openblas_get_num_threads(void) { return 3; }",
    "libgomp-a34b3233.so.1.0.0": "int omp_get_max_threads(void) { return 5; }",
    "libiomp5.so": "int omp_get_max_threads(void) { return 6; }",
    "libtorch_cpu.so": "int torch_cpu;",
    "libtorch_cuda.so": "int torch_cuda;",
    "libplain.so.1": "int plain;",
}
"""As real ones are named and as they answer, wheel builders' additions to names included."""

TORCH = """
import ctypes, os, sys, types
__version__ = "2.4.0+cu124"
HERE = os.path.join(os.path.dirname(__file__), "lib")
held = [ctypes.CDLL(os.path.join(HERE, name)) for name in sorted(os.listdir(HERE)) if name not in ("LATER",)]
class version:
    cuda = "12.4"
    hip = None
class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return "sm_80 sm_90 compute_90"
class __config__:
    @staticmethod
    def show():
        return "PyTorch built with:\\n  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product\\n  - Intel(R) MKL-DNN v3.4.2 (Git Hash x)\\n  - CPU capability usage: AVX2\\n"
    @staticmethod
    def parallel_info():
        return "mkl_get_max_threads() : 4\\n"
class Tensor:
    def mm(self, other):
        return self
def ones(*shape):
    return Tensor()
def get_num_threads():
    return int(os.environ.get("OMP_NUM_THREADS", 9))
def get_num_interop_threads():
    return 2
class backends:
    pass
class Properties:
    name, major, minor, multi_processor_count, total_memory = "NVIDIA H100 80GB HBM3", 9, 0, 132, 85520809984
    gcnArchName = name
class cuda:
    @staticmethod
    def is_available():
        return True
    @staticmethod
    def device_count():
        return 2
    @staticmethod
    def get_device_properties(index):
        if index:
            raise RuntimeError("CUDA error: out of memory")
        return Properties()
"""
"""A torch with what is asked of it, and no more: it loads each library next to it, and sees two GPUs of which one fails."""


def build(directory: Path, names: Iterable[str]) -> Path:
    """Shared libraries of these names."""
    need(shutil.which("gcc"), "no C compiler: apt-get install gcc")
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(_compiled(LIBRARIES[name]))
    return directory


@functools.cache
def _compiled(code: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory, "made.so")
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-o", made, "-"], input=code.encode(), check=True)
        return made.read_bytes()


def install(site: Path, names: Iterable[str], *, later: Iterable[str] = (), code: str = TORCH) -> Path:
    """`torch` in a site-packages directory, with these libraries; those of `later` are in the same directory and not loaded."""
    package = site / "torch"
    build(package / "lib", [*names, *later])
    (package / "__init__.py").write_text(code.replace('("LATER",)', repr(tuple(later))))
    return package


def plain(site: Path, name: str, code: str) -> Path:
    """A package of one file."""
    package = site / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    return package
