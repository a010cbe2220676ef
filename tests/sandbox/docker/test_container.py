"""The request for a container, the covered directories, and the checks of engines."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.io.engine import Engine, Facts
from repro_env.io.package import GUEST
from repro_env.oci import paths
from repro_env.sandbox import handover
from repro_env.sandbox.docker import runner
from repro_env.sandbox.docker.container import to_container
from repro_env.sandbox.image import find_in_image
from repro_env.sandbox.mounts import cover, writable_directories
from repro_env.schema.environment import Variable
from repro_env.schema.errors import EngineError
from repro_env.schema.run import Gpus, HostFile, ImageTree, Launch, Mount, User

DIGEST = "sha256:" + "1" * 64


def launch(**changes: Any) -> Launch:
    made = Launch(
        run_id="id",
        image=DIGEST,
        layers=(DIGEST,),
        prefix="/train/.venv",
        trees=(),
        argv=("python", "train.py"),
        env=(Variable(name="SECRET_TOKEN", value="hunter2"),),
        cwd="/train",
        workspace="/train",
        snapshot=DIGEST,
        mounts=(Mount(kind="data", source="/d/set", target="/data"), Mount(kind="checkpoints", source="/c", target="/ckpt")),
        tools="/tool/repro_env",
        reports="/runs/x/notes",
        user=User(uid=1000, gid=100, name="ann", home="/home/ann"),
        hostname="repro-env",
        network=False,
    )
    return msgspec.structs.replace(made, **changes)


def request(keep_id: bool = False, **changes: Any) -> dict[str, Any]:
    mounts = {"/data/deep": ("/d", True), "/tmp": ("/runs/x/outside/tmp", False)}
    return to_container(launch(**changes), DIGEST, mounts, "/opt/python/bin/python3", keep_id=keep_id)


def test_a_container_has_no_privileges() -> None:
    made = request()
    host = made["HostConfig"]
    assert (made["User"], made["Image"], made["Hostname"]) == ("1000:100", DIGEST, "repro-env")
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert (host["NetworkMode"], host["IpcMode"], host["ReadonlyRootfs"]) == ("none", "private", True)
    assert host["LogConfig"]["Type"] == "none"
    assert not {"Privileged", "CapAdd", "Devices", "DeviceRequests", "UsernsMode"} & host.keys()
    assert [(mount["Target"], mount["Source"], mount["ReadOnly"]) for mount in host["Mounts"]] == [
        ("/tmp", "/runs/x/outside/tmp", False),
        ("/data/deep", "/d", True),
    ]
    command = [f"{paths.SEEDS}/guest/init.py", "start", f"{handover.CONTROL}/{handover.SOCKET}"]
    assert made["Entrypoint"] == ["/opt/python/bin/python3", *paths.ISOLATED, *command]
    text = json.dumps(made)
    assert not [word for word in ("hunter2", "SECRET_TOKEN", "train.py") if word in text], "engines store what they receive"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"network": True}, {"NetworkMode": "host"}),
        ({"keep_id": True}, {"UsernsMode": "keep-id"}),
    ],
)
def test_options_of_a_run_are_passed_to_the_engine(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    host = request(**changes)["HostConfig"]
    assert {name: host[name] for name in expected} == expected


def test_limits_of_this_process_apply_to_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro_env.sandbox.memory.limit", lambda: 5 << 20)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 7})
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.getgroups", lambda: [9, 100, 7])
    host = request()["HostConfig"]
    assert (host["Memory"], host["CpusetCpus"], host["GroupAdd"]) == (5 << 20, "0,7", ["7", "9"])


def test_gpus_are_device_files() -> None:
    node = HostFile(source="/dev/nvidia0", target="/dev/nvidia0")
    assert "Devices" not in request()["HostConfig"]
    (device,) = request(gpus=Gpus(count=1, nodes=(node,)))["HostConfig"]["Devices"]
    assert device == {"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0", "CgroupPermissions": "rw"}


@pytest.mark.parametrize(
    ("changes", "links", "expected"),
    [
        ({}, (), ["/home/ann", "/tmp", "/var/tmp"]),
        ({"workspace": "/srv/ann/train"}, (), ["/home/ann", "/srv/ann", "/tmp", "/var/tmp"]),
        ({"workspace": "/home/ann"}, (), ["/home", "/tmp", "/var/tmp"]),
        ({"mounts": (Mount(kind="data", source="/d", target="/home"),)}, (), ["/tmp", "/var/tmp"]),
        ({}, ("/srv/envs/x",), ["/home/ann", "/srv/envs", "/tmp", "/var/tmp"]),
        ({}, ("/train/.venv", "/venv"), ["/home/ann", "/tmp", "/var/tmp"]),
    ],
)
def test_directories_that_a_run_may_write_are_covered(
    tmp_path: Path, changes: dict[str, Any], links: tuple[str, ...], expected: list[str]
) -> None:
    for link in links:
        path = Path(f"{tmp_path}{link}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/opt/env")
    trees = tuple(ImageTree(target=link, root="/opt/env") for link in links)
    assert writable_directories(launch(trees=trees, **changes), tmp_path) == expected


def test_files_of_the_image_are_mounted_in_a_covered_directory(tmp_path: Path) -> None:
    image = tmp_path / "image"
    for path in ("home/ann/.pyenv/versions/3.11/bin/python", "home/ann/.local/share/a/x", "home/ann/proj/old", "home/ann/.rc"):
        (image / path).parent.mkdir(parents=True, exist_ok=True)
        (image / path).write_text(path)
    (image / "home/ann/link").symlink_to("/etc")
    (image / "tmp").symlink_to("/")  # hostile: following it would lead to this machine's root

    outside = tmp_path / "outside"
    mounts = dict.fromkeys(("/home/ann/proj/data", "/home/ann/.pyenv/mine"), ("", True))
    covers = dict(cover(["/home/ann", "/tmp"], image, mounts, outside))
    assert {target: read_only for target, (_, read_only) in covers.items()} == {
        "/tmp": False,
        "/home/ann": False,
        "/home/ann/.local/share/a": True,
        "/home/ann/.pyenv/versions/3.11/bin": True,
        "/home/ann/.rc": True,
        "/home/ann/proj/old": True,
    }
    own = outside / "home/ann"
    assert (own / "link").readlink() == Path("/etc")
    assert (own / ".local/share/a").is_dir()
    assert not list((outside / "tmp").iterdir())


def test_symlinks_of_an_image_are_not_followed_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/out").symlink_to("/etc")
    assert find_in_image(tmp_path, "/deep/out/passwd") is None
    assert find_in_image(tmp_path, "/deep/out") is None
    assert find_in_image(tmp_path, "/deep") == tmp_path / "deep"


FACTS = Facts(product="Docker", version="1", remote_reason="", has_manifests=False, has_limits=True, rootless=False)


def test_a_remote_engine_is_refused() -> None:
    engine = Engine(None, "unix:///x", msgspec.structs.replace(FACTS, remote_reason="its address is tcp://far.example.com:2375"))
    with pytest.raises(EngineError, match=r"far\.example\.com"):
        runner.check_engine(engine)


def test_a_rootless_docker_is_refused_to_plain_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    engine = Engine(None, "unix:///x", msgspec.structs.replace(FACTS, rootless=True))
    with pytest.raises(EngineError, match="rootless"):
        runner.check_engine(engine)
    runner.check_engine(Engine(None, "unix:///x", msgspec.structs.replace(FACTS, rootless=True, product="Podman")))


def test_init_refuses_to_run_unless_it_is_pid_1() -> None:
    """As another process, it would end all processes of its user."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", GUEST / "init.py", "attend", "1", "0"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "must run as PID 1" in done.stderr) == (1, True)


def test_init_has_the_syntax_of_python_3_8() -> None:
    ast.parse((GUEST / "init.py").read_text(), feature_version=(3, 8))
