"""GPU facts from a fake NVML library, which reads its answers from a table, and from recorded trees of AMD's files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from repro_env.environment.machine import amd, gpu, nvidia
from repro_env.schema import codec
from repro_env.schema.accelerator import Accelerators, Device, VisibleDevice
from tests.parts import need

DENIED = "Insufficient Permissions"
NVML = Path(__file__).parents[2] / "fakes" / "nvml"
AMD = Path(__file__).parents[2] / "fakes" / "amd"
KERNEL = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22)  Wed Jul 30 2025\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)


def library(directory: Path, *options: str, name: str = "libnvidia-ml.so.1") -> Path:
    """Build the fake library in a directory with the machine's compiler."""
    need(shutil.which("gcc"), "no C compiler: apt-get install gcc")
    directory.mkdir(exist_ok=True)
    built = directory / name
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", *options, "-o", built, NVML / "nvml.c"], check=True)
    if name != "libnvidia-ml.so.1":
        (directory / "libnvidia-ml.so.1").symlink_to(name)
    return directory


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("nvml"), name="libnvidia-ml.so.580.65.06")


def query(directory: Path, table: Path | str, root: Path) -> Accelerators:
    if isinstance(table, str):
        (root / "table").write_text(table)
        table = root / "table"
    found = gpu.accelerators({**os.environ, "LD_LIBRARY_PATH": str(directory), "FAKE_NVML": str(table)}, root)
    assert codec.decode(codec.canonical(found), Accelerators, where="") == found
    return found


def with_driver(root: Path, version: str) -> Path:
    """Return a root directory whose kernel has the driver loaded."""
    path = root / "proc" / "driver" / "nvidia" / "version"
    path.parent.mkdir(parents=True)
    path.write_text(KERNEL.format(version))
    return root


def tree(name: str, root: Path) -> Path:
    path = root / "x"
    for line in (AMD / f"{name}.tree").read_text().splitlines(keepends=True):
        if line.startswith("== "):
            path = root / line[3:].strip()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        elif not line.startswith("#"):
            with path.open("a") as file:
                file.write(line)
    return root


def test_two_gpus(nvml: Path, tmp_path: Path) -> None:
    found = query(nvml, NVML / "h100x2.table", tmp_path)
    assert (found.driver, found.newest, found.why, found.unknown) == ("580.65.06", "13.0", "", ())
    first, second = found.devices
    assert first == Device(
        index=0, vendor="nvidia", name="NVIDIA H100 80GB HBM3", architecture="9.0", memory=85520809984, partition="off", ecc=True,
        uuid=first.uuid,
    )  # fmt: skip
    assert first.uuid != second.uuid
    assert b"11111111" not in codec.canonical(found)


def test_mig_instances_are_separate_devices(nvml: Path, tmp_path: Path) -> None:
    """The name of an instance contains its profile; very old drivers leave it out."""
    gpu_device, large, small = query(nvml, NVML / "mig.table", tmp_path).devices
    assert (gpu_device.instance, gpu_device.partition, gpu_device.unknown) == (None, "on", ())
    assert (large.index, large.instance, large.partition) == (0, 0, "3g.20gb")
    assert (small.index, small.instance, small.partition) == (0, 2, "on")
    assert len({gpu_device.uuid, large.uuid, small.uuid}) == 3
    assert (large.memory, large.ecc, large.unknown) == (20937965568, True, ())


def test_a_mig_instance_without_permission_is_unknown(nvml: Path, tmp_path: Path) -> None:
    (device,) = query(nvml, "count 1\n0.name A100\n0.mig 1\n0.instances 7\n0.3.name !4", tmp_path).devices
    assert [line for line in device.unknown if line.startswith("instance")] == [f"instance 3: {DENIED}"]


def test_an_old_driver_and_an_old_gpu(tmp_path: Path) -> None:
    """Some functions are missing in the library, some are not supported by the device, and one is not permitted."""
    found = query(library(tmp_path / "old", "-DOLD"), NVML / "old.table", tmp_path)
    first, second = found.devices
    assert (found.driver, found.newest) == ("418.87.00", "")
    assert found.unknown == ("cuda: Function Not Found",)
    assert (first.name, first.architecture, first.partition, first.units, first.ecc) == ("Tesla K80", "3.7", "", None, None)
    assert first.unknown == ("ecc: Not Supported",)
    assert second.uuid is None
    assert second.unknown == (f"uuid: {DENIED}",)


