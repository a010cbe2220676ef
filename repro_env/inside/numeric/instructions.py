"""The instruction sets that torch has code for, and the one that it uses.

The hooks of a run read it by itself: it needs no file beside it.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def architectures(torch: Any) -> list[str]:
    """What torch has code for; asked past `get_arch_list`, which wants a GPU in older versions."""
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return (flags() or "").split() if flags is not None else []


def capability(torch: Any, config: str) -> str:
    backend = getattr(torch.backends, "cpu", None)
    if backend is not None:
        return str(backend.get_cpu_capability())
    found = re.search(r"CPU capability usage: (.*)", config)
    return found.group(1).strip() if found else ""
