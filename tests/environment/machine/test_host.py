from __future__ import annotations

import os
import platform
from pathlib import Path

from repro_env.environment.machine.host import host, isa
from repro_env.schema import codec
from repro_env.schema.environment import Host


def files(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_facts_of_this_machine_can_be_stored() -> None:
    facts = host()
    assert facts == host()
    assert codec.decode(codec.canonical(facts), Host, where="") == facts
    assert facts.machine == platform.machine()
    assert facts.kernel == f"Linux {os.uname().release}"
    assert facts.cores == len(os.sched_getaffinity(0))
    assert facts.memory > 1 << 27
    assert facts.isa


def test_isa_returns_the_flags_for_numeric_libraries() -> None:
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


def test_an_arm_processor_is_described_by_its_numbers(tmp_path: Path) -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd aes sve2 bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    facts = host(root=files(tmp_path, {"proc/cpuinfo": text}))
    assert (facts.cpu, facts.isa) == ("CPU implementer 0x41, CPU part 0xd4f", ("asimd", "bf16", "sve2"))


def test_gpus_of_both_vendors_are_listed_by_their_drivers(tmp_path: Path) -> None:
    """A desktop may have an integrated AMD GPU and an NVIDIA card. The CPU is a node of AMD's compute driver too."""
    kfd, nvidia = "sys/class/kfd/kfd/topology/nodes", "proc/driver/nvidia"
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22)\nGCC version: gcc\n"
    texts = {
        f"{nvidia}/version": version,
        f"{nvidia}/gpus/0000:07:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 0\nGPU UUID: \t GPU-1\n",
        f"{nvidia}/gpus/0000:0f:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\n",
        f"{kfd}/0/properties": "cpu_cores_count 8\ngfx_target_version 0\n",
        f"{kfd}/1/properties": "gfx_target_version 90402\ndrm_render_minor 129\n",
        f"{kfd}/2/properties": "gfx_target_version 100306\ndrm_render_minor 130\n",
        f"{kfd}/2/name": "raphael\n",
        f"{kfd}/10/properties": "",
        "sys/class/drm/renderD129/device/product_name": "AMD Instinct MI300X\n",
        "sys/module/amdgpu/version": "6.12.12\n",
    }
    facts = host(root=files(tmp_path, texts))
    assert facts.gpus == ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "raphael")
    assert (facts.nvidia, facts.amdgpu) == ("580.159.04", "6.12.12")


def test_a_driver_of_the_kernel_has_no_version(tmp_path: Path) -> None:
    assert host(tmp_path).gpus == ()
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    assert (host(tmp_path).nvidia, host(tmp_path).amdgpu) == ("", "of the kernel")
