"""The caller's environment variables, sorted into what may be written down.

An allow-list and no scanner: scanners miss most secrets in variables. Whatever is on no list is kept by name only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from repro_env.model import redact
from repro_env.model.environment import Variable, Variables

_NUMERIC = re.compile(
    r"OMP_\w+|GOMP_\w+|KMP_\w+|MKL_\w+|OPENBLAS_\w+|GOTO_NUM_THREADS|BLIS_\w+|NUMEXPR_\w+|VECLIB_\w+|NUMBA_\w+|ATEN_\w+|DNNL_\w+|ONEDNN_\w+"
    r"|NPY_DISABLE_CPU_FEATURES|NPY_PROMOTION_STATE|TORCH_\w+|PYTORCH_\w+|TORCHINDUCTOR_\w+|TF32\w*|NVIDIA_TF32_OVERRIDE|CUBLAS_\w+|CUBLASLT_\w+"
    r"|CUDNN_\w+|TF_\w+|XLA_\w+|JAX_\w+|PYTHONHASHSEED|PYTHONOPTIMIZE|PYTHONUTF8|PYTHONCOERCECLOCALE|PYTHONIOENCODING"
    r"|PYTHONWARNINGS|PYTHONNOUSERSITE|PYTHONSAFEPATH|PYTHONINTMAXSTRDIGITS|PYTHONMALLOC|MALLOC_ARENA_MAX|LANG|LANGUAGE|LC_\w+|TZ"
    r"|SOURCE_DATE_EPOCH|TOKENIZERS_PARALLELISM"
)
"""They change what a program computes or prints."""
_RECORDED = re.compile(
    r"PYTHON\w+|CUDA_\w+|NCCL_\w+|GLOO_\w+|UCX_\w+|NVIDIA_\w+|HIP_\w+|ROCR_\w+|HSA_\w+|GPU_DEVICE_ORDINAL|LD_LIBRARY_PATH|LD_PRELOAD|LD_AUDIT"
    r"|GLIBC_TUNABLES|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV|PATH|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|MASTER_ADDR"
    r"|MASTER_PORT|TORCHELASTIC_\w+|OMPI_COMM_WORLD_\w+|PMI_RANK|PMI_SIZE|SLURM_(?:NTASKS|NNODES|NPROCS|PROCID|LOCALID|NODEID|CPUS_PER_TASK"
    r"|CPUS_ON_NODE|GPUS|GPUS_ON_NODE|GPUS_PER_NODE|GPUS_PER_TASK|TASKS_PER_NODE|NTASKS_PER_NODE|MEM_PER_NODE|MEM_PER_CPU|JOB_PARTITION)"
)
"""Where a program ran and what it could reach: facts that must not be set again elsewhere."""
_PLACES = re.compile(
    r"TORCH_TRACE|XLA_CACHE\w*|TF_CONFIG|JAX_(?:COORDINATOR|PROCESS)\w*|CUDNN_(?:PATH|LOGDEST\w*)|\w+_(?:DIR|HOME|ROOT|FOLDER|FILE)"
)
"""On the first list by their prefix, but a path or a place all the same."""
_NEVER = re.compile(r"TOKEN|SECRET|PASS|KEY|CRED|AUTH|COOKIE|SESSION|PRIVATE", re.IGNORECASE)
_ALLOWED_THOUGH = frozenset({"TOKENIZERS_PARALLELISM", "NPY_DISABLE_CPU_FEATURES"})
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SHORT = 6
_PLAIN = re.compile(r"[/~.][^\s=:@]*|[\d.,:-]+|\s*")
_USERINFO = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


def sort(environ: Mapping[str, str]) -> Variables:
    """Sort variables by what may be done with them; each group sorted by name, values redacted.

    A value with control characters, of undecodable bytes, too long for a line or with a secret in it is not
    written down: its name alone is. Names that are no identifiers (`BASH_FUNC_x%%`) are left out.
    """
    replayed, recorded, named = [], [], []
    for name, value in sorted(environ.items()):
        if not _NAME.fullmatch(name):
            continue
        denied = _NEVER.search(name) is not None and name not in _ALLOWED_THOUGH
        numeric = _NUMERIC.fullmatch(name) is not None
        place = _PLACES.fullmatch(name) is not None if numeric else _RECORDED.fullmatch(name) is not None
        if not denied and numeric and not place and redact.line(value) == value:
            replayed.append(Variable(name=name, value=value))
        elif not denied and place and _is_line(value):
            recorded.append(Variable(name=name, value=redact.line(value)))
        else:
            named.append(name)
    return Variables(replayed=tuple(replayed), recorded=tuple(recorded), named=tuple(named))


def hidden(environ: Mapping[str, str]) -> frozenset[str]:
    """Values that free text must not repeat (what a program prints, an error): of all variables that are kept by name only.

    Paths, numbers and values of less than six characters are not secrets, and a text without them would say nothing.
    """
    kept = sort(environ)
    shown = {one.name for one in (*kept.replayed, *kept.recorded)}
    return _telling(value for name, value in environ.items() if name not in shown)


def secret(environ: Mapping[str, str]) -> frozenset[str]:
    """Values of the variables whose names say that they are secrets: no command line is written down with them."""
    return _telling(value for name, value in environ.items() if _NEVER.search(name) and name not in _ALLOWED_THOUGH)


def _telling(values: Iterable[str]) -> frozenset[str]:
    found = set()
    for value in values:
        found.add(value)
        found |= {match[1] for match in _USERINFO.finditer(value)}
    return frozenset(value for value in found if len(value) >= _SHORT and not _PLAIN.fullmatch(value))


def _is_line(value: str) -> bool:
    return len(value) <= redact.LONGEST and not _NOT_TEXT.search(value)
