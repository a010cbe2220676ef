from __future__ import annotations

import os
import platform

from repro_env.capture.system import host, isa
from repro_env.model import codec
from repro_env.model.environment import Host


def test_this_machine() -> None:
    here = host()
    assert here == host()
    assert codec.decode(codec.canonical(here), Host, where="") == here
    assert here.machine == platform.machine()
    assert here.kernel == f"Linux {os.uname().release}"
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.memory > 1 << 27
    assert here.isa


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