def test_a_device_that_fails_does_not_affect_others(nvml: Path, tmp_path: Path) -> None:
    """The second device has no handle, and all queries of the third fail."""
    found = query(nvml, NVML / "lost.table", tmp_path)
    assert [device.index for device in found.devices] == [0, 2]
    assert found.devices[0].unknown == ()
    assert found.unknown == ("GPU 1: GPU is lost",)
    last = found.devices[1]
    assert (last.name, last.memory, last.uuid) == ("", None, None)
    assert {line.split(":")[0] for line in last.unknown} == {"name", "capability", "memory", "uuid", "ecc", "mig"}


@pytest.mark.parametrize(
    ("table", "module", "why"),
    [
        (
            "start !9",
            "",
            "NVIDIA's library is installed, but its driver is not loaded (no GPU, or the kernel module nvidia is missing)",
        ),
        ("start !9", "570.86.15", "NVIDIA's driver 570.86.15 did not start: Driver Not Loaded"),
        (
            "start !18",
            "570.86.15",
            ("NVIDIA's library does not match the driver in the kernel (570.86.15); restart the machine to complete the upgrade"),
        ),
        ("start !4", "570.86.15", f"NVIDIA's driver 570.86.15 did not start: {DENIED}"),
        ("start !1", "", "NVIDIA's driver did not start: Uninitialized"),
        ("start !77", "", "NVIDIA's driver did not start: fake"),
        ("driver 580.1\ncount 0", "", "NVIDIA's driver 580.1 found no GPU"),
        ("driver 580.1\ncount !999", "", "no GPU responds: cuda: Not Supported; number of GPUs: Unknown Error"),
        (
            "count 1\n0.handle !4",
            "",
            f"no GPU responds: driver: Not Supported; cuda: Not Supported; GPU 0: {DENIED}",
        ),
    ],
)
def test_the_reason_why_there_is_no_device(nvml: Path, tmp_path: Path, table: str, module: str, why: str) -> None:
    found = query(nvml, table, with_driver(tmp_path, module) if module else tmp_path)
    assert found.devices == ()
    assert found.why == why
    assert found.driver == (module or ("580.1" if "580.1" in table else ""))


def test_the_reason_on_a_machine_without_drivers(tmp_path: Path) -> None:
    found = nvidia.decide(nvidia.read(['{"code": 12, "error": "", "end": true}']), "")
    assert found.why == "no NVIDIA driver: neither its library (libnvidia-ml.so.1) nor its kernel module was found"
    assert gpu.join(found, amd.accelerators(tmp_path)).why == found.why + "; no AMD driver is loaded"


def test_the_reason_in_a_container_without_the_library(tmp_path: Path) -> None:
    found = nvidia.decide(nvidia.read(['{"code": 12, "end": true}']), KERNEL.format("535.54.03"))
    assert found.driver == "535.54.03"
    assert "was not found; if this is a container, start it with GPU support" in found.why


