"""What PyTorch says of itself."""

from __future__ import annotations

from .instructions import architectures, capability
from .packages import there
from .static import linked_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .report import Report


def torch_facts(report: Report, torch: Any) -> None:
    def version(name: str) -> Callable[[], str]:
        return lambda: str(getattr(torch.version, name, None) or "")

    report.fact("torch_git", version("git_version"))
    report.fact("cuda", version("cuda"))
    report.fact("hip", version("hip"))
    report.fact("arch", lambda: architectures(torch))
    config = str(report.step("torch's configuration", torch.__config__.show) or "")
    parallel = str(report.step("torch's threads", torch.__config__.parallel_info) or "")
    report.fact("cpu_capability", lambda: capability(torch, config))
    report.threads("torch", "", torch.get_num_threads)
    report.threads("torch interop", "", torch.get_num_interop_threads)
    report.fact("needs_compiler", lambda: there("triton") or there("torch._inductor"))
    report.fact("triton", triton)
    # A first multiplication loads what the CPU's libraries put off; it is small enough for one thread.
    report.step("a multiplication by torch", lambda: torch.ones(64, 64).mm(torch.ones(64, 64)) is None)
    linked_in(report, torch, config, parallel)


def triton() -> str:
    """From its metadata: its import compiles things."""
    if not there("triton"):
        return ""
    from importlib import metadata

    names = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
    known = {(one.metadata["Name"] or "").lower(): one.version for one in metadata.distributions() if one.metadata}
    return next((known[name] for name in names if name in known), "of unknown version")
