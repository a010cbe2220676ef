"""`doctor SPEC` and the same checks before `exec`, through the installed command.

No machine of ours has a GPU, or another CPU than the one that it was captured on. So the observed part of a real spec is edited, which
no digest covers, and a CDI spec and a small NVML report GPUs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.fakes import gpus as fake_gpus
from tests.fakes import nvml
from tests.parts import need

H100 = "NVIDIA H100 80GB HBM3"
WHEEL = {"torch": "2.13.0+cu130", "cuda": "13.0", "architectures": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]}
DEVICE = {"name": H100, "architecture": "9.0", "units": 132, "memory": 85520809984}


@pytest.fixture
def edit(small: parts.Project) -> Iterator[Callable[[Callable[[dict[str, Any]], object]], None]]:
    """Edits the observed part of the spec. It is restored after the test."""
    path = small.directory / "repro" / "spec.json"
    original = path.read_bytes()

    def apply(change: Callable[[dict[str, Any]], object]) -> None:
        spec = json.loads(original)
        change(spec["observed"])
        path.write_text(json.dumps(spec))

    yield apply
    path.write_bytes(original)


def checks(done: parts.Done) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(done.out)["findings"]}


def test_all_is_ok_where_the_spec_was_captured(small: parts.Project) -> None:
    done = small.run("doctor", "repro")
    assert {line.split()[0] for line in done.out.splitlines()} == {"verdict", "ok"}
    assert checks(small.run("doctor", "repro", "--json"))["disk"]["captured"] == "the image is in the store"
    assert "captured:" not in small.run("exec", "hello.py").err


def test_another_cpu_is_one_warning_and_the_run_goes_well(small: parts.Project, edit: Callable[..., None]) -> None:
    """The edit changes no digest: the image in the store is still that of the spec."""
    edit(lambda observed: observed["host"].update(cpu="Another CPU", isa=["asimd"]))
    done = small.run("doctor", "repro", code=1)
    assert "numerics may differ  CPU " in done.out
    assert "fix: for the same numbers, use a machine with the captured CPU" in done.out
    run = small.run("exec", "-v", "hello.py").err
    (warning,) = [line for line in run.splitlines() if "numbers may differ" in line]
    assert "numbers may differ from the capture: libraries may choose other code for another CPU (CPU here: " in warning
    assert warning.endswith("; captured: Another CPU); `repro-env doctor repro` shows all")
    assert "rebuilding" not in run


def on_gpu_machine(project: parts.Project, root: Path, *words: str, name: str, capability: str, driver: str) -> parts.Done:
    """Run repro-env on a machine with one GPU: a CDI spec in /etc/cdi, a device file that is /dev/null, and NVML."""
    need(os.getuid() == 0, "uid 0, to mount an overlay over /etc")
    need(shutil.which("unshare"), "unshare: apt-get install util-linux")
    nvml.build(root / "lib", [(name, capability)], driver=driver)
    fake_gpus.driver_library(root / "lib/libcuda.so.1")
    node = {"path": "/dev/nvidia0", "hostPath": str(fake_gpus.device_file(root / "dev/nvidia0"))}
    mount = {"hostPath": str(root / "lib/libcuda.so.1"), "containerPath": "/usr/lib/libcuda.so.1"}
    edits = {"deviceNodes": [node], "mounts": [mount]}
    devices = [{"name": "0", "containerEdits": edits}]
    (root / "upper/cdi").mkdir(parents=True)
    (root / "work").mkdir()
    (root / "upper/cdi/nvidia.json").write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}))
    setup = f'mount -t overlay none -o "lowerdir=/etc,upperdir={root}/upper,workdir={root}/work" /etc; exec "$@"'
    env = parts.environ(project.store, {"LD_LIBRARY_PATH": str(root / "lib")})
    command = ["unshare", "-m", "sh", "-ec", setup, "sh", str(parts.COMMAND), *words]
    done = subprocess.run(command, cwd=project.directory, env=env, capture_output=True, text=True, check=False)
    return parts.Done(done.returncode, done.stdout, done.stderr)


def test_a_driver_that_is_too_old_blocks_a_run_that_uses_the_gpu(
    small: parts.Project, edit: Callable[..., None], tmp_path: Path
) -> None:
    edit(lambda observed: observed.update(frameworks=WHEEL | {"devices": [DEVICE]}))
    place = {"name": H100, "capability": "9.0", "driver": "535.161.07"}
    done = on_gpu_machine(small, tmp_path / "doctor", "doctor", "repro", **place)
    assert done.code == 21
    assert re.search(r"^blocked  GPU driver +CUDA 13.0 +driver 535.161.07$", done.out, re.MULTILINE)
    assert "    CUDA 13.0 needs driver 580 or later\n    fix: install driver 580 or later, or capture" in done.out
    refused = on_gpu_machine(small, tmp_path / "exec", "exec", "hello.py", **place)
    assert (refused.code, refused.out) == (21, "")
    assert (
        "repro-env: error: this machine: CUDA 13.0 needs driver 580 or later (here: driver 535.161.07; in the spec: "
        in refused.err
    )
    assert "`repro-env doctor repro` shows all findings" in refused.err
    without = on_gpu_machine(small, tmp_path / "none", "exec", "--gpus", "none", "hello.py", **place)
    assert without.code == 0, "a GPU that the run does not use does not block it"
    assert "the run has no GPU, as requested" in without.err


def test_kernels_that_do_not_fit_the_gpu_block(small: parts.Project, edit: Callable[..., None], tmp_path: Path) -> None:
    edit(lambda observed: observed.update(frameworks=WHEEL | {"devices": [DEVICE]}))
    place = {"name": "Tesla V100-SXM2-16GB", "capability": "7.0", "driver": "580.95.05"}
    done = on_gpu_machine(small, tmp_path, "doctor", "repro", "--json", **place)
    found = checks(done)
    assert done.code == 21
    assert {name for name, check in found.items() if check["verdict"] == "blocked"} == {"compute capability"}
    assert (found["GPU driver"]["verdict"], found["GPUs"]["verdict"]) == ("ok", "numerics may differ")


def test_a_machine_without_the_captured_gpu_is_one_warning(small: parts.Project, edit: Callable[..., None]) -> None:
    edit(lambda observed: observed.update(frameworks=WHEEL | {"devices": [DEVICE]}))
    assert "the run has no GPU: this machine has no GPU" in small.run("doctor", "repro", code=1).out
    (warning,) = [line for line in small.run("exec", "hello.py").err.splitlines() if "GPU" in line]
    assert "the run has no GPU: this machine has no GPU (GPUs here: none; captured: NVIDIA H100 80GB HBM3)" in warning


def test_nothing_is_fetched_if_the_image_does_not_fit_the_disk(small: parts.Project, tmp_path: Path) -> None:
    need(os.getuid() == 0, "uid 0, to mount a small tmpfs")
    need(shutil.which("unshare"), "unshare: apt-get install util-linux")
    command = [
        "unshare",
        "-m",
        "sh",
        "-ec",
        f'mount -t tmpfs -o size=8m,mode=700 none "{tmp_path}"; "$@" || code=$?; ls -R "{tmp_path}"; exit $code',
    ]
    words = ["sh", str(parts.COMMAND), "exec", "hello.py"]
    done = subprocess.run(
        [*command, *words], cwd=small.directory, env=parts.environ(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 21, done.stderr
    assert "there are not enough bytes for the image (here: 0.0" in done.stderr
    assert "set REPRO_ENV_STORE to a directory on another disk" in done.stderr
    assert "rebuilding" not in done.stderr
    assert "sha256" not in done.stdout, "no layer is in the store"


def test_a_spec_and_a_directory_for_runs_are_not_checked_together(small: parts.Project) -> None:
    assert "SPEC and --for are mutually exclusive" in small.run("doctor", "repro", "--for", ".", code=2).err
