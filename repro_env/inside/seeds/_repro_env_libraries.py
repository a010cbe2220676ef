"""Threads, flags and precisions of the numeric libraries that are loaded, as they say themselves."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, ClassVar

seeds: Any = __import__("_repro_env_seeds")
devices: Any = seeds.part("devices")


class _State:
    numeric: ClassVar[dict[str, Any]] = {}
    """Files of our own `inside/numeric`, by name, once they were needed."""


def said() -> Iterator[tuple[str, str]]:
    """(name, value) of each."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    yield from _told(_LIBRARIES if numpy is None else (*_LIBRARIES, *_NUMPY), numpy)
    if torch is not None:
        yield from _told(_TORCH, torch)
        if devices.built_in(torch):
            yield from _told(_CUDA, torch)
    inductor: Any = sys.modules.get("torch._inductor.config")
    if hasattr(inductor, "deterministic"):
        yield "torch inductor deterministic", str(inductor.deterministic)


def _told(questions: tuple[tuple[str, Callable[[Any], Any]], ...], whom: Any) -> Iterator[tuple[str, str]]:
    """Answers. Versions without such a setting are not asked; a setting that cannot be read is unknown, not left out."""
    for name, question in questions:
        try:
            answer = question(whom)
        except AttributeError:
            continue
        except Exception as error:  # as PyTorch does where a script mixes its old and new names for precision
            answer = f"unknown ({type(error).__name__})"
        if isinstance(answer, dict):
            yield from answer.items()
        elif answer is not None:
            yield name, str(answer)


def _library_threads(_: Any) -> dict[str, str]:
    """How many threads each numeric library takes that is loaded, as it says itself; by its file where there are several."""
    functions, names = _numeric("functions"), _numeric("names")
    found: dict[str, list[tuple[str, int]]] = {}
    for path in _numeric("mapped").mapped():
        name = names.name_of(path)
        for function in functions.THREADS.get(name, ()):
            ask = functions.function_of(path, function)
            if ask is not None:
                found.setdefault(name.partition(" ")[0], []).append((os.path.basename(path), int(ask())))
                break
    said = {}
    for name, each in found.items():
        if len({count for _, count in each}) == 1:
            said[f"threads {name}"] = str(each[0][1])
        else:
            said.update({f"threads {name} ({file})": str(count) for file, count in each})
    return said


def _numeric(name: str) -> Any:
    """One of the files with which capture asks, too, that need no other: their folder is no package here."""
    if name not in _State.numeric:
        _State.numeric[name] = seeds.load(f"_repro_env_numeric_{name}", f"{seeds._PACKAGE}/inside/numeric/{name}.py")
    return _State.numeric[name]


def _capability(torch: Any) -> str:
    return str(_numeric("instructions").capability(torch, torch.__config__.show()))


def _algorithms(torch: Any) -> str:
    if not torch._C._get_deterministic_algorithms():
        return "off"
    return "warn" if torch._C._get_deterministic_algorithms_warn_only() else "error"


def _devices(torch: Any) -> str | None:
    return ", ".join(devices.named(torch, index) for index in range(torch.cuda.device_count())) if devices.in_use(torch) else None


def _dispatched(_: Any) -> str:
    core: Any = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    return " ".join(name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name))


_LIBRARIES: tuple[tuple[str, Callable[[Any], Any]], ...] = (("threads of libraries", _library_threads),)
_NUMPY: tuple[tuple[str, Callable[[Any], Any]], ...] = (("numpy cpu features", _dispatched),)
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
    """Newer versions say (reduced precision, split-k)."""
    return value[0] if isinstance(value, (tuple, list)) else value
