"""NVIDIA's GPUs, as their driver tells them through NVML. A driver that fails, hangs or is not there is a fact with words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from repro_env.io import process
from repro_env.model import redact
from repro_env.model.accelerator import Accelerators, Device

CHILD = Path(__file__).with_name("nvml.py")
TIMEOUT = 30.0
"""Seconds for all questions: without persistence mode every GPU is started for them, which takes seconds each."""
WSL = Path("/usr/lib/wsl/lib")
"""Where Windows puts its driver's libraries; the loader's configuration does not always name it."""
VERSION = "proc/driver/nvidia/version"
_INVALID, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _NOT_LOADED, _NO_LIBRARY, _NO_FUNCTION, _MISMATCH = (
    2,
    3,
    4,
    6,
    9,
    12,
    13,
    18,
)
_WORDS = {
    1: "NVML could not be started",
    _INVALID: "NVML does not understand the question",
    _NOT_SUPPORTED: "the device does not tell it",
    _NO_PERMISSION: "the driver does not answer this user (no permission on /dev/nvidia*?)",
    _NOT_FOUND: "not found",
    _NOT_LOADED: "the driver is not loaded",
    10: "the driver did not answer in its own time",
    11: "the kernel reports a problem with the GPU's interrupts",
    _NO_LIBRARY: "libnvidia-ml.so.1 is not found",
    _NO_FUNCTION: "the driver is too old to tell it",
    14: "the GPU's own memory of its settings is corrupt",
    15: "the GPU is lost: it has fallen off the bus or cannot be reached",
    16: "the GPU needs a reset",
    17: "the operating system refused",
    _MISMATCH: "the driver's library and its kernel module are of different versions",
    20: "out of memory",
    27: "not ready",
    28: "the GPU is not there",
    999: "unknown error of the driver",
}
_LEVELS = {0: "internal", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
_CORES = {
    (5, 0): 128, (5, 2): 128, (5, 3): 128, (6, 0): 64, (6, 1): 128, (6, 2): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64,
    (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (10, 3): 128, (11, 0): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip
"""Cores of one multiprocessor by compute capability: NVML counts cores, numbers depend on multiprocessors."""
_PROFILE = re.compile(r"MIG (\S+)\s*\Z")
_MODULE = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")


class Said(msgspec.Struct, frozen=True):
    """The answers of one run of the child."""

    values: dict[tuple[int, int, str], Any]
    """By (device, instance, what); -1 where there is none."""
    errors: dict[tuple[int, int, str], str]
    codes: dict[tuple[int, int, str], int]
    devices: tuple[int, ...]
    problem: str
    """How the child failed; empty when it came to its end."""


def accelerators(environ: Mapping[str, str], root: Path = Path("/")) -> Accelerators:
    """NVIDIA's part. `root` is where `/proc` lies. Never raises for what the driver does."""
    said = hear(environ)
    try:
        kernel = (root / VERSION).read_text("utf-8", "replace")
    except OSError:
        kernel = ""
    return decide(said, kernel)


def hear(environ: Mapping[str, str]) -> Said:
    """Ask the driver, in a process of its own."""
    own = dict(environ)
    if WSL.is_dir():
        own["LD_LIBRARY_PATH"] = ":".join(filter(None, (own.get("LD_LIBRARY_PATH", ""), str(WSL))))
    try:
        done = process.run([sys.executable, "-I", str(CHILD)], env=own, cwd=Path("/"), timeout=TIMEOUT)
    except OSError as error:
        return Said({}, {}, {}, (), f"the question to the driver could not be asked: {error.strerror}")
    said = read(done.stdout.decode("utf-8", "replace").splitlines())
    if done.timed_out:
        problem = f"the driver did not answer within {TIMEOUT:.0f} s" + (f" (GPU {said.devices[-1]})" if said.devices else "")
    elif said.problem:
        problem = "asking the driver ended with a crash" + (f" (GPU {said.devices[-1]})" if said.devices else "")
    else:
        problem = ""
    return msgspec.structs.replace(said, problem=problem)


