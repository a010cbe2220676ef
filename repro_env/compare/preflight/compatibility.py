"""Read the compatibility table, `compatibility.toml`, and answer questions about single versions and devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.schema import toml
from repro_env.schema.codec import Frozen

LIST = Path(__file__).with_name("compatibility.toml")
Kind = Literal["data center", "other"]


class Family(Frozen, frozen=True, kw_only=True):
    """The oldest driver for a major version of CUDA."""

    cuda: str
    driver: str
    source: str


class Toolkits(Frozen, frozen=True, kw_only=True):
    """The driver of each minor version of CUDA."""

    driver: dict[str, str]
    source: str
    sources: Mapping[str, str] = {}
    """Of versions that have a source of their own."""

    def source_of(self, cuda: str) -> str:
        return self.sources.get(cuda, self.source)


class Forward(Frozen, frozen=True, kw_only=True):
    """The driver branches that the package cuda-compat of a version of CUDA supports."""

    cuda: str
    branches: frozenset[int]
    source: str


class Names(Frozen, frozen=True, kw_only=True):
    """Names of GPUs of a kind, as regular expressions that match completely."""

    kind: Kind
    names: tuple[str, ...]
    source: str


class Cubin(Frozen, frozen=True, kw_only=True):
    """An exception of a compute capability that kernels are compiled for: the only devices that run them, or some that do not."""

    code: str
    source: str
    excluded: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


class Devices(Frozen, frozen=True, kw_only=True):
    """Compute capabilities of devices. `code`: what the kernels are compiled for that they run."""

    devices: frozenset[str]
    source: str
    code: str = ""


class WheelRow(Frozen, frozen=True, kw_only=True):
    """The compute capabilities of the kernels in PyTorch's wheels for a version of CUDA, by the machine's architecture."""

    cuda: str
    x86_64: tuple[str, ...]
    aarch64: tuple[str, ...]
    source: str


class Libc(Frozen, frozen=True, kw_only=True):
    """The oldest kernel for versions of glibc, `first` and `last` included."""

    first: str
    last: str
    kernel: str
    source: str


class Baseline(Frozen, frozen=True, kw_only=True):
    """The CPU flags that a distribution requires."""

    release: str
    level: str
    flags: tuple[str, ...]
    source: str


class Shm(Frozen, frozen=True, kw_only=True):
    size: int
    source: str


class Compatibility(Frozen, frozen=True, kw_only=True, rename={"family_specific": "family-specific"}):
    """The file. `source` of each row is a key of `sources`."""

    sources: dict[str, str]
    family: tuple[Family, ...]
    toolkits: Toolkits
    forward: tuple[Forward, ...]
    kind: tuple[Names, ...]
    cubin: tuple[Cubin, ...]
    family_specific: tuple[Devices, ...]
    released: tuple[Devices, ...]
    wheel: tuple[WheelRow, ...]
    libc: tuple[Libc, ...]
    baseline: tuple[Baseline, ...]
    shm: Shm


@cache
def compatibility() -> Compatibility:
    return msgspec.convert(toml.loads(LIST.read_text(encoding="utf-8")), type=Compatibility)


def version(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: (580, 65, 6) for `580.65.06`, (2, 36) for `2.36-9+deb12u10`."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def family(cuda: str) -> Family | None:
    """Return the row of a version's major version; None if its minor versions need drivers of their own, or it is unknown."""
    return next((row for row in compatibility().family if row.cuda == cuda.partition(".")[0]), None)


def forward(cuda: str) -> Forward | None:
    return next((row for row in compatibility().forward if row.cuda == cuda), None)


def kind_of(name: str) -> Kind | None:
    """Return the kind of a GPU; None if its name is in no row."""
    rows = compatibility().kind
    return next((row.kind for row in rows if any(re.fullmatch(pattern, name) for pattern in row.names)), None)


def is_released(device: str) -> bool:
    """Whether documents cover the devices with a compute capability."""
    return any(device in row.devices for row in compatibility().released)


def runs_cubin(code: str, device: str, suffix: str = "") -> bool:
    """Whether a device with a compute capability runs kernels that were compiled for another, such as `8.0` on `8.6`.

    `suffix`: `a` for kernels that run on this capability only, `f` for those that run on its family.
    """
    if suffix == "a" or code == device:
        return code == device
    if suffix == "f":
        return any(row.code == code and device in row.devices for row in compatibility().family_specific)
    row = next((row for row in compatibility().cubin if row.code == code), None)
    if row is not None and row.only:
        return device in row.only
    code_major, code_minor = version(code)
    major, minor = version(device)
    return major == code_major and minor >= code_minor and (row is None or device not in row.excluded)


def wheels_for(device: str, machine: str) -> tuple[str, ...]:
    """Return the versions of CUDA whose wheels of PyTorch have kernels for a device. `machine`: `x86_64` or `aarch64`."""
    return tuple(
        row.cuda
        for row in compatibility().wheel
        if any(runs_cubin(code, device) for code in (row.aarch64 if machine == "aarch64" else row.x86_64))
    )


def kernel_for(libc: str) -> Libc | None:
    """Return the row of a version of glibc; None if it is unknown."""
    number = version(libc)[:2]
    return next((row for row in compatibility().libc if version(row.first) <= number <= version(row.last)), None)


def baseline_of(package: str) -> Baseline | None:
    """Return the row of a version of the package glibc, such as `2.34-100.el9_4.2`; None if no distribution of the list has it."""
    return next((row for row in compatibility().baseline if re.search(rf"\.{row.release}(?![0-9])", package)), None)
