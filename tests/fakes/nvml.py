"""An NVML of a machine that has none: a small library with the functions that are called, built by the machine's compiler."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.parts import need

NAME = "libnvidia-ml.so.1"
_CODE = """
#include <string.h>
static const char *names[] = {%s};
static const int majors[] = {%s}, minors[] = {%s};
static const unsigned count = %d;
int nvmlInitWithFlags(unsigned flags) { return %d; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "%s", length); return 0; }
int nvmlDeviceGetCount_v2(unsigned *found) { *found = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    const char *name = names[(long)device - 1];
    if (!*name) return 15; /* NVML_ERROR_GPU_IS_LOST */
    strncpy(text, name, length);
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = majors[(long)device - 1]; *minor = minors[(long)device - 1];
    return *major ? 0 : 3; /* NVML_ERROR_NOT_SUPPORTED */
}
"""


def build(directory: Path, gpus: Sequence[tuple[str, str]], *, driver: str = "580.95.05", error: int = 0) -> Path:
    """The library in a directory. `gpus`: name and compute capability; empty if NVML fails to report it. `error`: of its start."""
    need(shutil.which("gcc"), "no C compiler: apt-get install gcc")
    directory.mkdir(parents=True, exist_ok=True)
    versions = [(capability or "0.0").split(".") for _, capability in gpus]
    code = _CODE % (
        ", ".join(f'"{name}"' for name, _ in gpus) or '""',
        ", ".join(major for major, _ in versions) or "0",
        ", ".join(minor for _, minor in versions) or "0",
        len(gpus),
        error,
        driver,
    )
    path = directory / NAME
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-o", path, "-"], input=code.encode(), check=True)
    return path
