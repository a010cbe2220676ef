"""Checks of the GPUs that a run uses: model and count, the driver for the captured CUDA, and kernels for the devices.

PyTorch's kernels are compiled for some compute capabilities (`sm_80`), and may contain PTX (`compute_90`), which the driver compiles
for later devices. A driver older than the toolkit of the kernels runs them, but does not compile their PTX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from repro_env.compare.environments.machine import counted
from repro_env.compare.preflight.compatibility import (
    compatibility,
    family,
    forward,
    is_released,
    kind_of,
    runs_cubin,
    version,
    wheels_for,
)
from repro_env.compare.preflight.finding import Captured, Finding, Machine, Verdict, finding_of
from repro_env.environment.machine.nvml import Gpu
from repro_env.schema.patterns import lazy

_CODE = lazy(r"(sm|compute)_(\d+)(\d)([af]?)")
"""`sm_90a` runs on 9.0 only, `sm_100f` on the family of 10.0."""
_DRIVER = "GPU driver"


def check_gpus(captured: Captured, machine: Machine) -> Iterator[Finding]:
    """Yield the findings. Driver and kernels only matter if the run uses GPUs and the environment has a torch for CUDA."""
    yield _model(captured, machine)
    frameworks = captured.frameworks
    if not machine.gpus:
        return
    is_rocm = any(
        name.startswith("gfx") for name in (*frameworks.architectures, *(device.architecture for device in frameworks.devices))
    )
    has_cuda = bool(frameworks.devices) or any(library.name == "cudart" for library in frameworks.libraries)
    if frameworks.cuda:
        driver = _driver(captured, machine)
    elif is_rocm:
        result = finding_of(
            _DRIVER, f"ROCm, driver {captured.host.amdgpu or 'unknown'}", f"driver {machine.host.amdgpu or 'unknown'}"
        )
        driver = result("unknown", "", "repro-env has no facts about ROCm")
    elif has_cuda:
        why = "the spec does not name the version of CUDA, which is only recorded for torch"
        result = finding_of(_DRIVER, "CUDA of unknown version", f"driver {machine.host.nvidia or 'unknown'}")
        driver = result("unknown", "", why)
    else:
        return
    if driver.verdict in ("unknown", "numerics may differ") and _is_as_captured(captured, machine):
        driver = msgspec.structs.replace(driver, verdict="ok", why="the driver is that of the capture", fix="")
    yield driver
    if frameworks.cuda:
        yield from (_kernels(captured, machine, gpu) for gpu in dict.fromkeys(machine.gpus))


def _is_as_captured(captured: Captured, machine: Machine) -> bool:
    """Whether torch found the GPUs of the run at capture, with the same driver. Then this driver works, whatever the table has."""
    found = {device.name for device in captured.frameworks.devices}
    drivers = [(host.nvidia, host.amdgpu) for host in (captured.host, machine.host)]
    return drivers[0] == drivers[1] != ("", "") and all(gpu.name in found for gpu in machine.gpus)


def _model(captured: Captured, machine: Machine) -> Finding:
    names = tuple(gpu.name for gpu in machine.gpus)
    result = finding_of("GPUs", counted(captured.gpus), counted(names))
    if not all(gpu.is_model for gpu in machine.gpus):
        return result("unknown", "", "the model of a GPU or MIG device of the run is unknown")
    if Counter(names) == Counter(captured.gpus):
        return result("ok")
    if not names and machine.absence:
        return result("numerics may differ", "", f"the run has no GPU: {machine.absence}", "use a machine with the captured GPUs")
    if not names:
        return result("numerics may differ", "", "the run has no GPU, as requested", "use the captured GPUs (exec --gpus all)")
    is_count = set(names) == set(captured.gpus)
    why = "another number of GPUs changes the order of sums" if is_count else "libraries choose other kernels for another GPU"
    fix = f"for the same numbers, use {counted(captured.gpus)}" if captured.gpus else "for the same numbers: exec --gpus none"
    return result("numerics may differ", "", why, fix)


def _driver(captured: Captured, machine: Machine) -> Finding:
    cuda, driver = captured.frameworks.cuda, machine.host.nvidia
    row, toolkit = family(cuda), compatibility().toolkits.driver.get(cuda)
    captured_driver = f", driver {captured.host.nvidia}" if captured.host.nvidia else ""
    result = finding_of(_DRIVER, f"CUDA {cuda}{captured_driver}", f"driver {driver or 'unknown'}")
    update = f"install driver {(row.driver if row else toolkit) or 'for this CUDA'} or later"
    if not driver:
        return result("unknown", "", "the version of NVIDIA's driver is unknown", update)
    if toolkit is not None and version(driver) >= version(toolkit):
        return result("ok", compatibility().toolkits.source_of(cuda))
    if row is None and toolkit is None:
        return result("unknown", "", f"the table has no row for CUDA {cuda}", "compare with the release notes of this CUDA")
    if row is not None and version(driver) >= version(row.driver):
        if toolkit is None:
            why = f"{row.driver} is the minimum for CUDA {row.cuda}.x, but the table has no row for CUDA {cuda}"
            return result("unknown", row.source, why, "if a function of the driver is missing, update the driver")
        why = f"minor version compatibility: functions that need driver {toolkit} fail, and PTX is not compiled"
        return result("ok", row.source, why)
    floor = row.driver if row is not None else toolkit
    source = row.source if row is not None else compatibility().toolkits.source_of(cuda)
    why = f"CUDA {cuda} needs driver {floor} or later"
    package = _compat(captured, cuda)
    if package is None:
        older = [row.cuda for row in compatibility().family if version(driver) >= version(row.driver)]
        other = f", or capture an environment with a torch for CUDA {older[0]}" if older else ""
        return result("blocked", source, why, update + other)
    return result(*_forward(driver, machine.gpus, *package, update))


def _compat(captured: Captured, cuda: str) -> tuple[str, str] | None:
    """Return name and CUDA version of the package for forward compatibility to a version of CUDA: `cuda-compat-13-0`, 13.0."""
    for name, number in captured.packages.items():
        if name.startswith("cuda-compat"):  # conda's package has the version of CUDA as its own
            versions = name.split("-")[2:] or number.split(".")[:2]
            if versions[0] == cuda.partition(".")[0]:
                return name, ".".join(versions)
    return None


def _forward(driver: str, gpus: tuple[Gpu, ...], package: str, cuda: str, update: str) -> tuple[Verdict, str, str, str]:
    """Judge a driver below the minimum if the image has the package cuda-compat: verdict, source, reason and fix."""
    kinds = {gpu.name: kind_of(gpu.name) for gpu in gpus}
    refused = [name for name, kind in kinds.items() if kind == "other"]
    if refused:
        why = f"forward compatibility ({package}) works on data-center GPUs only, and fails with error 804 on {refused[0]}"
        return "blocked", "forward", why, update
    unlisted = [name for name, kind in kinds.items() if kind is None]
    row = forward(cuda)
    if unlisted or row is None:
        what = f"{unlisted[0]} as a data-center GPU" if unlisted else f"the drivers that {package} supports"
        return "unknown", "forward", f"forward compatibility ({package}): the table does not list {what}", update
    branch = version(driver)[0]
    if branch not in row.branches:
        branches = ", ".join(f"R{number}" for number in sorted(row.branches))
        return "blocked", row.source, f"{package} supports the driver branches {branches}, not R{branch}", update
    why = f"forward compatibility: {package} replaces a part of the driver"
    fix = "make sure that the run loads libcuda.so from /usr/local/cuda/compat; for the same numbers, use the captured driver"
    return "numerics may differ", row.source, why, fix


def _kernels(captured: Captured, machine: Machine, gpu: Gpu) -> Finding:
    frameworks = captured.frameworks
    cuda, kernels = frameworks.cuda, " ".join(frameworks.architectures) or "unknown"
    result = finding_of("compute capability", kernels, f"{gpu.capability or 'unknown'} ({gpu.name})")
    if not gpu.capability:
        why = "NVML did not report the compute capability of this GPU"
        return result("unknown", "", why, "compare `nvidia-smi --query-gpu=compute_cap`")
    if not frameworks.architectures:
        return result("unknown", "", "the spec does not list the kernels of its torch", "capture again")
    codes = [(match[1], f"{match[2]}.{match[3]}", match[4]) for match in map(_CODE.fullmatch, frameworks.architectures) if match]
    fitting = [code for kind, code, suffix in codes if kind == "sm" and runs_cubin(code, gpu.capability, suffix)]
    if fitting and (is_released(gpu.capability) or gpu.capability in fitting):
        return result("ok", "cubin")
    if fitting:
        why = f"no document in the table says which kernels run on compute capability {gpu.capability}"
        return result("unknown", "gpus", why, f"use a torch with kernels for it: sm_{gpu.capability.replace('.', '')}")
    ptx = [code for kind, code, suffix in codes if kind == "compute" and not suffix]
    if any(version(code) <= version(gpu.capability) for code in ptx):
        toolkit = compatibility().toolkits.driver.get(cuda)
        if toolkit is None or not machine.host.nvidia:
            why = f"only PTX fits this GPU, and it is unknown which driver compiles PTX of CUDA {cuda}"
            return result("unknown", "minor", why)
        if version(machine.host.nvidia) < version(toolkit):
            why = f"only PTX fits this GPU, and driver {machine.host.nvidia} does not compile PTX of CUDA {cuda}"
            return result("blocked", "minor", why, f"install driver {toolkit} or later")
        why = "no compiled kernel fits this GPU, so the driver compiles PTX, and its version affects the numbers"
        if _is_as_captured(captured, machine):
            return result("ok", "cubin", why)
        return result("numerics may differ", "cubin", why, "for the same numbers, use the captured GPU")
    unread = [name for name in frameworks.architectures if not _CODE.fullmatch(name)]
    if unread:
        return result("unknown", "", f"the table does not cover kernels for {unread[0]}")
    wheels = " or ".join(wheels_for(gpu.capability, machine.host.machine))
    fix = "use a GPU of the list" + (f", or capture an environment with torch 2.13 for CUDA {wheels}" if wheels else "")
    return result("blocked", "cubin", f"torch {frameworks.torch} has no kernels for this GPU", fix)
