"""NVML through a real library that answers from a table, and AMD's files from recorded trees."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from repro_env.capture import amd, gpu, nvidia
from repro_env.model import codec
from repro_env.model.accelerator import Accelerators, Device, Seen
from tests.parts import need

NVML = Path(__file__).parents[1] / "fakes" / "nvml"
AMD = Path(__file__).parents[1] / "fakes" / "amd"
KERNEL = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22)  Wed Jul 30 2025\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)


def library(folder: Path, *options: str, name: str = "libnvidia-ml.so.1") -> Path:
    """The stand-in, built by the machine's compiler."""
    need(shutil.which("gcc"), "no C compiler: apt-get install gcc")
    folder.mkdir(exist_ok=True)
    built = folder / name
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", *options, "-o", built, NVML / "nvml.c"], check=True)
    if name != "libnvidia-ml.so.1":
        (folder / "libnvidia-ml.so.1").symlink_to(name)
    return folder


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("nvml"), name="libnvidia-ml.so.580.65.06")


def ask(folder: Path, table: Path | str, root: Path) -> Accelerators:
    if isinstance(table, str):
        (root / "table").write_text(table)
        table = root / "table"
    found = gpu.accelerators({**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(table)}, root)
    assert codec.decode(codec.canonical(found), Accelerators, where="") == found
    return found


def loaded(root: Path, version: str) -> Path:
    """A root whose kernel has the driver loaded."""
    path = root / "proc" / "driver" / "nvidia" / "version"
    path.parent.mkdir(parents=True)
    path.write_text(KERNEL.format(version))
    return root


def tree(name: str, root: Path) -> Path:
    path = root / "x"
    for row in (AMD / f"{name}.tree").read_text().splitlines(keepends=True):
        if row.startswith("== "):
            path = root / row[3:].strip()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        elif not row.startswith("#"):
            with path.open("a") as file:
                file.write(row)
    return root


def test_two_gpus_on_a_switch(nvml: Path, tmp_path: Path) -> None:
    found = ask(nvml, NVML / "h100x2.table", tmp_path)
    assert (found.driver, found.newest, found.why, found.unknown) == ("580.65.06", "13.0", "", ())
    one, other = found.devices
    assert one == Device(
        index=0, vendor="nvidia", name="NVIDIA H100 80GB HBM3", architecture="9.0", units=132, memory=85520809984,
        partition="off", ecc=True, uuid=one.uuid, topology=("self", "nvlink x2"),
    )  # fmt: skip
    assert other.topology == ("nvlink x2", "self")
    assert one.uuid != other.uuid
    assert b"11111111" not in codec.canonical(found)


def test_two_gpus_on_links_of_their_own_and_on_pcie(nvml: Path, tmp_path: Path) -> None:
    rows = ["count 3", "0.bus 00000000:01:00.0", "1.bus 0000:02:00.0", "2.bus 0000:03:00.0"]
    rows += ["0.link0 0000:02:00.0", "0.link1 off", "0.link2 00000000:02:00.0", "1.link0 00000000:01:00.0"]
    found = ask(nvml, "\n".join([*rows, "0.way1 50", "0.way2 40", "1.way2 20"]), tmp_path)
    # One address in two spellings is one address; the nearer way is told.
    assert [device.topology for device in found.devices] == [
        ("self", "nvlink x2", "node"),
        ("nvlink x1", "self", "pxb"),
        ("node", "pxb", "self"),
    ]


def test_mig_instances_are_devices_of_their_own(nvml: Path, tmp_path: Path) -> None:
    whole, named, counted = ask(nvml, NVML / "mig.table", tmp_path).devices
    assert (whole.instance, whole.partition, whole.units, whole.unknown) == (None, "on", 108, ())
    assert (named.index, named.instance, named.partition, named.units) == (0, 0, "3g.20gb", 42)
    assert (counted.index, counted.instance, counted.partition, counted.units) == (0, 2, "1c.2g.10gb", 14)
    assert len({whole.uuid, named.uuid, counted.uuid}) == 3
    assert (named.memory, named.topology, named.ecc, named.unknown) == (20937965568, (), True, ())


def test_a_mig_instance_that_this_user_may_not_see(nvml: Path, tmp_path: Path) -> None:
    (whole,) = ask(nvml, "count 1\n0.name A100\n0.mig 1\n0.instances 7\n0.3.name !4", tmp_path).devices
    assert [row for row in whole.unknown if row.startswith("instance")] == [
        "instance 3: the driver does not answer this user (no permission on /dev/nvidia*?)"
    ]


def test_an_old_driver_and_an_old_gpu(tmp_path: Path) -> None:
    """Functions that the library does not have, calls that the device does not have, one that this user may not make."""
    found = ask(library(tmp_path / "old", "-DOLD"), NVML / "old.table", tmp_path)
    one, other = found.devices
    assert (found.driver, found.newest) == ("418.87.00", "")
    assert found.unknown == ("cuda: the driver is too old to tell it",)
    assert (one.name, one.architecture, one.partition, one.units, one.ecc) == ("Tesla K80", "3.7", "", None, None)
    assert one.unknown == ("ecc: the device does not tell it", "units: the driver is too old to tell it")
    assert one.topology == ("self", "pix")
    assert other.uuid is None
    assert other.unknown[1].startswith("uuid: the driver does not answer this user")


