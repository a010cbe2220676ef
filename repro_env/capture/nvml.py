"""Asks NVIDIA's driver what it knows, in a process of its own: a driver that hangs or crashes takes nothing else along.

Run as `python -I nvml.py`. Prints one JSON object a line, each as soon as it is known: `what` of `device` (and `instance`)
is `value`, or could not be had because of `error`, NVML's number or a text. Nothing else of repro-env is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

_LINKS = 36
"""NVLinks of one GPU that are asked for; no GPU has more yet."""
_NO_SUCH = (2, 3, 13)
"""Invalid argument, not supported, function not found: there are no more links."""


class _Driver:
    """NVML, and a line of output for every question to it."""

    def __init__(self) -> None:
        import pynvml  # type: ignore[import-untyped]

        self.nvml: Any = pynvml

    def ask(self, what: str, question: Callable[[], Any], device: int = -1, instance: int = -1) -> Any:
        """The answer, or None; either is printed."""
        try:
            value = question()
        except self.nvml.NVMLError as error:
            say(what=what, device=device, instance=instance, error=getattr(error, "value", 999))
        except Exception as error:  # noqa: BLE001 - an answer of bytes that are no text, or a binding without this function
            say(what=what, device=device, instance=instance, error=f"{type(error).__name__}: {error}")
        else:
            say(what=what, device=device, instance=instance, value=value)
            return value
        return None

    def handle(self, what: str, question: Callable[[], Any], device: int, instance: int = -1) -> Any:
        """As `ask`, for an answer that means nothing outside this process."""
        kept: list[Any] = []
        self.ask(what, lambda: kept.append(question()), device, instance)
        return kept[0] if kept else None

    def facts(self, handle: Any, device: int, instance: int = -1) -> None:
        """What a GPU and a MIG instance both are asked."""
        nvml = self.nvml
        self.ask("name", lambda: nvml.nvmlDeviceGetName(handle), device, instance)
        self.ask("capability", lambda: list(nvml.nvmlDeviceGetCudaComputeCapability(handle)), device, instance)
        self.ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total, device, instance)
        self.ask("uuid", lambda: _digest(nvml.nvmlDeviceGetUUID(handle)), device, instance)

    def device(self, device: int) -> Any:
        nvml = self.nvml
        handle = self.handle("handle", lambda: nvml.nvmlDeviceGetHandleByIndex(device), device)
        if handle is None:
            return None
        self.facts(handle, device)
        self.ask("cores", lambda: nvml.nvmlDeviceGetNumGpuCores(handle), device)
        self.ask("ecc", lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]), device)
        self.ask("bus", lambda: _bus(nvml.nvmlDeviceGetPciInfo(handle)), device)
        if self.ask("mig", lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]), device):
            for instance in range(self.ask("instances", lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle), device) or 0):
                self.instance(handle, device, instance)
        return handle

    def instance(self, parent: Any, device: int, instance: int) -> None:
        nvml = self.nvml
        handle = self.handle("handle", lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, instance), device, instance)
        if handle is not None:
            self.facts(handle, device, instance)
            self.ask("attributes", lambda: _attributes(nvml.nvmlDeviceGetAttributes(handle)), device, instance)

    def links(self, handle: Any) -> dict[str, int]:
        """How many active NVLinks lead to which PCI address, or to a `switch`."""
        nvml = self.nvml
        found: dict[str, int] = {}
        for link in range(_LINKS):
            try:
                if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                    continue
            except nvml.NVMLError as error:
                if error.value in _NO_SUCH and (link or error.value == nvml.NVML_ERROR_INVALID_ARGUMENT):
                    break
                raise
            end = self.other_end(handle, link)
            found[end] = found.get(end, 0) + 1
        return found

    def other_end(self, handle: Any, link: int) -> str:
        try:
            if self.nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == self.nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                return "switch"
        except (self.nvml.NVMLError, AttributeError):
            pass  # older drivers and bindings do not tell; the address does
        return _bus(self.nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))


def main() -> None:
    try:
        driver = _Driver()
    except ImportError as error:
        say(what="binding", error=str(error))
        return
    nvml = driver.nvml
    begun: list[bool] = []
    driver.ask("start", lambda: begun.append(nvml.nvmlInit() is None))
    say(what="library", value=_library())
    if not begun:
        return
    driver.ask("driver", nvml.nvmlSystemGetDriverVersion)
    driver.ask("cuda", nvml.nvmlSystemGetCudaDriverVersion_v2)
    handles = [driver.device(device) for device in range(driver.ask("count", nvml.nvmlDeviceGetCount) or 0)]
    if len(handles) > 1:
        for device, handle in enumerate(handles):
            if handle is not None:
                driver.ask("links", lambda handle=handle: driver.links(handle), device)  # type: ignore[misc]
            for other in range(device + 1, len(handles)):
                pair = (handle, handles[other])
                if None not in pair:
                    driver.ask(f"topology {other}", lambda pair=pair: nvml.nvmlDeviceGetTopologyCommonAncestor(*pair), device)  # type: ignore[misc]
    say(what="end", value=True)


def say(**row: Any) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _bus(info: Any) -> str:
    """A PCI address in one spelling: NVML has them with four and with eight digits of domain."""
    address = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    return re.sub("^0000(?=[0-9a-f]{4}:)", "", address.lower())


def _attributes(found: Any) -> dict[str, int]:
    return {
        "units": found.multiprocessorCount,
        "slices": found.gpuInstanceSliceCount,
        "parts": found.computeInstanceSliceCount,
        "megabytes": found.memorySizeMB,
    }


def _library() -> str:
    """The file that serves as NVML: its name ends in its version. Empty when there is none."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
        for row in maps:
            path = row.rstrip("\n").split(None, 5)[5:]
            if path and os.path.basename(path[0]).startswith("libnvidia-ml.so"):  # noqa: PTH119
                return os.path.realpath(path[0])
    return ""


if __name__ == "__main__":
    # Twice: a process that the driver holds in the kernel cannot be killed, and nobody may wait for it but its parent, which can.
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    else:
        main()