def read(rows: Iterable[str]) -> Said:
    """The child's lines; others (libraries print too) are dropped."""
    values: dict[tuple[int, int, str], Any] = {}
    errors: dict[tuple[int, int, str], str] = {}
    codes: dict[tuple[int, int, str], int] = {}
    for row in rows:
        try:
            said = json.loads(row)
            key = (int(said.get("device", -1)), int(said.get("instance", -1)), str(said["what"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if "error" in said:
            code = said["error"]
            codes[key] = code if isinstance(code, int) else 999
            errors[key] = _WORDS.get(code, f"NVML error {code}") if isinstance(code, int) else redact.line(str(code))
        else:
            values[key] = said.get("value")
    devices = tuple(sorted({key[0] for key in (*values, *errors) if key[0] >= 0}))
    ended = (-1, -1, "end") in values or (-1, -1, "start") in errors or (-1, -1, "binding") in errors
    return Said(values, errors, codes, devices, "" if ended else "crash")


def decide(said: Said, kernel: str) -> Accelerators:
    """What the answers and `/proc/driver/nvidia/version` mean together."""
    module = _MODULE.search(kernel + "\n")
    driver = _text(said.values.get((-1, -1, "driver"))) or (module[1] if module else "")
    if kernel and not driver:
        driver = redact.line(kernel.partition("\n")[0].strip())
    devices = [device for index in said.devices for device in _devices(said, index)]
    unknown = [
        f"GPU {index}: {said.errors[index, -1, 'handle']}" for index in said.devices if (index, -1, "handle") in said.errors
    ]
    unknown += [
        f"{what}: {why}" for (index, _, what), why in sorted(said.errors.items()) if index < 0 and what in ("driver", "cuda")
    ]
    why = _why(said, kernel, driver)
    if said.devices and said.problem:
        unknown.append(f"the rest: {said.problem}")
    if said.devices and not devices:
        why = "no GPU answers: " + "; ".join(unknown)
    return Accelerators(
        devices=tuple(devices), driver=driver, newest=_newest(said), why="" if devices else why, unknown=tuple(unknown)
    )


def _why(said: Said, kernel: str, driver: str) -> str:
    """Why there is no device, in words that say what to do where something can be done."""
    if (-1, -1, "binding") in said.errors:
        return f"nvidia-ml-py is not installed beside repro-env ({said.errors[-1, -1, 'binding']})"
    code = said.codes.get((-1, -1, "start"))
    if code == _NO_LIBRARY and kernel:
        return f"the kernel has NVIDIA's driver {driver}, but its library libnvidia-ml.so.1 is not here (a container without GPU support?)"
    if code == _NO_LIBRARY:
        return "no NVIDIA driver: neither its library (libnvidia-ml.so.1) nor its kernel module is here"
    if code == _MISMATCH:
        library = re.search(r"\.so\.(\d[\d.]*)\Z", _text(said.values.get((-1, -1, "library"))))
        return (
            f"NVIDIA's library ({library[1] if library and '.' in library[1] else 'of another version'}) does not match the driver "
            f"in the kernel ({driver or 'of unknown version'}): it was upgraded and needs a restart"
        )
    if code == _NOT_LOADED and not kernel:
        return "NVIDIA's library is here, but its driver is not loaded (no GPU, or the module nvidia is missing)"
    if code is not None:
        return f"NVIDIA's driver {driver} does not start: {said.errors[-1, -1, 'start']}".replace("  ", " ")
    if (-1, -1, "count") in said.errors:
        return f"NVIDIA's driver {driver} does not count its GPUs: {said.errors[-1, -1, 'count']}"
    return said.problem or f"NVIDIA's driver {driver} finds no GPU"


def _newest(said: Said) -> str:
    number = said.values.get((-1, -1, "cuda"))
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) and number > 0 else ""


def _devices(said: Said, index: int) -> list[Device]:
    """A GPU and its MIG instances; empty for one that does not answer at all."""
    if (index, -1, "handle") in said.errors:
        return []
    instances = sorted({key[1] for key in said.values if key[0] == index and key[1] >= 0})
    mig = said.values.get((index, -1, "mig"))
    whole = _one(said, index, -1, "on" if mig else "" if mig is None else "off")
    # NVML counts how many instances there could be: one that is not there is no fact, one that is not shown is.
    hidden = [
        f"instance {part}: {why}"
        for (device, part, what), why in sorted(said.errors.items())
        if device == index and part >= 0 and what == "handle" and said.codes[device, part, what] not in (_INVALID, _NOT_FOUND)
    ]
    whole = msgspec.structs.replace(whole, unknown=(*whole.unknown, *hidden))
    return [whole, *(_one(said, index, instance, _profile(said, index, instance)) for instance in instances)]


def _one(said: Said, index: int, instance: int, partition: str) -> Device:
    def value(what: str) -> Any:
        return said.values.get((index, instance, what))

    capability = value("capability")
    attributes = value("attributes") or {}
    errors = {what: why for (device, part, what), why in said.errors.items() if (device, part) == (index, instance)}
    units = attributes.get("units") or None if instance >= 0 else _units(value("cores"), capability, errors)
    errors.pop("bus", None)
    if said.codes.get((index, instance, "mig")) in (_NOT_SUPPORTED, _NO_FUNCTION):
        errors.pop("mig")  # most GPUs have no MIG
    return Device(
        index=index,
        instance=instance if instance >= 0 else None,
        vendor="nvidia",
        name=_text(value("name")),
        architecture=".".join(str(part) for part in capability) if capability else "",
        units=units,
        memory=value("memory"),
        partition=partition,
        ecc=value("ecc") if instance < 0 else said.values.get((index, -1, "ecc")),
        uuid=value("uuid"),
        topology=_topology(said, index, errors) if instance < 0 else (),
        unknown=tuple(f"{what}: {why}" for what, why in sorted(errors.items())),
    )


def _units(cores: Any, capability: Any, errors: dict[str, str]) -> int | None:
    """Multiprocessors from the number of cores; what stands in the way goes into `errors`, under the name users know."""
    if why := errors.pop("cores", ""):
        errors["units"] = why
        return None
    each = _CORES.get(tuple(capability)) if capability else None
    if not isinstance(cores, int) or each is None or cores % each:
        if isinstance(cores, int):
            errors["units"] = f"{cores} cores, and how many make a multiprocessor is not known for this architecture"
        return None
    return cores // each


def _profile(said: Said, index: int, instance: int) -> str:
    """`1g.10gb`: as the name says, else as the numbers do."""
    if named := _PROFILE.search(_text(said.values.get((index, instance, "name")))):
        return named[1]
    found = said.values.get((index, instance, "attributes"))
    if not found:
        return "on"
    slices, parts = found["slices"], found["parts"]
    return (f"{parts}c." if parts < slices else "") + f"{slices}g.{round(found['megabytes'] / 1024)}gb"


def _topology(said: Said, index: int, errors: dict[str, str]) -> tuple[str, ...]:
    """The row of the matrix; what a pair does not tell is empty and in `errors`."""
    for what in [what for what in errors if what.startswith("topology ")]:
        errors[f"way to GPU {what.split()[1]}"] = errors.pop(what)
    if said.codes.get((index, -1, "links")) in (_NOT_SUPPORTED, _NO_FUNCTION):
        errors.pop("links")  # most GPUs have no NVLink
    if len(said.devices) < 2:
        return ()
    return tuple("self" if other == index else _way(said, index, other) for other in said.devices)


def _way(said: Said, one: int, other: int) -> str:
    links = _links(said, one, other)
    if links:
        return f"nvlink x{links}"
    level = said.values.get((min(one, other), -1, f"topology {max(one, other)}"))
    return _LEVELS.get(level, f"level {level}") if level is not None else ""


def _links(said: Said, one: int, other: int) -> int:
    """NVLinks between two GPUs: their own, else those that both have to a switch."""
    mine, theirs = (said.values.get((index, -1, "links")) or {} for index in (one, other))
    direct = mine.get(_text(said.values.get((other, -1, "bus"))), 0)
    return int(direct or min(mine.get("switch", 0), theirs.get("switch", 0)))


def _text(value: Any) -> str:
    return redact.line(value).strip() if isinstance(value, str) else ""
