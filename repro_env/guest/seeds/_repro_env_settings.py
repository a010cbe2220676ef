"""Report the settings in effect when a process ends, and the rank of a process in a distributed training.

A report is {"settings": {name: value}, "rank", "script"}. `script`: whether the program is the user's own script. The first process
of each program of the user writes this report once, and so does each process of a distributed training. A rank is reported as
{"world": {"rank", "size", "backend", "device", ...}} (see `_repro_env_parallel`). No function starts the driver of a GPU.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
reports: Any = seeds.part("reports")

_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "BLIS_NUM_THREADS",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "LOKY_MAX_CPU_COUNT",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "TF_DETERMINISTIC_OPS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "XLA_FLAGS",
)
"""Variables that decide which code libraries use. Their values are not secret."""
_HELPERS = ("joblib.externals.loky.", "loky.", "multiprocessing.", "torch._inductor.")
"""The modules of helper programs that libraries start."""


class _State:
    is_noted = False
    world: Any = None
    """The last report of a rank."""
    world_pid = 0
    """The process that wrote it."""
    numeric_libraries: Any = None


def note_effective() -> None:
    """Write the report, unless this process is a helper, a worker or a forked child outside of a distributed training."""
    rank = next(filter(None, map(seeds.variable, seeds._RANKS)), "")
    if _State.world_pid == os.getpid():
        _note_world()
        rank = rank if _State.world is None else str(_State.world["rank"])
    elif os.getpid() != seeds._State.pid or seeds._State.worker or _is_helper():
        return
    if _State.is_noted:
        return
    _State.is_noted = True
    # A rank that multiprocessing started belongs to the script that started it.
    script = bool(seeds._State.worker) or _is_script()
    reports.report({"settings": dict(_facts()), "rank": rank, "script": script})


def _program() -> str:
    """The file of the program; empty for `-c`. At exit, the main module has lost its `__file__`."""
    path = getattr(getattr(sys.modules.get("__main__"), "__loader__", None), "path", None)
    return os.path.join(seeds._State.directory, path) if isinstance(path, str) else ""


def _is_helper() -> bool:
    """Whether this program is a helper that a library started."""
    name = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    if isinstance(name, str) and name.startswith(_HELPERS):
        return True
    if _program():
        return False
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return b"from multiprocessing." in file.read()
    except OSError:
        return False


def _is_script() -> bool:
    """Whether the program is the user's own file, and not an installed command, which may only launch other programs."""
    file = _program()
    installed = "/site-packages/" in file or "/dist-packages/" in file
    directories = (sys.prefix + "/bin/", sys.base_prefix + "/bin/", sys.base_prefix + "/lib/python")
    return bool(file) and not installed and not file.startswith(directories)


def _facts() -> Iterator[tuple[str, str]]:
    yield "address randomisation", _randomization()
    yield "hash seed", (seeds._HASH_SEED.lstrip("0") or seeds._HASH_SEED[:1] or "random") if sys.flags.hash_randomization else "0"
    yield "directory order", "not sorted" if seeds._MODE == "off" else seeds.part("listings").order()
    for name in _VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]
    yield "cores", str(seeds.cores())
    if "torch" in sys.modules or "numpy" in sys.modules:
        with seeds.Attempt("effective"):  # the other settings are reported anyway
            yield from _library_settings()


def _randomization() -> str:
    """Whether the kernel randomized the addresses of this process (personality(2), ADDR_NO_RANDOMIZE; proc(5))."""
    try:
        with open("/proc/self/personality", "rb") as file:
            if int(file.read(), 16) & 0x0040000:
                return "off"
        with open("/proc/sys/kernel/randomize_va_space", "rb") as file:
            return "on" if int(file.read()) else "off"
    except (OSError, ValueError):
        return "unknown"


def hook_distributed(distributed: Any) -> None:
    """Report the rank after the process has joined a process group."""
    from functools import wraps

    plain = distributed.init_process_group

    @wraps(plain)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        with seeds.Attempt("init_process_group"):
            _State.world, _State.world_pid = None, os.getpid()
            seeds.part("parallel").install(sys.modules["torch"])
            _note_world()
        return result

    distributed.init_process_group = init_process_group


def _note_world() -> None:
    """Report the rank. It is reported again at exit, because the script may choose its device after it joins."""
    torch: Any = sys.modules["torch"]
    distributed = sys.modules["torch.distributed.distributed_c10d"]
    if distributed.is_initialized():
        world = {
            "rank": int(distributed.get_rank()),
            "size": int(distributed.get_world_size()),
            "backend": str(distributed.get_backend()),
            "device": "cpu",
        }
    elif _State.world is not None:  # the process has left the group
        world = dict(_State.world)
    else:
        return
    world.update(seeds.part("parallel").facts())
    if uses_gpu(torch):
        world["device"] = device_name(torch, int(torch.cuda.current_device()))
    if world != _State.world:
        _State.world = world
        reports.report({"world": world})


def has_gpu_support(torch: Any) -> bool:
    """Whether this PyTorch was built for GPUs."""
    version = getattr(torch, "version", None)
    return bool(getattr(version, "cuda", None) or getattr(version, "hip", None))


def uses_gpu(torch: Any) -> bool:
    """Whether this process has initialized a GPU. If not, reading its name would start the driver."""
    return has_gpu_support(torch) and bool(torch.cuda.is_initialized())


