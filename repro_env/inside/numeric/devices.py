"""GPUs, for torch."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .report import Report


def devices(report: Report, torch: Any) -> None:
    """GPUs as torch sees them. Last of all: it starts the driver."""
    if not getattr(torch.version, "cuda", None) and not getattr(torch.version, "hip", None):
        return
    count = report.step("torch's GPUs", lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0) or 0
    for index in range(count):
        found = report.step("torch's GPU %d" % index, functools.partial(torch.cuda.get_device_properties, index))
        if found is not None:
            report.say(
                device={
                    "name": str(found.name),
                    "architecture": str(getattr(found, "gcnArchName", "") or "%d.%d" % (found.major, found.minor)),
                    "units": int(found.multi_processor_count),
                    "memory": int(found.total_memory),
                }
            )
