"""Facts from a small NVML with the functions of the real one. No machine of the tests has NVIDIA's driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from repro_env.environment.machine.nvml import Gpu, Nvidia
from tests.fakes import nvml


def read(directory: Path) -> Nvidia:
    """What a new process reads if the loader finds NVML in the directory. It is loaded once for the life of a process."""
    code = "import sys, msgspec; from repro_env.environment.machine.nvml import read; sys.stdout.buffer.write(msgspec.json.encode(read()))"
    env = {**os.environ, "LD_LIBRARY_PATH": str(directory)}
    return msgspec.json.decode(subprocess.run([sys.executable, "-c", code], env=env, stdout=-1, check=True).stdout, type=Nvidia)


def test_nvml_reports_the_driver_and_each_gpu(tmp_path: Path) -> None:
    nvml.build(tmp_path, [("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA GeForce RTX 5090", "12.0")])
    assert read(tmp_path) == Nvidia("580.95.05", (Gpu("NVIDIA H100 80GB HBM3", "9.0"), Gpu("NVIDIA GeForce RTX 5090", "12.0")))


def test_a_gpu_that_nvml_cannot_read_still_counts(tmp_path: Path) -> None:
    nvml.build(tmp_path, [("", "9.0"), ("NVIDIA H100 80GB HBM3", "")])
    assert read(tmp_path).gpus == (Gpu("a GPU that NVML cannot read"), Gpu("NVIDIA H100 80GB HBM3"))


def test_there_are_no_facts_without_a_driver(tmp_path: Path) -> None:
    """NVML_ERROR_LIB_RM_VERSION_MISMATCH (18): the library is newer than the loaded kernel module."""
    assert read(tmp_path) == Nvidia()
    nvml.build(tmp_path, [("NVIDIA H100 80GB HBM3", "9.0")], error=18)
    assert read(tmp_path) == Nvidia()
