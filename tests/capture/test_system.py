from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from repro_env.capture.system import compilers, host, isa, quota
from repro_env.model import codec
from repro_env.model.environment import Host
from tests.parts import need


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def files(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine() -> None:
    here = host()
    assert here == host()
    assert codec.decode(codec.canonical(here), Host, where="") == here
    assert here.machine == platform.machine()
    assert here.kernel == f"Linux {os.uname().release}"
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.memory > 1 << 27
    assert here.isa
    assert here.libc == " ".join(platform.libc_ver())
    assert here.compilers == ()


def test_flags_that_choose_code() -> None:
    x86 = "fpu vme sse sse2 ssse3 sse4_1 sse4_2 avx avx2 avx512f avx512_vnni avx_vnni amx_bf16 amx_tile fma f16c bmi2 aes rdrand ssbd smep smap"
    assert isa(x86) == (
        "amx_bf16", "amx_tile", "avx", "avx2", "avx512_vnni", "avx512f", "avx_vnni", "bmi2", "f16c", "fma",
        "sse", "sse2", "sse4_1", "sse4_2", "ssse3",
    )  # fmt: skip
    assert isa("fp asimd aes crc32 asimddp sve sve2 i8mm bf16 sme smei16i64") == (
        "asimd",
        "asimddp",
        "bf16",
        "i8mm",
        "sme",
        "smei16i64",
        "sve",
        "sve2",
    )
    assert isa("") == ()


def test_the_compilers_of_this_machine() -> None:
    path = shutil.which("gcc")
    need(path, "no C compiler: apt-get install gcc")
    assert path
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    told = [row for row in host(os.environ).compilers if row.startswith(os.path.realpath(path) + ": ")]
    # `cc` may be the same file, and names itself by what it was started as.
    assert [row.partition(": ")[2].partition(" ")[2] for row in told] == [said.partition(" ")[2]]


def test_compilers_are_those_on_path(tmp_path: Path) -> None:
    """One file is one compiler, whatever links lead to it; what does not answer or hangs is there all the same."""
    program(tmp_path / "real/gcc-13", "echo 'gcc (Example 13.1) 13.1.0'; echo 'Copyright'")
    for name in ("gcc", "cc"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(tmp_path / "real/gcc-13")
    program(tmp_path / "bin/clang", "exit 3")
    program(
        tmp_path / "usr/local/cuda/bin/nvcc",
        "echo 'nvcc: Cuda compiler driver'; echo 'Cuda compilation tools, release 13.0, V13.0.88'",
    )
    assert compilers({"PATH": str(tmp_path / "bin")}, tmp_path) == (
        f"{tmp_path}/bin/clang: does not say its version",
        f"{tmp_path}/real/gcc-13: gcc (Example 13.1) 13.1.0",
        f"{tmp_path}/usr/local/cuda/bin/nvcc: Cuda compilation tools, release 13.0, V13.0.88",
    )
    assert compilers({"PATH": str(tmp_path / "empty")}, tmp_path / "empty") == ()


def test_a_wrapper_goes_by_the_name_it_was_called_by(tmp_path: Path) -> None:
    program(tmp_path / "real/ccache", 'case "$0" in *gcc) echo gcc 12;; *clang) echo clang 16;; esac')
    (tmp_path / "bin").mkdir()
    for name in ("gcc", "clang"):
        (tmp_path / "bin" / name).symlink_to(tmp_path / "real/ccache")
    assert compilers({"PATH": str(tmp_path / "bin")}, tmp_path) == (
        f"{tmp_path}/bin/clang: clang 16",
        f"{tmp_path}/bin/gcc: gcc 12",
    )


def test_a_compiler_that_was_upgraded_is_asked_again(tmp_path: Path) -> None:
    program(tmp_path / "bin/gcc", "echo gcc 12")
    assert compilers({"PATH": str(tmp_path / "bin")}, tmp_path) == (f"{tmp_path}/bin/gcc: gcc 12",)
    program(tmp_path / "bin/gcc", "echo gcc 13.1")
    assert compilers({"PATH": str(tmp_path / "bin")}, tmp_path) == (f"{tmp_path}/bin/gcc: gcc 13.1",)


def test_cores_that_a_container_is_granted(tmp_path: Path) -> None:
    """Version 2: the tightest of a group and those above it."""
    root = files(tmp_path, {"proc/self/cgroup": "0::/pod/one\n", "sys/fs/cgroup/pod/one/cpu.max": "max 100000\n"})
    assert quota(root) is None
    files(root, {"sys/fs/cgroup/pod/cpu.max": "250000 100000\n"})
    assert quota(root) == 2500
    files(root, {"sys/fs/cgroup/pod/one/cpu.max": "50000 100000\n"})
    assert quota(root) == 500


def test_cores_inside_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    root = files(tmp_path, {"proc/self/cgroup": "0::/../../elsewhere\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"})
    assert quota(root) == 1500


def test_cores_by_version_1(tmp_path: Path) -> None:
    root = files(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/x\n2:cpu,cpuacct:/docker/ab\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert quota(root) == 3000


@pytest.mark.parametrize("text", ["", "nonsense", "0::/x", "0::/x\n1:cpu"])
def test_no_limit_is_told(tmp_path: Path, text: str) -> None:
    assert quota(files(tmp_path, {"proc/self/cgroup": text})) is None


def test_an_arm_processor_by_its_numbers(tmp_path: Path) -> None:
    rows = "processor\t: 0\nFeatures\t: fp asimd aes sve2 bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    here = host(root=files(tmp_path, {"proc/cpuinfo": rows}))
    assert (here.cpu, here.isa) == ("CPU implementer 0x41, CPU part 0xd4f", ("asimd", "bf16", "sve2"))