def test_the_reason_with_a_damaged_library(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    found = query(tmp_path, "", tmp_path)
    assert found.devices == ()
    assert "libnvidia-ml.so.1" in found.why


def test_a_driver_that_hangs_is_stopped(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def within(seconds: int) -> Accelerators:
        monkeypatch.setattr(nvidia, "TIMEOUT", float(seconds))
        began = time.monotonic()
        found = query(nvml, "driver 580.1\ncount 2\n0.name first\n1.name hang", tmp_path)
        assert time.monotonic() - began < seconds + 60, "the driver hangs longer"
        return found

    seconds, found = 2, within(2)
    if not found.devices:  # a busy machine may need more time for the first GPU
        seconds, found = 30, within(30)
    assert [device.name for device in found.devices] == ["first"]
    assert found.unknown[-1] == f"incomplete: the driver did not answer within {seconds} s (GPU 1)"
    monkeypatch.setattr(nvidia, "TIMEOUT", 2.0)
    assert query(nvml, "start hang", tmp_path).why == "the driver did not answer within 2 s"


def test_a_driver_that_crashes_is_reported(nvml: Path, tmp_path: Path) -> None:
    assert query(nvml, "driver 1.2\ncount 1\n0.handle crash", tmp_path).why == "the query of the driver crashed (GPU 0)"
    found = query(nvml, "count 2\n0.name first\n1.memory crash", tmp_path)
    assert [device.name for device in found.devices] == ["first"]
    assert found.unknown[-1] == "incomplete: the query of the driver crashed (GPU 1)"


def test_invalid_lines_are_ignored() -> None:
    answers = nvidia.read(["WARNING: a library prints", "{", "[]", '"x"', "3", '{"count": 1}', '{"device": "x"}'])
    assert answers == nvidia.Answers(count=1)


def test_a_name_that_is_not_text_is_unknown(nvml: Path, tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(b"count 1\n0.name caf\xe9 \x07\n0.uuid x")
    (device,) = query(nvml, tmp_path / "table", tmp_path).devices
    assert device.name == ""
    assert any(line.startswith("name: UnicodeDecodeError") for line in device.unknown)


def test_amd_gpus(tmp_path: Path) -> None:
    found = amd.accelerators(tree("mi300x2", tmp_path))
    assert (found.amdgpu, found.rocm, found.driver, found.why, found.unknown) == ("6.12.12", "6.4.1-83", "", "", ())
    first, second = found.devices
    assert first == Device(
        index=0, vendor="amd", name="AMD Instinct MI300X OAM", architecture="gfx942", memory=206141652992, partition="SPX/NPS1", ecc=True,
        uuid=first.uuid,
    )  # fmt: skip
    assert second.index == 1
    assert first.uuid != second.uuid


def test_amd_gpus_that_a_container_does_not_see_are_unknown(tmp_path: Path) -> None:
    found = amd.accelerators(tree("hidden", tmp_path))
    assert (found.amdgpu, found.rocm) == ("of the kernel", "")
    (device,) = found.devices
    assert (device.name, device.architecture, device.memory) == ("aldebaran", "gfx90a", 68702699520)
    assert (device.partition, device.ecc, device.uuid) == ("", None, None)
    assert device.unknown == ("uuid: the device has none",)
    assert found.unknown == ("AMD node 1: its properties cannot be read here",)


def test_architectures_have_amd_names() -> None:
    assert [amd.architecture(version) for version in (90402, 90010, 110501, 120001, 100306)] == [
        "gfx942", "gfx90a", "gfx1151", "gfx1201", "gfx1036",
    ]  # fmt: skip


def test_gpus_of_both_vendors_are_listed(nvml: Path, tmp_path: Path) -> None:
    """A desktop may have an integrated AMD GPU and an NVIDIA card. If the card fails, this is still reported."""
    root = tree("hidden", tmp_path)
    found = query(nvml, NVML / "h100x2.table", root)
    assert [(device.vendor, device.index) for device in found.devices] == [("nvidia", 0), ("nvidia", 1), ("amd", 0)]
    assert (found.driver, found.amdgpu, found.why) == ("580.65.06", "of the kernel", "")
    broken = query(nvml, "start !18", with_driver(root, "570.86.15"))
    assert [device.vendor for device in broken.devices] == ["amd"]
    assert "restart the machine" in broken.unknown[-1]


def test_torch_reports_the_number_of_units(nvml: Path, tmp_path: Path) -> None:
    found = query(nvml, NVML / "h100x2.table", tmp_path)
    h100 = VisibleDevice(name="NVIDIA H100 80GB HBM3", architecture="9.0", units=132, memory=1)
    assert [device.units for device in gpu.with_torch(found, (h100, h100)).devices] == [132, 132]
    for visible in (
        (),
        (h100, VisibleDevice(name=h100.name, architecture="9.0", units=114, memory=1)),
        (VisibleDevice(name="NVIDIA H200", architecture="9.0", units=132, memory=1),),
    ):
        assert gpu.with_torch(found, visible) == found


def test_torch_reports_the_features_of_an_amd_architecture(tmp_path: Path) -> None:
    found = amd.accelerators(tree("mi300x2", tmp_path))
    first = VisibleDevice(name="AMD Instinct MI300X", architecture="gfx942:sramecc+:xnack-", units=304, memory=1)
    assert {device.architecture for device in gpu.with_torch(found, (first,)).devices} == {"gfx942:sramecc+:xnack-"}
    second = VisibleDevice(name="AMD Instinct MI300X", architecture="gfx942:sramecc+:xnack+", units=304, memory=1)
    assert {device.architecture for device in gpu.with_torch(found, (first, second)).devices} == {"gfx942"}


def test_values_of_torch_are_not_used_for_a_partitioned_gpu(nvml: Path, tmp_path: Path) -> None:
    found = query(nvml, NVML / "mig.table", tmp_path)
    seen = VisibleDevice(name="NVIDIA A100-SXM4-40GB", architecture="8.0", units=14, memory=1)
    assert gpu.with_torch(found, (seen,)) == found


def test_the_facts_of_this_machine_can_be_stored(tmp_path: Path) -> None:
    """The result has either devices or a reason."""
    found = gpu.accelerators()
    assert bool(found.devices) != bool(found.why)
    assert codec.decode(codec.canonical(found), Accelerators, where="") == found
