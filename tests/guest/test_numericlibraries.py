"""The names of numeric libraries."""

from __future__ import annotations

import pytest

from repro_env.guest.numericlibraries import name_of


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/libcudart.so.13", "cudart"),
        ("/x/torch/lib/libcudart-d0da41ae.so.11.0", "cudart"),
        ("/x/libcublasLt.so.12.4.5.8", "cublaslt"),
        ("/x/libcudnn_engines_precompiled.so.9", "cudnn engines_precompiled"),
        ("/x/libnvrtc-builtins.so.13.2", "nvrtc builtins"),
        ("/x/libnvrtc-672ee683.so.11.2", "nvrtc"),
        ("/x/numpy.libs/libscipy_openblas64_-ff651d7f.so", "openblas"),
        ("/x/libopenblasp-r0-39a31c03.2.18.so", "openblas"),
        ("/x/libopenblas64_p-r0-742d56dc.3.20.so", "openblas"),
        ("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblasp-r0.3.21.so", "openblas"),
        ("/x/libgomp-a34b3233.so.1.0.0", "openmp"),
        ("/x/libiomp5.so", "openmp"),
        ("/conda/lib/libmkl_intel_thread.so.2", "mkl intel_thread"),
        ("/opt/rocm/lib/librocblas.so.4.4.60401", "rocblas"),
        ("/x/libMIOpen.so.1", "miopen"),
        ("/usr/lib/libcuda.so.580.159.04", "cuda driver"),
        ("/usr/lib/x86_64-linux-gnu/libblas.so.3.11.0", "blas"),
        ("/x/libtorch_cuda.so", ""),
        ("/x/libcublast.so.1", ""),
        ("/x/libopenssl.so", ""),
        ("/x/_multiarray_umath.cpython-311-x86_64-linux-gnu.so", ""),
    ],
)
def test_the_name_of_a_library_comes_from_its_file_name(path: str, name: str) -> None:
    assert name_of(path) == name
