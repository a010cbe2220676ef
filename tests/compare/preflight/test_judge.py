"""Verdicts over pairs of a captured environment and a machine, which were written from the sources that they name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.compare.preflight.compatibility import compatibility, version
from repro_env.compare.preflight.finding import VERDICTS, Captured, Disk, Finding, Machine, Verdict, worst
from repro_env.compare.preflight.judge import judge
from repro_env.environment.machine.nvml import Gpu
from repro_env.schema.environment import Host
from repro_env.schema.frameworks import Device, Frameworks, Library, Threads
from tests.parts import need

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

H100 = "NVIDIA H100 80GB HBM3"
ISA = ("avx", "avx2", "avx512f", "bmi1", "bmi2", "f16c", "fma", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
HOST = Host(
    os="Debian GNU/Linux 12 (bookworm)", kernel="Linux 6.1.0-18-amd64", machine="x86_64", cpu="Intel(R) Xeon(R) Gold 6338",
    isa=ISA, cores=8, memory=64 << 30, nvidia="580.95.05",
)  # fmt: skip
CAPTURED = Captured(architecture="amd64", host=HOST, frameworks=Frameworks(), packages={"libc6": "2.36-9+deb12u10"})
DISK = Disk(path="/store", free=10**12, free_inodes=10**6, needed=10**9, needed_inodes=10**4)
MACHINE = Machine(architecture="amd64", host=HOST, gpus=(), shm=32 << 30, disk=DISK)


class Wheel(msgspec.Struct, forbid_unknown_fields=True):
    torch: str
    cuda: str
    architectures: str
    source: str


class Pair(msgspec.Struct, forbid_unknown_fields=True):
    torch: str
    driver: str
    gpus: list[tuple[str, str]]
    driver_verdict: Verdict
    kernel_verdict: Verdict
    source: str
    packages: dict[str, str] = {}


class Table(msgspec.Struct, forbid_unknown_fields=True):
    sources: dict[str, str]
    wheel: list[Wheel]
    pair: list[Pair]


TABLE = msgspec.convert(tomllib.loads(Path(__file__).with_name("pairs.toml").read_text()), Table)
WHEELS = {wheel.torch: wheel for wheel in TABLE.wheel}


def with_gpus(*gpus: tuple[str, str], driver: str = "580.95.05") -> Machine:
    return msgspec.structs.replace(
        MACHINE, gpus=tuple(Gpu(*gpu) for gpu in gpus), host=msgspec.structs.replace(HOST, nvidia=driver)
    )


def with_torch(names: tuple[str, ...] = (), *, cuda: str = "13.0", architectures: str = "sm_90") -> Captured:
    devices = tuple(Device(name=name, architecture="9.0", units=132, memory=80 << 30) for name in names)
    frameworks = Frameworks(torch="2.13.0", cuda=cuda, architectures=tuple(architectures.split()), devices=devices)
    return msgspec.structs.replace(CAPTURED, frameworks=frameworks)


def find(findings: tuple[Finding, ...], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


@pytest.mark.parametrize(
    "pair", TABLE.pair, ids=lambda pair: f"{pair.torch} driver {pair.driver or 'unknown'} {[gpu[0] for gpu in pair.gpus]}"
)
def test_driver_and_kernels_have_the_verdict_of_the_source(pair: Pair) -> None:
    wheel = WHEELS[pair.torch]
    captured = with_torch(cuda=wheel.cuda, architectures=wheel.architectures)
    captured = msgspec.structs.replace(captured, packages=captured.packages | pair.packages)
    findings = judge(captured, with_gpus(*pair.gpus, driver=pair.driver))
    assert find(findings, "GPU driver").verdict == pair.driver_verdict
    assert worst(tuple(finding for finding in findings if finding.name == "compute capability")) == pair.kernel_verdict
    assert all(finding.why for finding in findings if finding.verdict != "ok"), "each verdict has its reason"
    assert all(finding.fix for finding in findings if finding.verdict == "blocked"), "what blocks has a fix"


def test_the_pairs_are_many_and_each_has_a_source() -> None:
    assert len(TABLE.pair) >= 40
    assert {pair.source for pair in TABLE.pair} <= set(TABLE.sources)
    assert {pair.driver_verdict for pair in TABLE.pair} == {pair.kernel_verdict for pair in TABLE.pair} == set(VERDICTS)
    assert len({(pair.torch, pair.driver, *pair.gpus, *pair.packages) for pair in TABLE.pair}) == len(TABLE.pair)


def test_every_row_of_the_compatibility_table_has_a_source() -> None:
    table = compatibility()
    rows: tuple[Any, ...] = (
        *table.family, *table.forward, *table.kind, *table.cubin, *table.family_specific, *table.released, *table.wheel, *table.libc,
        *table.baseline, table.toolkits, table.shm,
    )  # fmt: skip
    used = {row.source for row in rows} | set(table.toolkits.sources.values())
    assert used | {"cubin", "forward", "minor", "notes"} == set(table.sources)
    families = {row.cuda: row.driver for row in table.family}
    for cuda, driver in table.toolkits.driver.items():
        major = cuda.partition(".")[0]
        assert major not in families or version(driver) >= version(families[major])[:1], f"CUDA {cuda} before its family"


def test_the_compatibility_table_are_not_older_than_the_installed_torch() -> None:
    """A newer PyTorch in the environment of the trainers brings wheels for a CUDA, or cubins, that the table has to know."""
    directory = next(iter(Path(__file__).parents[3].glob("build/trainers/lib/python3*/site-packages/torch")), None)
    need(directory is not None, "the environment of the trainers: make trainers")
    assert directory is not None
    installed = re.search(r"__version__ = '(\d+\.\d+)", (directory / "version.py").read_text())
    known = re.match(r"PyTorch (\d+\.\d+)", compatibility().sources["torch"])
    assert installed is not None
    assert known is not None
    assert version(known[1]) >= version(installed[1]), (
        f"compatibility.toml is of PyTorch {known[1]}, but {installed[1]} is installed"
    )
    table = (directory / "cuda/__init__.py").read_text().partition("PYTORCH_RELEASES_CODE_CC")[2].partition("\n}")[0]
    wheels = set(re.findall(r'"(\d+\.\d+)": \{', table))
    assert wheels == {row.cuda for row in compatibility().wheel} <= compatibility().toolkits.driver.keys()


def test_the_compatibility_table_for_cubins_are_those_of_the_installed_torch() -> None:
    """The trainers' PyTorch has the table from which ours was made."""
    text = next(iter(Path(__file__).parents[3].glob("build/trainers/lib/python3*/site-packages/torch/cuda/__init__.py")), None)
    if text is None or "DEVICE_REQUIREMENT" not in (source := text.read_text()):
        pytest.skip("the environment of the trainers has no torch with this table")
    table = compatibility()
    for row in table.wheel:
        assert f'"{row.cuda}": {{' in source
    for cubin in table.cubin:
        number = cubin.code.replace(".", "")
        values = ", ".join(value.replace(".", "") for value in cubin.only or cubin.excluded)
        expected = f"_CompatSet({{{values}}})" if cubin.only else f"_CompatInterval(start={number}, exclude={{{values}}})"
        assert f"    {number}: {expected},\n" in source
    assert source.count("exclude={") + source.count("_CompatSet({") == len(table.cubin)


