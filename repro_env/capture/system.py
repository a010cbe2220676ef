"""The machine and its operating system: facts, never identity."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from repro_env.io import process
from repro_env.model import redact
from repro_env.model.environment import Host

_NUMERIC = re.compile(
    r"sse\d?(?:_\d)?|ssse3|sse4[a_]?\w*|pni|avx\w*|fma4?|f16c|amx\w*|bmi[12]|popcnt"
    r"|neon|asimd\w*|fphp|sve\w*|sme(?:[a-z]*\d\w*)?|i8mm|bf16|fcma"
)
"""Flags of `/proc/cpuinfo` that numeric libraries choose their code by (x86 and arm64)."""
_COMPILERS = ("cc", "gcc", "g++", "clang", "clang++", "nvcc", "hipcc")
_CUDA = "usr/local/cuda/bin"
"""Where PyTorch too looks for `nvcc` when PATH has none."""
_PATIENCE = 2.0
"""Seconds that a compiler may take to name its version."""
_versions: dict[tuple[str, int, int, int], str] = {}
"""By path, inode, size and time: one process asks each compiler once."""


def host(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Host:
    """What this machine is. A fact that the kernel does not give is empty or 0.

    Compilers are those that `environ` finds on PATH; without it none is started. `root` is where /proc, /sys and /usr lie.
    """
    cpu = _read(root / "proc/cpuinfo")
    return Host(
        os=redact.line(_os_name()),
        kernel=redact.line(f"{platform.system()} {platform.release()}"),
        machine=redact.line(platform.machine()),
        cpu=redact.line(_first(cpu, "model name") or _arm(cpu)),
        isa=isa(_first(cpu, "flags") or _first(cpu, "Features")),
        cores=len(os.sched_getaffinity(0)),
        quota=quota(root),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        libc=_libc(root),
        compilers=() if environ is None else compilers(environ, root),
    )


def isa(flags: str) -> tuple[str, ...]:
    """Those of the kernel's CPU flags that numeric libraries dispatch on, sorted."""
    return tuple(sorted({flag for flag in flags.split() if _NUMERIC.fullmatch(flag)}))


def quota(root: Path = Path("/")) -> int | None:
    """Thousandths of a core that the control groups of this process grant it (cgroup v2 and v1); None where they set no limit.

    A container may have fewer than it sees cores: libraries that count cores then start more threads than run.
    """
    limits = []
    for row in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = row.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            for folder in _up(root / "sys/fs/cgroup", group):
                limits += _limit(*_read(folder / "cpu.max").split()[:2])
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu"):
                for folder in _up(root / "sys/fs/cgroup" / mount, group):
                    limits += _limit(_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip())
    return min(limits, default=None)


def compilers(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """`<path>: <first line of --version>` of each C, C++ and GPU compiler: those on PATH, and the CUDA toolkit's. None is empty."""
    search = ":".join(filter(None, (environ.get("PATH", os.defpath), _below(environ.get("CUDA_HOME", "")), str(root / _CUDA))))
    found: dict[str, str] = {}
    for name in _COMPILERS:
        path = shutil.which(name, path=search)
        if path is not None and path.startswith("/"):
            real = os.path.realpath(path)
            # Under the name it was found by: a wrapper (ccache) goes by that.
            said = _version(path, real)
            found.setdefault(real if said and Path(real).name != "ccache" else path, said)
    return tuple(sorted(redact.line(f"{path}: {said or 'does not say its version'}") for path, said in found.items()))


def _version(path: str, real: str) -> str:
    try:
        now = Path(real).stat()
    except OSError:
        return ""
    key = (path, now.st_ino, now.st_size, now.st_mtime_ns)
    if key not in _versions:
        try:
            done = process.run([path, "--version"], timeout=_PATIENCE)
        except OSError:
            return ""
        rows = [row.strip() for row in done.stdout.decode("utf-8", "replace").splitlines() if row.strip()]
        release = [row for row in rows if "release" in row] if Path(path).name == "nvcc" else []
        _versions[key] = (release or rows or [""])[0][:300] if done.code == 0 else ""
    return _versions[key]


def _below(home: str) -> str:
    return f"{home}/bin" if home.startswith("/") else ""


def _up(mount: Path, group: str) -> Iterator[Path]:
    """A control group's folder and those above it: the tightest limit holds. In a container its own may be the mount itself."""
    folder = Path(os.path.normpath(f"{mount}/{group}"))
    while folder.is_relative_to(mount):
        yield folder
        if folder == mount:
            return
        folder = folder.parent
    yield mount


def _limit(share: str = "", period: str = "") -> list[int]:
    return [int(share) * 1000 // int(period)] if share.isdigit() and period.isdigit() and int(period) else []


def _libc(root: Path) -> str:
    """`glibc 2.36`, `musl 1.2.4`."""
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        said = None
    if said:
        return redact.line(said)
    for loader in sorted((root / "lib").glob("ld-musl-*.so.1")):
        try:
            told = process.run([str(loader)], timeout=_PATIENCE).stderr.decode("utf-8", "replace")
        except OSError:
            continue
        version = re.search(r"^Version (\S+)", told, re.MULTILINE)
        return redact.line("musl " + version[1]) if version else "musl"
    return ""


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _arm(cpu: str) -> str:
    """arm64 kernels give numbers for a name."""
    parts = [f"{key} {value}" for key in ("CPU implementer", "CPU part") if (value := _first(cpu, key))]
    return ", ".join(parts)


def _first(text: str, key: str) -> str:
    for row in text.splitlines():
        name, colon, value = row.partition(":")
        if colon and name.strip() == key:
            return value.strip()
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
