"""A launch as a container: what is asked of the engine, and which folders are covered."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.image import layout
from repro_env.io.engine import Engine, Facts
from repro_env.model.environment import Variable
from repro_env.model.errors import EngineError
from repro_env.model.run import Launch, Mount, User
from repro_env.run import container, docker, place, watch
from repro_env.run.attached import _Frames
from repro_env.run.container import Bind, Place, covered, to_container
from repro_env.run.cover import cover, within
from repro_env.run.scratch import Scratch

DIGEST = "sha256:" + "1" * 64
PLACE = Place(
    scratch="/runs/x/.scratch",
    origin="boot 1",
    control="/runs/x/.scratch/control",
    interpreter="/opt/python/bin/python3",
    workspace="/runs/x/files",
    binds=(Bind(source="/runs/x/.scratch/root-tmp", target="/tmp", read_only=False),),
    groups=(7, 9),
    shared=1 << 30,
    memory=0,
    cpus="",
    terminal=False,
    keep_id=False,
)


def launch(**changes: Any) -> Launch:
    made = Launch(
        run_id="id",
        spec=DIGEST,
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
        notes="/runs/x/notes",
        user=User(uid=1000, gid=100, name="ann", home="/home/ann"),
        hostname="repro-env",
        network=False,
        seed=0,
    )
    return msgspec.structs.replace(made, **changes)


def test_everything_that_may_be_taken_away_is() -> None:
    made = to_container(launch(), PLACE)
    host: Any = made["HostConfig"]
    assert (made["User"], made["Image"], made["Hostname"]) == ("1000:100", DIGEST, "repro-env")
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert (host["NetworkMode"], host["IpcMode"], host["ShmSize"]) == ("none", "private", 1 << 30)
    assert host["LogConfig"]["Type"] == "none"
    assert host["GroupAdd"] == ["7", "9"]
    assert not {"Privileged", "CapAdd", "Devices", "DeviceRequests", "Memory", "CpusetCpus", "UsernsMode"} & host.keys()
    assert made["Entrypoint"] == [
        "/opt/python/bin/python3",
        "-I",
        "-S",
        "-B",
        f"{container.INIT}/init.py",
        "start",
        container.INIT,
    ]


def test_the_engine_is_told_no_variable_and_no_word_of_the_command() -> None:
    told = json.dumps(to_container(launch(), PLACE))
    assert "hunter2" not in told
    assert "SECRET_TOKEN" not in told
    assert "train.py" not in told


def test_mounts_come_outermost_first_and_read_only_where_they_are() -> None:
    host: Any = to_container(launch(), PLACE)["HostConfig"]
    assert [(one["Target"], one["Source"], one["ReadOnly"]) for one in host["Mounts"]] == [
        ("/ckpt", "/c", False),
        ("/data", "/d/set", True),
        ("/tmp", "/runs/x/.scratch/root-tmp", False),
        ("/train", "/runs/x/files", False),
        (container.INIT, "/runs/x/.scratch/control", False),
        (layout.NOTES, "/runs/x/notes", False),
        (layout.SEEDS, "/tool/repro_env", True),
    ]


@pytest.mark.parametrize(
    ("changes", "place", "expected"),
    [
        ({"network": True}, {}, {"NetworkMode": "host"}),
        ({}, {"memory": 5 << 20, "cpus": "0-1"}, {"Memory": 5 << 20, "CpusetCpus": "0-1"}),
        ({}, {"keep_id": True}, {"UsernsMode": "keep-id"}),
    ],
)
def test_what_is_asked_for_is_given(changes: dict[str, Any], place: dict[str, Any], expected: dict[str, Any]) -> None:
    host: Any = to_container(launch(**changes), msgspec.structs.replace(PLACE, **place))["HostConfig"]
    assert {name: host[name] for name in expected} == expected


@pytest.mark.parametrize(("asked", "count"), [("all", -1), (2, 2)])
def test_gpus_are_device_requests(asked: Any, count: int) -> None:
    host: Any = to_container(launch(gpus=asked), PLACE)["HostConfig"]
    (request,) = host["DeviceRequests"]
    assert (request["Count"], request["Capabilities"]) == (count, [["gpu"]])


def test_processors_are_written_as_ranges() -> None:
    assert [container.ranges(one) for one in ([3, 0, 1, 2, 7], [5], [], [0, 2])] == ["0-3,7", "5", "", "0,2"]


@pytest.mark.parametrize(
    ("changes", "links", "expected"),
    [
        ({}, (), ("/tmp", "/home/ann", "/var/tmp")),
        ({"workspace": "/home/ann"}, (), ("/tmp", "/var/tmp")),
        ({"workspace": "/home"}, (), ("/tmp", "/var/tmp")),
        ({"mounts": (Mount(kind="data", source="/d", target="/home"),)}, (), ("/tmp", "/var/tmp")),
        ({}, ("/srv/envs/x",), ("/tmp", "/home/ann", "/srv/envs", "/var/tmp")),
        ({}, ("/train/.venv", "/venv"), ("/tmp", "/home/ann", "/var/tmp")),
    ],
)
def test_the_folders_that_are_covered(changes: dict[str, Any], links: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert covered(launch(**changes), links) == expected


def test_what_the_image_has_in_a_covered_folder_is_shown_in_it(tmp_path: Path) -> None:
    image = tmp_path / "image"
    for path in ("home/ann/.pyenv/versions/3.11/bin/python", "home/ann/.local/share/a/x", "home/ann/proj/old", "home/ann/.rc"):
        (image / path).parent.mkdir(parents=True, exist_ok=True)
        (image / path).write_text(path)
    (image / "home/ann/link").symlink_to("/etc")
    (image / "tmp").symlink_to("/")  # hostile: this machine's root, if it were followed

    def private(path: str) -> Path:
        made = tmp_path / path.replace("/", "-")
        made.mkdir()
        return made

    binds = list(cover(["/tmp", "/home/ann"], image, ["/home/ann/proj/data", "/home/ann/.pyenv/mine"], private))
    shown = {bind.target: bind.read_only for bind in binds}
    assert shown == {
        "/tmp": False,
        "/home/ann": False,
        "/home/ann/.local/share/a": True,
        "/home/ann/.pyenv/versions/3.11/bin": True,
        "/home/ann/.rc": True,
        "/home/ann/proj/old": True,
    }
    own = tmp_path / "-home-ann"
    assert (own / "link").readlink() == Path("/etc")
    assert (own / ".local/share/a").is_dir()
    assert not list((tmp_path / "-tmp").iterdir())


def test_no_link_of_an_image_is_followed_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/out").symlink_to("/etc")
    assert within(tmp_path, "/deep/out/passwd") is None
    assert within(tmp_path, "/deep/out") is None
    assert within(tmp_path, "/deep") == tmp_path / "deep"


FACTS = Facts(
    product="Docker", version="1", api="1.41", architecture="amd64", os="linux", elsewhere="", rootless=False, buildkit=True,
    runtimes=(), storage="overlay2", cgroups="1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "gpus", "words"),
    [
        ({"elsewhere": "it is reached at tcp://far.example.com:2375"}, 0, "far.example.com"),
        ({"os": "windows"}, 0, "windows"),
        ({"product": "Podman"}, 1, "GPUs"),
    ],
)
def test_engines_that_cannot_do_it_are_refused(facts: dict[str, Any], gpus: int, words: str) -> None:
    engine = Engine(None, "unix:///x", msgspec.structs.replace(FACTS, **facts))
    with pytest.raises(EngineError, match=words):
        docker.suitable(engine, gpus)


def test_a_rootless_docker_is_refused_to_plain_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    engine = Engine(None, "unix:///x", msgspec.structs.replace(FACTS, rootless=True))
    with pytest.raises(EngineError, match="rootless"):
        docker.suitable(engine)
    docker.suitable(Engine(None, "unix:///x", msgspec.structs.replace(FACTS, rootless=True, product="Podman")))


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 100])
def test_frames_arrive_in_any_pieces(size: int) -> None:
    stream = b"\1\0\0\0\0\0\0\3abc" + b"\2\0\0\0\0\0\0\0" + b"\2\0\0\0\0\0\0\2xy" + b"\1\0\0\0\0\0\0\1d"
    frames = _Frames(terminal=False)
    got = {1: b"", 2: b""}
    for at in range(0, len(stream), size):
        for number, part in frames.feed(stream[at : at + size]):
            got[number] += part
    assert got == {1: b"abcd", 2: b"xy"}


def test_a_container_is_left_over_when_nobody_holds_its_folder(tmp_path: Path) -> None:
    held = Scratch(tmp_path / "held")
    (tmp_path / "free").mkdir()
    try:
        found = {name: watch.is_over(str(tmp_path / name), seen=True) for name in ("held", "free", "gone")}
    finally:
        held.remove()
    assert found == {"held": False, "free": True, "gone": True}
    assert not watch.is_over(str(tmp_path / "gone"), seen=False), "a folder that this process may just not see"


def test_init_is_nothing_but_the_first_process(tmp_path: Path) -> None:
    """Elsewhere it would end whatever its user runs."""
    done = subprocess.run([sys.executable, "-I", "-S", place.INIT, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, "first process" in done.stderr) == (1, True)
    assert not list(tmp_path.iterdir())


def test_init_is_python_that_old_images_can_run() -> None:
    ast.parse(place.INIT.read_text(), feature_version=(3, 8))
