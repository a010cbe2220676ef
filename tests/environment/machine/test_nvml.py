"""Facts from a small NVML with the functions of the real one. No machine of the tests has NVIDIA's driver."""

from __future__ import annotations

from pathlib import Path

from repro_env.environment.machine.nvml import Gpu, Nvidia, read
from tests.fakes import nvml


def test_nvml_reports_the_driver_and_each_gpu(tmp_path: Path) -> None:
    library = nvml.build(tmp_path, [("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA GeForce RTX 5090", "12.0")])
    assert read(str(library)) == Nvidia(
        "580.95.05", (Gpu("NVIDIA H100 80GB HBM3", "9.0"), Gpu("NVIDIA GeForce RTX 5090", "12.0"))
    )


def test_a_gpu_that_nvml_cannot_read_still_counts(tmp_path: Path) -> None:
    library = nvml.build(tmp_path, [("", "9.0"), ("NVIDIA H100 80GB HBM3", "")])
    assert read(str(library)).gpus == (Gpu("a GPU that NVML cannot read"), Gpu("NVIDIA H100 80GB HBM3"))


def test_there_are_no_facts_without_a_driver(tmp_path: Path) -> None:
    """NVML_ERROR_LIB_RM_VERSION_MISMATCH (18): the library is newer than the loaded kernel module."""
    assert read(str(tmp_path / "libnvidia-ml.so.1")) == Nvidia()
    assert read(str(nvml.build(tmp_path, [("NVIDIA H100 80GB HBM3", "9.0")], error=18))) == Nvidia()
