"""Libraries that are linked into torch's own."""

from __future__ import annotations

import os
import re

from .mapped import mapped
from .names import name_of
from .versions import cudnn_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .report import Report


def linked_in(report: Report, torch: Any, config: str, parallel: str) -> None:
    """Libraries that are part of torch's own: no file of theirs is mapped, and torch says their versions."""
    held = {name_of(path) for path in mapped()}
    where = {os.path.basename(path): path for path in mapped() if os.path.basename(path).startswith("libtorch_")}
    cpu = where.get("libtorch_cpu.so", "")
    gpu = where.get("libtorch_cuda.so") or where.get("libtorch_hip.so", "")

    def static(name: str, version: str, path: str) -> None:
        if path and version and not any(each == name or each.startswith(name + " ") for each in held):
            report.say(library={"name": name, "version": version, "path": path, "how": "static"})

    for name, pattern in (("mkl", r"Math Kernel Library Version (\d[\d.]*)"), ("onednn", r"MKL-DNN v(\S+)|oneDNN v(\S+)")):
        found = re.search(pattern, config)
        static(name, next((text for text in found.groups() if text), "") if found else "", cpu)
    if gpu:
        found_cudnn = report.step("torch's cuDNN", torch.backends.cudnn.version)
        if found_cudnn:
            static("miopen" if getattr(torch.version, "hip", None) else "cudnn", cudnn_version(found_cudnn), gpu)
        found_nccl = report.step("torch's NCCL", torch.cuda.nccl.version)
        if isinstance(found_nccl, tuple):
            static("rccl" if getattr(torch.version, "hip", None) else "nccl", ".".join(str(part) for part in found_nccl), gpu)
    found = re.search(r"mkl_get_max_threads\(\) : (\d+)", parallel)
    if found and cpu and not any(each.startswith("mkl ") for each in held):
        report.say(threads={"library": "mkl", "path": cpu, "count": int(found.group(1))})
