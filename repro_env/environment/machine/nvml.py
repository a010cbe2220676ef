"""Query NVIDIA's driver. This script runs in a separate process, because a driver can hang or crash.

Run as `python -I nvml.py`. It prints a JSON object per line as soon as the driver answers, with the fields of `nvidia.Answers`
or a device as `device`. It imports nothing else of repro-env.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from typing import Any

_NOT_SUPPORTED, _NOT_FOUND, _NO_FUNCTION, _INVALID = 3, 6, 13, 2
_PROFILE = re.compile(r"MIG (\S+)\s*\Z")


class Query:
    """Calls functions of NVML. If a call fails, the reason is added to `unknown`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.unknown: list[str] = []

    def call(self, what: str, function: str, *arguments: Any, ignored: tuple[int, ...] = ()) -> Any:
        """Return the result of a function, or None if it fails. Errors with the numbers `ignored` are expected."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value not in ignored:
                self.unknown.append(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001 - bytes that are not text, or a binding without this function
            self.unknown.append(f"{what}: {type(error).__name__}: {error}")
        return None


def main() -> None:
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        print_row(binding=str(error), end=True)
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print_row(code=error.value, error=str(error), end=True)
        return
    query = Query(pynvml)
    print_row(driver=query.call("driver", "nvmlSystemGetDriverVersion") or "")
    newest = query.call("cuda", "nvmlSystemGetCudaDriverVersion_v2")
    print_row(newest=f"{newest // 1000}.{newest % 1000 // 10}" if newest else "")
    count = query.call("number of GPUs", "nvmlDeviceGetCount")
    print_row(count=count)
    for index in range(count or 0):
        print_row(gpu=index)
        handle = query.call(f"GPU {index}", "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            _print_gpu(pynvml, index, handle)
    print_row(unknown=query.unknown, end=True)


def _print_gpu(nvml: Any, index: int, handle: Any) -> None:
    """Print a GPU, then its MIG instances."""
    query = Query(nvml)
    ecc = query.call("ecc", "nvmlDeviceGetEccMode", handle)
    mig = query.call("mig", "nvmlDeviceGetMigMode", handle, ignored=(_NOT_SUPPORTED, _NO_FUNCTION))  # most GPUs have no MIG
    instances = {}
    if mig and mig[0]:
        # NVML reports the maximum number of instances, most of which may not exist.
        for number in range(query.call("instances", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            arguments = ("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            instance = query.call(f"instance {number}", *arguments, ignored=(_INVALID, _NOT_FOUND))
            if instance is not None:
                instances[number] = instance
    shared = {"index": index, "vendor": "nvidia", "ecc": bool(ecc[0]) if ecc else None}
    partition = "" if mig is None else "on" if mig[0] else "off"
    print_row(device=shared | _facts(query, handle) | {"partition": partition})
    for number, instance in instances.items():
        facts = _facts(Query(nvml), instance)
        profile = _PROFILE.search(facts["name"])
        print_row(device=shared | facts | {"instance": number, "partition": profile[1] if profile else "on"})


def _facts(query: Query, handle: Any) -> dict[str, Any]:
    """Return the properties that both a GPU and a MIG instance have."""
    name = query.call("name", "nvmlDeviceGetName", handle)
    capability = query.call("capability", "nvmlDeviceGetCudaComputeCapability", handle)
    memory = query.call("memory", "nvmlDeviceGetMemoryInfo", handle)
    uuid = query.call("uuid", "nvmlDeviceGetUUID", handle)
    return {
        "name": name or "",
        "architecture": ".".join(map(str, capability or ())),
        "memory": memory.total if memory else None,
        "uuid": "sha256:" + hashlib.sha256(uuid.encode()).hexdigest() if uuid else None,
        "unknown": query.unknown,
    }


def print_row(**row: Any) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Fork, because a process that hangs in the driver's kernel code cannot be killed. Its parent, which waits for it, can.
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    else:
        main()
