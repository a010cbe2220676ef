"""Runs with apptainer: its arguments, and what happens if a site's configuration ignores one, which a stand-in does here.

tests/sandbox/test_runners.py and tests/e2e/test_hpc.py use the real one, in the root of `tests.roots`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.sandbox.image import Image
from repro_env.sandbox.programs.apptainer import ApptainerRunner
from repro_env.schema.environment import Variable
from repro_env.schema.errors import RunError
from repro_env.schema.run import Gpus, HostFile, Mount
from tests.fakes import apptainer
from tests.parts import need
from tests.sandbox import launches
from tests.sandbox.conftest import Place, Result, open_place

OPTIONS = [
    "exec", "--containall", "--no-home", "--no-mount=hostfs,bind-paths,cwd", "--no-init", "--no-privs", "--pwd=/",
    "--hostname=repro-env",
]  # fmt: skip


def runner() -> ApptainerRunner:
    return ApptainerRunner(Image(lambda _: None, merged=Path("/store/merged"), interpreter="/bin/python"))


def test_the_arguments_name_the_image_and_every_mount() -> None:
    made = {"/w": ("/runs/1/files", False), '/w/in "a", b': ("/data,1", True)}
    node = HostFile(source="/dev/nvidia0", target="/dev/nvidia0")
    env = (Variable(name="LD_LIBRARY_PATH", value="/opt/lib"),)
    for network in (False, True):
        launch = launches.make("/w", network=network, gpus=Gpus(nodes=(node,)), env=env)
        container = runner().container(launch, made, Path("/store/merged/1"), Path("/scratch"))
        assert list(container.arguments) == [
            *OPTIONS,
            *([] if network else ["--net", "--network=none"]),
            "--mount", "type=bind,source=/runs/1/files,destination=/w",
            "--mount", 'type=bind,"source=/data,1","destination=/w/in ""a"", b",ro',
            *(["--mount", "type=bind,source=/sys/fs/cgroup,destination=/sys/fs/cgroup,ro"] if Path("/sys/fs/cgroup").is_dir() else []),
            "--mount", "type=bind,source=/dev/nvidia0,destination=/dev/nvidia0",
            "/store/merged/1",
        ]  # fmt: skip
        assert set(container.env) == {"PATH", "HOME", "USER", "APPTAINERENV_LD_LIBRARY_PATH"}
        assert container.isolation is None


def test_a_device_file_with_another_name_is_refused() -> None:
    """apptainer would skip it with a warning."""
    launch = launches.make("/w", gpus=Gpus(nodes=(HostFile(source="/dev/x", target="/dev/nvidia0"),)))
    with pytest.raises(RunError, match="another name"):
        runner().container(launch, {}, Path("/image"), Path("/scratch"))


def run(place: Place, ignored: str) -> Result:
    """Run a command with the stand-in for apptainer, which ignores these options."""
    programs = place.root / "programs"
    programs.mkdir()
    shutil.copy(apptainer.__file__, programs)
    (programs / "ignored").write_text(ignored)
    (programs / "apptainer").write_text(f'#!/bin/sh\nexec {sys.executable} {programs}/apptainer.py "$@"\n')
    (programs / "apptainer").chmod(0o755)
    (place.root / "data").mkdir()
    mounts = [Mount(kind="data", source=str(place.root / "data"), target="/data")]
    place.engine = "apptainer"
    script = "! echo x > /data/file; ! echo x > /opt/env/note; cat /opt/env/note; echo new > new"
    return place.sh(script, mounts=mounts, before=["env", f"PATH={programs}:/usr/bin:/bin:/usr/sbin:/sbin"])


def test_a_run_has_the_outputs_and_record_of_any_runner(stores: Callable[[int], Path]) -> None:
    need(os.getuid() == 0, "uid 0, which the stand-in for apptainer needs to mount")
    with open_place(stores(0), 0) as place:
        result = run(place, "")
        assert (result.stdout, result.files) == ("the environment\n", {"new": "new\n"}), result.stderr
        assert result.outcome.isolation == "apptainer"
        assert result.outcome.methods[0] == "apptainer 1.5.3"


@pytest.mark.parametrize(
    ("ignored", "message"),
    [
        ("ro", "the container can write to /"),
        ("net", "the container has this machine's network"),
        ("pid", "the container has no PID namespace of its own"),
    ],
)
def test_a_run_that_apptainer_does_not_isolate_is_refused(stores: Callable[[int], Path], ignored: str, message: str) -> None:
    """For example, because apptainer.conf forbids it."""
    need(os.getuid() == 0, "uid 0, which the stand-in for apptainer needs to mount")
    with open_place(stores(0), 0) as place:
        result = run(place, ignored)
        assert (result.answer.error, result.stdout) == ("SandboxError", "")
        assert message in result.answer.message