def test_one_device_that_fails_leaves_the_others(nvml: Path, tmp_path: Path) -> None:
    """The second does not even give a handle, the third fails every question."""
    found = ask(nvml, NVML / "lost.table", tmp_path)
    assert [device.index for device in found.devices] == [0, 2]
    assert found.devices[0].units == 84
    assert found.devices[0].unknown == ()
    assert found.devices[0].topology == ("self", "", "phb")
    assert found.unknown == ("GPU 1: the GPU is lost: it has fallen off the bus or cannot be reached",)
    last = found.devices[1]
    assert (last.name, last.units, last.memory, last.uuid) == ("", None, None, None)
    assert {row.split(":")[0] for row in last.unknown} >= {"name", "memory", "units", "uuid", "mig", "links"}


def test_units_of_an_unknown_architecture(nvml: Path, tmp_path: Path) -> None:
    (device,) = ask(nvml, "count 1\n0.capability 99.0\n0.cores 5000", tmp_path).devices
    assert device.units is None
    assert "units: 5000 cores, and how many make a multiprocessor is not known for this architecture" in device.unknown


@pytest.mark.parametrize(
    ("table", "module", "why"),
    [
        ("start !9", "", "NVIDIA's library is here, but its driver is not loaded (no GPU, or the module nvidia is missing)"),
        ("start !9", "570.86.15", "NVIDIA's driver 570.86.15 does not start: the driver is not loaded"),
        (
            "start !18",
            "570.86.15",
            "NVIDIA's library (580.65.06) does not match the driver in the kernel (570.86.15): it was upgraded and needs a restart",
        ),
        (
            "start !4",
            "570.86.15",
            "NVIDIA's driver 570.86.15 does not start: the driver does not answer this user (no permission on /dev/nvidia*?)",
        ),
        ("start !1", "", "NVIDIA's driver does not start: NVML could not be started"),
        ("start !77", "", "NVIDIA's driver does not start: NVML error 77"),
        ("driver 580.1\ncount 0", "", "NVIDIA's driver 580.1 finds no GPU"),
        ("driver 580.1\ncount !999", "", "NVIDIA's driver 580.1 does not count its GPUs: unknown error of the driver"),
        (
            "count 1\n0.handle !4",
            "",
            (
                "no GPU answers: GPU 0: the driver does not answer this user (no permission on /dev/nvidia*?); "
                "cuda: the device does not tell it; driver: the device does not tell it"
            ),
        ),
    ],
)
def test_why_there_is_no_device(nvml: Path, tmp_path: Path, table: str, module: str, why: str) -> None:
    found = ask(nvml, table, loaded(tmp_path, module) if module else tmp_path)
    assert found.devices == ()
    assert found.why == why
    assert found.driver == (module or ("580.1" if "580.1" in table else ""))


def test_no_driver_at_all(tmp_path: Path) -> None:
    """As on a machine without a GPU; a folder without the library stands for the loader's places."""
    found = nvidia.decide(nvidia.read(['{"what": "start", "error": 12}', '{"what": "library", "value": ""}']), "")
    assert found.why == "no NVIDIA driver: neither its library (libnvidia-ml.so.1) nor its kernel module is here"
    assert gpu.join(found, amd.accelerators(tmp_path)).why == found.why + "; no AMD driver in the kernel"


def test_a_container_without_the_library(tmp_path: Path) -> None:
    found = nvidia.decide(nvidia.read(['{"what": "start", "error": 12}']), KERNEL.format("535.54.03"))
    assert found.driver == "535.54.03"
    assert "is not here (a container without GPU support?)" in found.why


def test_a_library_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    found = ask(tmp_path, "", tmp_path)
    assert found.devices == ()
    assert "libnvidia-ml.so.1" in found.why


def test_a_driver_that_hangs(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "TIMEOUT", 2.0)
    began = time.monotonic()
    found = ask(nvml, "driver 580.1\ncount 2\n0.name first\n0.capability 9.0\n0.cores 16896\n1.name hang", tmp_path)
    assert time.monotonic() - began < 10
    assert [(device.name, device.units) for device in found.devices] == [("first", 132), ("", None)]
    assert found.unknown[-1] == "the rest: the driver did not answer within 2 s (GPU 1)"
    assert ask(nvml, "start hang", tmp_path).why == "the driver did not answer within 2 s"


def test_a_driver_that_crashes(nvml: Path, tmp_path: Path) -> None:
    assert ask(nvml, "driver 1.2\ncount 1\n0.handle crash", tmp_path).why == "asking the driver ended with a crash"
    found = ask(nvml, "count 1\n0.name first\n0.memory crash", tmp_path)
    assert [device.name for device in found.devices] == ["first"]
    assert found.unknown[-1] == "the rest: asking the driver ended with a crash (GPU 0)"


