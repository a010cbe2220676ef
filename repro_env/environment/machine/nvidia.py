"""Find NVIDIA GPUs through NVML. If the driver fails, hangs or is missing, the reason is recorded."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from repro_env.io import process
from repro_env.io.files import read_text
from repro_env.schema import redact
from repro_env.schema.accelerator import Accelerators, Device

CHILD = Path(__file__).with_name("nvml.py")
TIMEOUT = 30.0
"""Seconds for all queries: without persistence mode, the driver must first start each GPU, which takes seconds."""
WSL = Path("/usr/lib/wsl/lib")
"""The directory of the driver's libraries under WSL, which is not always in the loader's configuration."""
VERSION = "proc/driver/nvidia/version"
_NOT_LOADED, _NO_LIBRARY, _MISMATCH = 9, 12, 18
"""Error numbers of NVML."""
_MODULE = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The output of the child process."""

    binding: str = ""
    """Why Python's binding of NVML cannot be imported."""
    code: int | None = None
    """NVML's error number if it did not start, and its message `error`."""
    error: str = ""
    driver: str = ""
    newest: str = ""
    count: int | None = None
    gpu: int | None = None
    """The GPU that was queried last."""
    devices: tuple[Device, ...] = ()
    unknown: tuple[str, ...] = ()
    end: bool = False
    """Whether the child completed."""


def accelerators(environ: Mapping[str, str], root: Path = Path("/")) -> Accelerators:
    """Return NVIDIA's GPUs and driver. `root`: the directory with `/proc`. Never raises for problems of the driver."""
    env = dict(environ)
    if WSL.is_dir():
        env["LD_LIBRARY_PATH"] = ":".join(filter(None, (env.get("LD_LIBRARY_PATH", ""), str(WSL))))
    try:
        done = process.run([sys.executable, "-I", str(CHILD)], env=env, cwd=Path("/"), timeout=TIMEOUT)
    except OSError as error:
        return Accelerators(why=f"the process that queries NVIDIA's driver did not start: {error.strerror}")
    answers = read(done.stdout.decode("utf-8", "replace").splitlines())
    return decide(
        answers, read_text(root / VERSION), f"the driver did not answer within {TIMEOUT:.0f} s" if done.timed_out else ""
    )


def read(lines: Iterable[str]) -> Answers:
    """Parse the child's output. Other lines, which libraries may print, are ignored."""
    values: dict[str, Any] = {}
    devices = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, msgspec.ValidationError):
            row = redact.all_texts(json.loads(line))
            if "device" in row:
                devices.append(msgspec.convert(row["device"], Device))
            else:
                values |= row
    return msgspec.convert(values | {"devices": devices}, Answers)


def decide(answers: Answers, kernel: str, problem: str = "") -> Accelerators:
    """Combine the answers with `kernel`, the text of `/proc/driver/nvidia/version`. `problem`: how the child failed."""
    module = _MODULE.search(kernel + "\n")
    driver = answers.driver or (module[1] if module else redact.line(kernel.partition("\n")[0].strip()))
    unknown = list(answers.unknown)
    if not answers.end:
        where = "" if answers.gpu is None else f" (GPU {answers.gpu})"
        problem = (problem or "the query of the driver crashed") + where
        unknown += [f"incomplete: {problem}"] if answers.devices else []
    why = "" if answers.devices else problem or _why(answers, kernel, driver)
    return Accelerators(
        devices=answers.devices, driver=driver, newest=answers.newest, why=redact.line(why), unknown=tuple(unknown)
    )


def _why(answers: Answers, kernel: str, driver: str) -> str:
    """Return why no device was found, and what the user can do about it."""
    if answers.binding:
        return f"nvidia-ml-py is not installed in the environment of repro-env ({answers.binding})"
    if answers.code == _NO_LIBRARY and kernel:
        return (
            f"the kernel has NVIDIA's driver {driver}, but its library libnvidia-ml.so.1 was not found; "
            "if this is a container, start it with GPU support"
        )
    if answers.code == _NO_LIBRARY:
        return "no NVIDIA driver: neither its library (libnvidia-ml.so.1) nor its kernel module was found"
    if answers.code == _MISMATCH:
        return (
            f"NVIDIA's library does not match the driver in the kernel ({driver or 'of unknown version'}); "
            "restart the machine to complete the upgrade"
        )
    if answers.code == _NOT_LOADED and not kernel:
        return "NVIDIA's library is installed, but its driver is not loaded (no GPU, or the kernel module nvidia is missing)"
    if answers.code is not None:
        return f"NVIDIA's driver {driver} did not start: {answers.error}".replace("  ", " ")
    if answers.count == 0:
        return f"NVIDIA's driver {driver} found no GPU"
    return "no GPU responds: " + "; ".join(answers.unknown)