def test_the_same_machine_is_ok() -> None:
    findings = judge(with_torch((H100, H100)), with_gpus((H100, "9.0"), (H100, "9.0")))
    assert {finding.verdict for finding in findings} == {"ok"}
    assert [finding.name for finding in findings] == [
        "architecture", "kernel", "CPU", "CPU flags", "cores and threads", "GPUs", "GPU driver", "compute capability", "/dev/shm",
        "disk",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "here"),
    [
        ((), "none"),
        (((H100, "9.0"),), H100),
        (((H100, "9.0"),) * 4, f"4 x {H100}"),
        ((("NVIDIA H200", "9.0"),) * 2, "2 x NVIDIA H200"),
    ],
)
def test_other_gpus_or_another_number_may_change_numbers(gpus: tuple[tuple[str, str], ...], here: str) -> None:
    findings = judge(with_torch((H100, H100)), with_gpus(*gpus))
    finding = find(findings, "GPUs")
    assert (finding.captured, finding.here, finding.verdict) == (f"2 x {H100}", here, "numerics may differ")
    assert worst(findings) == "numerics may differ"


def test_the_model_of_a_mig_device_is_unknown() -> None:
    machine = msgspec.structs.replace(MACHINE, gpus=(Gpu(H100, "9.0", is_model=False),))
    findings = judge(with_torch((f"{H100} MIG 1g.10gb",)), machine)
    assert (find(findings, "GPUs").verdict, find(findings, "compute capability").verdict) == ("unknown", "ok")