def device_name(torch: Any, index: int) -> str:
    """The index and name of a GPU that is in use."""
    return f"cuda:{index} {torch.cuda.get_device_name(index)}"


def _library_settings() -> Iterator[tuple[str, str]]:
    """(name, value) of each setting."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    yield from _read(_LIBRARIES if numpy is None else (*_LIBRARIES, *_NUMPY), numpy)
    if torch is not None:
        yield from _read(_TORCH, torch)
        if has_gpu_support(torch):
            yield from _read(_CUDA, torch)
    inductor: Any = sys.modules.get("torch._inductor.config")
    if hasattr(inductor, "deterministic"):
        yield "torch inductor deterministic", str(inductor.deterministic)


def _read(getters: tuple[tuple[str, Callable[[Any], Any]], ...], module: Any) -> Iterator[tuple[str, str]]:
    """(name, value) of each setting that this version of the module has. If reading one fails, its value is "unknown"."""
    for name, getter in getters:
        try:
            value = getter(module)
        except AttributeError:
            continue
        except Exception as error:  # PyTorch raises if a script mixes its old and new names for precision
            value = f"unknown ({type(error).__name__})"
        if isinstance(value, dict):
            yield from value.items()
        elif value is not None:
            yield name, str(value)


def _library_threads(_: Any) -> dict[str, str]:
    """The number of threads of each loaded numeric library; several numbers if copies of a library differ."""
    libraries = _numeric_libraries()
    counts: dict[str, set[int]] = {}
    for path in libraries.mapped_libraries():
        count_threads = libraries.find_thread_counter(path)
        if count_threads is not None:
            counts.setdefault(libraries.name_of(path).partition(" ")[0], set()).add(int(count_threads()))
    return {f"threads {name}": ", ".join(map(str, sorted(counts[name]))) for name in counts}


def _numeric_libraries() -> Any:
    """The file `guest/numericlibraries.py`."""
    if _State.numeric_libraries is None:
        _State.numeric_libraries = seeds.load("_repro_env_numeric_libraries", f"{seeds._PACKAGE}/guest/numericlibraries.py")
    return _State.numeric_libraries


def _capability(torch: Any) -> str:
    return str(_numeric_libraries().cpu_capability(torch, torch.__config__.show()))


def _algorithms(torch: Any) -> str:
    if not torch._C._get_deterministic_algorithms():
        return "off"
    return "warn" if torch._C._get_deterministic_algorithms_warn_only() else "error"


def _devices(torch: Any) -> str | None:
    return ", ".join(device_name(torch, index) for index in range(torch.cuda.device_count())) if uses_gpu(torch) else None


def _cpu_features(_: Any) -> str:
    core: Any = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    return " ".join(name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name))


_LIBRARIES: tuple[tuple[str, Callable[[Any], Any]], ...] = (("threads of libraries", _library_threads),)
_NUMPY: tuple[tuple[str, Callable[[Any], Any]], ...] = (("numpy cpu features", _cpu_features),)
_TORCH: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("torch", lambda torch: torch.__version__),
    ("threads torch", lambda torch: torch.get_num_threads()),
    ("threads torch interop", lambda torch: torch.get_num_interop_threads()),
    ("torch cpu capability", _capability),
    ("torch default dtype", lambda torch: torch.get_default_dtype()),
    ("torch deterministic algorithms", _algorithms),
    ("torch fill uninitialized memory", lambda torch: torch._C._get_deterministic_fill_uninitialized_memory()),
    ("torch float32 matmul precision", lambda torch: torch.get_float32_matmul_precision()),
    ("torch mkldnn", lambda torch: torch._C._get_mkldnn_enabled()),
    ("torch mkldnn matmul fp32 precision", lambda torch: torch._C._get_fp32_precision_getter("mkldnn", "matmul")),
    ("torch mkldnn conv fp32 precision", lambda torch: torch._C._get_fp32_precision_getter("mkldnn", "conv")),
)
_CUDA: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("cuda", lambda torch: torch.version.cuda),
    ("hip", lambda torch: torch.version.hip),
    ("cuda devices", _devices),
    ("cudnn", lambda torch: torch._C._get_cudnn_enabled()),
    ("cudnn benchmark", lambda torch: torch._C._get_cudnn_benchmark()),
    ("cudnn deterministic", lambda torch: torch._C._get_cudnn_deterministic()),
    ("cudnn allow tf32", lambda torch: torch._C._get_cudnn_allow_tf32()),
    ("cublas allow tf32", lambda torch: torch._C._get_cublas_allow_tf32()),
    ("cublas fp16 reduced precision", lambda torch: _first(torch._C._get_cublas_allow_fp16_reduced_precision_reduction())),
    ("cublas bf16 reduced precision", lambda torch: _first(torch._C._get_cublas_allow_bf16_reduced_precision_reduction())),
    ("cublas fp16 accumulation", lambda torch: torch._C._get_cublas_allow_fp16_accumulation()),
    ("sdp flash", lambda torch: torch._C._get_flash_sdp_enabled()),
    ("sdp memory efficient", lambda torch: torch._C._get_mem_efficient_sdp_enabled()),
    ("sdp math", lambda torch: torch._C._get_math_sdp_enabled()),
    ("sdp cudnn", lambda torch: torch._C._get_cudnn_sdp_enabled()),
)


def _first(value: Any) -> Any:
    """The first item of a pair: newer versions return (reduced precision, split-k)."""
    return value[0] if isinstance(value, (tuple, list)) else value
