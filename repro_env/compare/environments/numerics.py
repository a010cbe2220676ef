"""The packages that do arithmetic. Another version of them can give other numbers for the same program and data."""

from __future__ import annotations

from repro_env.schema.patterns import lazy

_DISTRIBUTIONS = lazy(
    r"torch\w*|pytorch(?:-\w+)*|lightning|numpy|scipy|pandas|polars|numexpr|bottleneck|scikit-\w+|statsmodels"
    r"|xgboost|lightgbm|catboost|jax\w*|flax|optax|tensorflow(?:-\w+)*|tf-keras|keras|cupy(?:-\w+)*|numba|llvmlite"
    r"|triton(?:-\w+)*|pytorch-triton(?:-\w+)*|onnx\w*(?:-\w+)*|openvino|tensorrt(?:-\w+)*|transformer-engine(?:-\w+)*"
    r"|flash-attn\w*|xformers|bitsandbytes|apex|deepspeed|accelerate|transformers|tokenizers|diffusers|peft|timm|vllm|sentencepiece"
    r"|nvidia-\w+(?:-\w+)*|cuda-\w+(?:-\w+)*|cudatoolkit|cudnn|nccl|rocm(?:-\w+)*|mkl(?:[-_]\w+)*|intel-openmp|tbb|daal\w*|dpcpp\w*(?:-\w+)*"
    r"|opencv-\w+(?:-\w+)*|pillow"
)
_SYSTEM = lazy(
    r"(?:lib)?(?:c6|glibc|m6?|gomp\d*|gfortran\d*|quadmath\d*|iomp\w*|omp|openblas\S*|c?blas\S*|lapack\S*|atlas\S*|mkl\S*|blis\S*|fftw\S*"
    r"|stdc\+\+\d*|gcc-s1|cublas\S*|cudart\S*|cudnn\S*|nccl\S*|cufft\S*|curand\S*|cusolver\S*|cusparse\S*|nvrtc\S*|rocblas\S*|miopen\S*|openmpi\S*|mpich\S*)"
)
PATH_VARIABLES = frozenset({"PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "PYTHONUSERBASE"})
"""The variables of an image that hold paths. All other variables can change numbers (`environment.machine.variables`)."""


def distribution(name: str) -> bool:
    """Whether the distribution or conda package with this normalised name does arithmetic or decides how it is done."""
    return _DISTRIBUTIONS.fullmatch(name) is not None or _SYSTEM.fullmatch(name) is not None


def package(name: str) -> bool:
    """Whether a package of the operating system does arithmetic. The name may have an architecture (`libgomp1:amd64`)."""
    return _SYSTEM.fullmatch(name.partition(":")[0]) is not None