def test_gpus_that_the_run_does_not_use_do_not_block_it() -> None:
    """The driver is too old for CUDA 13.0, but `--gpus none` was given."""
    findings = judge(with_torch((H100,)), with_gpus(driver="470.57.02"))
    assert worst(findings) == "numerics may differ"
    assert not {"GPU driver", "compute capability"} & {finding.name for finding in findings}
    assert worst(judge(with_torch(), with_gpus(driver="470.57.02"))) == "ok"


def test_gpus_of_a_run_that_was_captured_without_them_are_checked() -> None:
    """Captured on a login node."""
    assert find(judge(with_torch(), with_gpus((H100, "9.0"))), "GPUs").verdict == "numerics may differ"
    assert find(judge(with_torch(), with_gpus((H100, "9.0"), driver="550.54.15")), "GPU driver").verdict == "blocked"


@pytest.mark.parametrize(
    "frameworks",
    [
        Frameworks(
            torch="2.9.0+rocm6.4",
            devices=(Device(name="AMD Instinct MI300X", architecture="gfx942:sramecc+:xnack-", units=304, memory=1),),
        ),
        Frameworks(torch="2.9.0", devices=(Device(name=H100, architecture="9.0", units=132, memory=1),)),
        Frameworks(libraries=(Library(name="cudart", path="/opt/env/lib/libcudart.so.12"),)),
    ],
    ids=["ROCm", "a torch that does not name its CUDA", "JAX"],
)
def test_a_runtime_without_facts_is_unknown(frameworks: Frameworks) -> None:
    findings = judge(msgspec.structs.replace(CAPTURED, frameworks=frameworks), with_gpus((H100, "9.0"), driver="575.57.08"))
    assert find(findings, "GPU driver").verdict == "unknown"


@pytest.mark.parametrize(
    ("cuda", "architectures", "packages", "driver"),
    [
        ("14.0", "sm_90", {}, "650.10"),
        ("13.0", "sm_90", {"cuda-compat-13-0": "580.95.05-1"}, "535.161.07"),
        ("12.8", "compute_80", {}, "570.26"),
    ],
    ids=["a CUDA without a row", "forward compatibility", "PTX"],
)
def test_a_driver_with_which_torch_found_the_gpus_at_capture_is_ok(
    cuda: str, architectures: str, packages: dict[str, str], driver: str
) -> None:
    captured = with_torch((H100,), cuda=cuda, architectures=architectures)
    host = msgspec.structs.replace(HOST, nvidia=driver)
    captured = msgspec.structs.replace(captured, host=host, packages=captured.packages | packages)
    assert worst(judge(captured, with_gpus((H100, "9.0"), driver=driver))) == "ok"
    assert worst(judge(captured, with_gpus((H100, "9.0"), driver=f"{driver}.1"))) != "ok", "another driver"
    assert worst(judge(captured, with_gpus(("NVIDIA H200", "9.0"), driver=driver))) != "ok", "another GPU"


def test_the_fix_for_missing_kernels_names_wheels_that_have_them() -> None:
    captured = with_torch(architectures="sm_75 sm_80 sm_86 sm_90 sm_100 sm_120")
    finding = find(judge(captured, with_gpus(("Tesla V100-SXM2-16GB", "7.0"))), "compute capability")
    assert finding.why == "torch 2.13.0 has no kernels for this GPU"
    assert finding.fix == "use a GPU of the list, or capture an environment with torch 2.13 for CUDA 12.6"


def test_another_architecture_blocks() -> None:
    finding = find(judge(CAPTURED, msgspec.structs.replace(MACHINE, architecture="arm64")), "architecture")
    assert (finding.captured, finding.here, finding.verdict) == ("amd64", "arm64", "blocked")


