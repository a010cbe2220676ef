"""Libraries of drivers. tests/sandbox/test_gpus.py has machines with GPUs."""

from __future__ import annotations

import pytest

from repro_env.environment.machine import gpus


@pytest.mark.parametrize(
    ("path", "driver"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", True),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", True),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.580.159.04", True),
        ("/usr/lib/wsl/lib/libdxcore.so", True),
        ("/usr/lib/x86_64-linux-gnu/libcudart.so.13", False),
        ("/venv/nvidia/cu13/lib/libnvrtc.so.13", False),
        ("/venv/nvidia/cu13/lib/libcudadevrt.a", False),
        ("/opt/rocm/lib/libamdhip64.so.6", False),
    ],
)
def test_is_driver_recognizes_driver_libraries_by_name(path: str, driver: bool) -> None:
    assert gpus.is_driver(path) is driver
