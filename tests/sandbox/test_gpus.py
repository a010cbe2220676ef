"""Which GPUs a run gets, decided from facts, and what is read from the files of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.oci import paths
from repro_env.sandbox import cdi, gpus
from repro_env.schema.errors import ReproEnvError, RunError, UsageError
from repro_env.schema.fingerprints import digest_of_name
from repro_env.schema.run import GpuFact, Gpus
from tests.fakes import gpus as fakes

H100 = "NVIDIA H100 80GB HBM3"


def targets(found: Gpus) -> list[str]:
    return [node.target.removeprefix("/dev/") for node in found.nodes]


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("all", "all"),
        ("none", 0),
        ("2", 2),
        ("0,1", "0,1"),
        ("0:1", "0:1"),
        (fakes.UUID.format(1), fakes.UUID.format(1)),
    ],
)
def test_parse_returns_a_number_all_or_a_list(text: str, request_: int | str) -> None:
    assert gpus.parse(text) == request_


@pytest.mark.parametrize("text", ["two", "", "0", "-1", "1025", "0,", "0,,1", "1.5", "GPU 1", "²", "99999"])
def test_parse_refuses_anything_else(text: str) -> None:
    with pytest.raises(UsageError, match="--gpus must be"):
        gpus.parse(text)


def test_without_a_cdi_spec_the_files_of_the_drivers_are_used(tmp_path: Path) -> None:
    root = fakes.nvidia(tmp_path)
    found = gpus.choose("all", gpus.look({}, root))
    assert targets(found) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
    assert {node.source for node in found.nodes} == {f"{root}/dev/{name}" for name in targets(found)}
    library = f"{root}/lib/libcuda.so.580.159.04"
    assert [(file.target, file.source) for file in found.files] == [
        (f"{paths.DRIVER}/libcuda.so.1", library),
        (f"{paths.DRIVER}/libcuda.so.580.159.04", library),
    ]
    assert (found.count, found.env, found.method) == (2, (), "device files and loader cache")
    assert found.facts == tuple(
        GpuFact(name=H100, driver="nvidia 580.159.04", uuid=digest_of_name(fakes.UUID.format(number))) for number in (1, 2)
    )


def test_a_partitioned_gpu_comes_with_its_mig_devices(tmp_path: Path) -> None:
    found = gpus.choose(1, gpus.look({}, fakes.nvidia(tmp_path, mig=True)))
    assert targets(found) == [
        "nvidia-caps/nvidia-cap30",
        "nvidia-caps/nvidia-cap31",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia0",
        "nvidiactl",
    ]
    assert [fact.mig for fact in found.facts] == [("gpu instance 3, compute instance 0",)]


def test_a_cdi_spec_comes_first(tmp_path: Path) -> None:
    root = fakes.with_cdi(fakes.nvidia(tmp_path, mig=True))
    found = gpus.choose("all", gpus.look({}, root))
    assert "nvidia-caps/nvidia-cap30" in targets(found)
    assert "nvidia-modeset" not in targets(found), "it is for graphics, and does not exist here"
    assert [file.target for file in found.files] == [
        f"{paths.DRIVER}/libcuda.so.1",
        f"{paths.DRIVER}/libcuda.so.580.159.04",
        gpus.SMI,
    ], "neither sockets nor anything else"
    assert [(variable.name, variable.value) for variable in found.env] == [("NVIDIA_VISIBLE_DEVICES", "void")]
    assert (found.count, found.method, [fact.name for fact in found.facts]) == (2, "CDI spec", [H100, H100])


@pytest.mark.parametrize(
    ("request_", "visible", "nodes"),
    [
        (1, "", ["nvidia0"]),
        ("1", "", None),
        ("0,1", "", ["nvidia0", "nvidia1"]),
        ("1,0,1", "", ["nvidia0", "nvidia1"]),
        (fakes.UUID.format(2), "", ["nvidia1"]),
        ("all", "1", ["nvidia1"]),
        ("all", "1,0", ["nvidia0", "nvidia1"]),
        ("all", "1,7,0", ["nvidia1"]),
        ("all", "GPU-2222", ["nvidia1"]),
        (1, "1,0", ["nvidia1"]),
    ],
)
def test_requests_and_the_callers_variable_select_gpus(
    tmp_path: Path, request_: int | str, visible: str, nodes: list[str] | None
) -> None:
    machine = gpus.look({"CUDA_VISIBLE_DEVICES": visible} if visible else {}, fakes.nvidia(tmp_path))
    found = gpus.choose(gpus.parse(str(request_)), machine)
    assert [name for name in targets(found) if name[-1].isdigit()] == (nodes or ["nvidia0"])


@pytest.mark.parametrize(
    ("name", "nodes"), [("MIG-33333333-aaaa-bbbb-cccc-0123456789ab", 3), ("0:0", 3), ("1", 1), (fakes.UUID.format(2), 1)]
)
def test_devices_of_a_cdi_spec_have_names(tmp_path: Path, name: str, nodes: int) -> None:
    machine = gpus.look({}, fakes.with_cdi(fakes.nvidia(tmp_path, mig=True)))
    found = gpus.choose(f"{name},{name}", machine)
    assert (found.count, len(found.nodes)) == (1, nodes + 3)
    assert [bool(fact.mig) for fact in found.facts] == [nodes == 3]


def test_a_gpu_that_only_the_cdi_spec_names_is_recorded_by_that_name(tmp_path: Path) -> None:
    """As in WSL2, whose driver lists nothing in /proc."""
    root = fakes.with_cdi(fakes.nvidia(tmp_path, mig=True))
    machine = msgspec.structs.replace(gpus.look({}, root), gpus=())
    assert gpus.choose("1,0:0", machine).facts == (GpuFact(name="nvidia.com/gpu=1"), GpuFact(name="nvidia.com/gpu=0:0"))


def test_a_command_without_isolation_has_the_gpus_that_its_variable_allows(tmp_path: Path) -> None:
    root = fakes.nvidia(tmp_path)
    (root / "etc/ld.so.cache").unlink()
    found = gpus.present(gpus.look({"CUDA_VISIBLE_DEVICES": "1"}, root))
    assert (found.count, found.nodes, found.files) == (1, (), ())
    assert [fact.uuid for fact in found.facts] == [digest_of_name(fakes.UUID.format(2))]


def test_processes_that_share_a_root_see_all_device_files_and_each_uses_its_own_gpu(tmp_path: Path) -> None:
    """The control group of the first process may allow only its own GPU."""
    machine = gpus.look({"CUDA_VISIBLE_DEVICES": "1"}, fakes.nvidia(tmp_path))
    other = f"{tmp_path}/dev/nvidia0"
    assert other in machine.openable
    for openable in (machine.openable, machine.openable - {other}):
        limited = msgspec.structs.replace(machine, openable=openable, visible="CUDA_VISIBLE_DEVICES=1")
        own = gpus.choose("all", msgspec.structs.replace(machine, visible="CUDA_VISIBLE_DEVICES=1"))
        found = gpus.share(own, limited)
        assert targets(found) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
        assert (found.count, found.facts) == (1, own.facts)
        assert [(variable.name, variable.value) for variable in found.env] == [("CUDA_VISIBLE_DEVICES", "1")]
    assert gpus.share(Gpus(), machine) == Gpus()


def test_gpus_of_amd_need_only_device_files(tmp_path: Path) -> None:
    found = gpus.choose("all", gpus.look({}, fakes.amd(tmp_path)))
    assert (targets(found), found.files, found.count) == (["dri/renderD129", "kfd"], (), 1)
    assert found.facts == (GpuFact(name="AMD Instinct MI300X", driver="amdgpu 6.12.12", uuid=digest_of_name("1234567")),)


def test_indices_count_both_vendors_and_only_what_may_be_opened(tmp_path: Path) -> None:
    """Slurm counts the GPUs of a job from 0 too, whichever they are."""
    root = fakes.amd(fakes.nvidia(tmp_path))
    (root / "dev/nvidia0").unlink()
    machine = gpus.look({"CUDA_VISIBLE_DEVICES": "0"}, root)
    assert "nvidia1" in targets(gpus.choose("all", machine))
    assert targets(gpus.choose("1,1", machine)) == ["dri/renderD129", "kfd"]


def no_machine(root: Path) -> dict[str, str]:
    return {}


def no_device_files(root: Path) -> dict[str, str]:
    fakes.nvidia(root, device_files=False)
    return {}


def two_gpus(root: Path) -> dict[str, str]:
    fakes.nvidia(root)
    return {}


def hidden_gpus(root: Path) -> dict[str, str]:
    fakes.nvidia(root)
    return {"CUDA_VISIBLE_DEVICES": "-1"}


def no_library(root: Path) -> dict[str, str]:
    (fakes.nvidia(root) / "etc/ld.so.cache").unlink()
    return {}


def no_memory_driver(root: Path) -> dict[str, str]:
    (fakes.nvidia(root) / "dev/nvidia-uvm").unlink()
    return {}


def old_spec(root: Path) -> dict[str, str]:
    (fakes.with_cdi(fakes.nvidia(root, mig=True)) / "lib/libcuda.so.580.159.04").unlink()
    return {}


def bad_spec(root: Path) -> dict[str, str]:
    fakes.with_cdi(root, fakes.SPEC.read_text().replace("deviceNodes", "deviceNode"))
    return {}


def node_outside_of_dev(root: Path) -> dict[str, str]:
    fakes.with_cdi(root, fakes.SPEC.read_text().replace("path: /dev/nvidia0", "path: /etc/passwd"))
    return {}


def no_yaml(root: Path) -> dict[str, str]:
    fakes.with_cdi(root, "kind: [")
    return {}


@pytest.mark.parametrize(
    ("make", "request_", "words"),
    [
        (no_machine, 1, ["this machine has no GPU", "--gpus 1"]),
        (no_machine, "0,1", ["GPU 0 cannot be used here: this machine has no GPU"]),
        (no_device_files, "all", [f"0: {H100}, 1: {H100}", "may not open", "dev/nvidia0"]),
        (two_gpus, 3, ["--gpus 3", f"a run can use 2 here (0: {H100}, 1: {H100})"]),
        (two_gpus, "0,2", ["GPU 2 cannot be used here", f"0: {H100}, 1: {H100}"]),
        (two_gpus, fakes.UUID.format(3), ["GPU-33333333"]),
        (hidden_gpus, "all", ["CUDA_VISIBLE_DEVICES=-1 hides", H100]),
        (no_library, "all", ["libcuda.so.1", "/etc/ld.so.cache"]),
        (no_memory_driver, "all", ["device file", "dev/nvidia-uvm"]),
        (old_spec, "all", ["names a file that does not exist", "lib/libcuda.so.580.159.04"]),
        (bad_spec, "all", ["cannot be used", "deviceNode", "cdi/nvidia.yaml"]),
        (node_outside_of_dev, "all", ["cannot be used", "nvidia.yaml"]),
        (no_yaml, "all", ["cannot be used", "nvidia.yaml"]),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error_with_names(
    tmp_path: Path, make: Any, request_: int | str, words: list[str]
) -> None:
    environ = make(tmp_path)
    with pytest.raises(RunError) as caught:
        gpus.choose(request_, gpus.look(environ, tmp_path))
    assert isinstance(caught.value, ReproEnvError)
    assert [word for word in words if word not in str(caught.value)] == []
    assert caught.value.hint


def test_cdi_specs_of_other_devices_are_not_read(tmp_path: Path) -> None:
    directory = tmp_path / "etc/cdi"
    directory.mkdir(parents=True)
    (directory / "nic.yaml").write_text("kind: example.com/nic\nsurprise: true\n")
    (directory / "notes.txt").write_text("nothing\n")
    assert cdi.read(tmp_path) == ()


def test_the_directory_for_generated_cdi_specs_comes_first_and_json_is_accepted(tmp_path: Path) -> None:
    for directory, name in (("var/run/cdi", "1"), ("etc/cdi", "2")):
        (tmp_path / directory).mkdir(parents=True)
        spec = {"cdiVersion": "1.1.0", "kind": "nvidia.com/gpu", "devices": [{"name": name, "containerEdits": {}}]}
        (tmp_path / directory / "x.json").write_bytes(msgspec.json.encode(spec))
    (spec_,) = cdi.read(tmp_path)
    assert [device.name for device in spec_.devices] == ["1"]