@pytest.mark.parametrize(
    ("libc", "kernel", "verdict"),
    [
        ({"libc6": "2.36-9+deb12u10"}, "Linux 3.10.0-1160.el7.x86_64", "ok"),
        ({"glibc": "2.34-100.el9_4.2"}, "Linux 2.6.32-754.el6.x86_64", "blocked"),
        ({"glibc": "2.17-326.el7"}, "Linux 6.1.0-18-amd64", "ok"),
        ({"glibc": "2.17-326.el7"}, "Linux 5.15.0-100-generic", "unknown"),
        ({"libc6": "2.43-7"}, "Linux 5.15.0-100-generic", "ok"),
        ({"libc6": "2.99-1"}, "Linux 6.2.0", "ok"),
        ({"libc6": "2.99-1"}, "Linux 5.15.0-100-generic", "unknown"),
        ({}, "Linux 5.15.0-100-generic", "unknown"),
    ],
)
def test_the_kernel_must_be_new_enough_for_the_c_library_of_the_image(
    libc: dict[str, str], kernel: str, verdict: Verdict
) -> None:
    """A C library without a row runs on the kernel of the capture and on later ones."""
    machine = msgspec.structs.replace(MACHINE, host=msgspec.structs.replace(HOST, kernel=kernel))
    assert find(judge(msgspec.structs.replace(CAPTURED, packages=libc), machine), "kernel").verdict == verdict


@pytest.mark.parametrize(
    ("libc", "isa", "verdict", "here"),
    [
        ("2.36-9", ISA, "ok", "the same"),
        ("2.36-9", (*ISA, "amx_bf16"), "numerics may differ", "also amx_bf16"),
        ("2.36-9", tuple(set(ISA) - {"avx512f"}), "numerics may differ", "without avx512f"),
        ("2.34-100.el9_4.2", tuple(set(ISA) - {"avx2"}), "numerics may differ", "without avx2"),
        ("2.34-100.el9_4.2", tuple(set(ISA) - {"sse4_2"}), "blocked", "without sse4_2"),
        ("2.39-38.el10", tuple(set(ISA) - {"avx2"}), "blocked", "without avx2"),
    ],
)
def test_flags_of_the_cpu(libc: str, isa: tuple[str, ...], verdict: Verdict, here: str) -> None:
    """RHEL 9 requires x86-64-v2, and RHEL 10 x86-64-v3."""
    captured = msgspec.structs.replace(CAPTURED, packages={"glibc": libc})
    finding = find(judge(captured, msgspec.structs.replace(MACHINE, host=msgspec.structs.replace(HOST, isa=isa))), "CPU flags")
    assert (finding.verdict, finding.here) == (verdict, here)


def test_another_cpu_may_change_numbers() -> None:
    other = msgspec.structs.replace(HOST, cpu="AMD EPYC 7763 64-Core Processor")
    assert find(judge(CAPTURED, msgspec.structs.replace(MACHINE, host=other)), "CPU").verdict == "numerics may differ"
    unnamed = msgspec.structs.replace(HOST, cpu="")
    assert find(judge(CAPTURED, msgspec.structs.replace(MACHINE, host=unnamed)), "CPU").verdict == "unknown"


def test_cores_only_matter_if_the_captured_threads_are_not_used() -> None:
    frameworks = Frameworks(threads=(Threads(library="openblas", count=8),))
    captured = msgspec.structs.replace(CAPTURED, frameworks=frameworks)
    fewer = msgspec.structs.replace(MACHINE, host=msgspec.structs.replace(HOST, cores=2))
    finding = find(judge(captured, fewer), "cores and threads")
    assert (finding.verdict, finding.why) == ("ok", "the run uses 8 threads on 2 cores, as captured, and is slower")
    off = msgspec.structs.replace(fewer, replays_threads=False)
    assert find(judge(captured, off), "cores and threads").verdict == "numerics may differ"


def test_a_small_dev_shm_is_reported_if_there_is_a_torch() -> None:
    small = msgspec.structs.replace(MACHINE, shm=64 << 20)
    assert find(judge(with_torch(), small), "/dev/shm").verdict == "unknown"
    assert "/dev/shm" not in {finding.name for finding in judge(CAPTURED, small)}


@pytest.mark.parametrize(("free", "inodes", "lacking"), [(10**8, 10**6, "bytes"), (10**12, 10, "inodes")])
def test_a_full_disk_blocks(free: int, inodes: int, lacking: str) -> None:
    disk = msgspec.structs.replace(DISK, free=free, free_inodes=inodes)
    finding = find(judge(CAPTURED, msgspec.structs.replace(MACHINE, disk=disk)), "disk")
    assert (finding.verdict, finding.why) == ("blocked", f"there are not enough {lacking} for the image")
    present = msgspec.structs.replace(disk, needed=0, needed_inodes=0)
    assert find(judge(CAPTURED, msgspec.structs.replace(MACHINE, disk=present)), "disk").verdict == "ok"