def test_noise_and_strange_answers() -> None:
    said = nvidia.read(
        ["WARNING: a library prints", "{", "[]", '"x"', '{"what": "count", "value": 1}', '{"device": "x", "what": "y"}']
    )
    assert said.values == {(-1, -1, "count"): 1}
    assert said.problem == "crash"


def test_names_that_are_no_text(nvml: Path, tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(b"count 1\n0.name caf\xe9 \x07\n0.uuid x")
    (device,) = ask(nvml, tmp_path / "table", tmp_path).devices
    assert device.name == ""
    assert any(row.startswith("name: UnicodeDecodeError") for row in device.unknown)


def test_amd_gpus_of_one_hive(tmp_path: Path) -> None:
    found = amd.accelerators(tree("mi300x2", tmp_path))
    assert (found.amdgpu, found.rocm, found.driver, found.why, found.unknown) == ("6.12.12", "6.4.1-83", "", "", ())
    one, other = found.devices
    assert one == Device(
        index=0, vendor="amd", name="AMD Instinct MI300X OAM", architecture="gfx942", units=304, memory=206141652992,
        partition="SPX/NPS1", ecc=True, uuid=one.uuid, topology=("self", "xgmi"),
    )  # fmt: skip
    assert (other.index, other.topology) == (1, ("xgmi", "self"))
    assert one.uuid != other.uuid


def test_amd_gpus_that_a_container_does_not_see(tmp_path: Path) -> None:
    found = amd.accelerators(tree("hidden", tmp_path))
    assert (found.amdgpu, found.rocm) == ("of the kernel", "")
    (device,) = found.devices
    assert (device.name, device.architecture, device.units, device.memory) == ("aldebaran", "gfx90a", 104, 68702699520)
    assert (device.partition, device.ecc, device.uuid, device.topology) == ("", None, None, ())
    assert device.unknown == ("uuid: the device has none",)
    assert found.unknown == ("AMD node 1: its properties may not be read here",)


def test_architectures_as_amd_names_them() -> None:
    assert [amd.architecture(version) for version in (90402, 90010, 110501, 120001, 100306)] == [
        "gfx942", "gfx90a", "gfx1151", "gfx1201", "gfx1036",
    ]  # fmt: skip


def test_both_vendors(nvml: Path, tmp_path: Path) -> None:
    """A desktop: the processor's own AMD GPU beside NVIDIA's card; and one of the two failing is not silent."""
    root = tree("hidden", tmp_path)
    found = ask(nvml, NVML / "h100x2.table", root)
    assert [(device.vendor, device.index) for device in found.devices] == [("nvidia", 0), ("nvidia", 1), ("amd", 0)]
    assert (found.driver, found.amdgpu, found.why) == ("580.65.06", "of the kernel", "")
    broken = ask(nvml, "start !18", loaded(root, "570.86.15"))
    assert [device.vendor for device in broken.devices] == ["amd"]
    assert "needs a restart" in broken.unknown[-1]


def test_torch_tells_what_an_old_driver_does_not(tmp_path: Path) -> None:
    found = ask(library(tmp_path / "old", "-DOLD"), NVML / "old.table", tmp_path)
    seen = Seen(name="Tesla K80", architecture="3.7", units=13, memory=1)
    assert [device.units for device in gpu.filled(found, (seen, seen)).devices] == [13, 13]
    assert gpu.filled(found, (seen,)).devices[0].unknown == ("ecc: the device does not tell it",)
    for others in (
        (),
        (seen, Seen(name="Tesla K80", architecture="3.7", units=12, memory=1)),
        (Seen(name="K40", architecture="3.7", units=15, memory=1),),
    ):
        assert gpu.filled(found, others) == found


def test_torch_tells_the_features_of_an_amd_architecture(tmp_path: Path) -> None:
    found = amd.accelerators(tree("mi300x2", tmp_path))
    one = Seen(name="AMD Instinct MI300X", architecture="gfx942:sramecc+:xnack-", units=304, memory=1)
    assert {device.architecture for device in gpu.filled(found, (one,)).devices} == {"gfx942:sramecc+:xnack-"}
    other = Seen(name="AMD Instinct MI300X", architecture="gfx942:sramecc+:xnack+", units=304, memory=1)
    assert gpu.filled(found, (one, other)) == found


def test_torch_sees_parts_of_a_divided_gpu(nvml: Path, tmp_path: Path) -> None:
    found = ask(nvml, NVML / "mig.table", tmp_path)
    seen = Seen(name="NVIDIA A100-SXM4-40GB", architecture="8.0", units=14, memory=1)
    assert gpu.filled(found, (seen,)) == found


def test_this_machine(tmp_path: Path) -> None:
    """Whatever it is: an answer, with devices or with a reason."""
    found = gpu.accelerators()
    assert bool(found.devices) != bool(found.why)
    assert codec.decode(codec.canonical(found), Accelerators, where="") == found
