"""The door to container engines: what it finds, and one sentence for each way in which it can fail."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.io import engine
from repro_env.model.errors import EngineError
from tests.parts import need

VERSION = {"ApiVersion": "1.41", "Version": "20.10.24", "Arch": "amd64", "Os": "linux", "Components": [{"Name": "Engine"}]}


@contextlib.contextmanager
def listening(folder: Path, *answers: bytes) -> Iterator[str]:
    """A socket that gives these answers, one a connection, and closes; then it hangs up at once."""
    path = folder / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            waiting = list(answers)
            while True:
                try:
                    talk, _ = server.accept()
                except OSError:
                    return
                with talk:
                    talk.settimeout(100)
                    with contextlib.suppress(OSError):
                        if talk.recv(65536):  # not one that only knocks
                            talk.sendall(waiting.pop(0) if waiting else b"")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(100)


def answer(body: object, status: str = "200 OK") -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def failing(address: str, environ: dict[str, str] | None = None, *, timeout: float = 100) -> EngineError:
    with pytest.raises(EngineError) as caught:
        engine.opened(address, environ or {}, timeout=timeout)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_the_engine_of_this_machine_says_what_it_is() -> None:
    need(engine.available(environ={}), "a Docker engine: apt-get install docker.io, and dockerd running")
    with engine.opened(environ={}) as opened:
        assert opened.facts.product == "Docker"
        assert opened.facts.os == "linux"
        assert opened.facts.architecture in ("amd64", "arm64")
        assert opened.facts.elsewhere == ""
        assert opened.facts.runtimes
        assert opened.address == engine.DEFAULT
        with (
            pytest.raises(EngineError, match=r"cannot look at the image: .*[Nn]o such image") as caught,
            opened.talk("look at the image"),
        ):
            opened.client.images.get("repro-env-test-none:none")
        assert caught.value.status == 404
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.hint, copy.status) == (str(caught.value), caught.value.hint, 404)


def test_no_socket(tmp_path: Path) -> None:
    assert "there is no such socket" in str(failing(f"unix://{tmp_path}/none.sock"))
    assert not engine.available(f"unix://{tmp_path}/none.sock")


def test_a_socket_that_nobody_listens_at(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.sock"))
    assert "connection refused" in str(failing(f"unix://{tmp_path}/left.sock"))


def test_a_port_that_nobody_listens_at() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]  # ours, so that nobody else listens there meanwhile
        assert "connection refused" in str(failing("", {"DOCKER_HOST": f"tcp://127.0.0.1:{port}"}))


def test_a_socket_that_one_may_not_use(tmp_path: Path) -> None:
    need(os.getuid() == 0, "uid 0, to start a process as another user")
    tmp_path.chmod(0o755)
    with listening(tmp_path) as address:
        (tmp_path / "engine.sock").chmod(0o600)
        code = (
            "import os, sys\n"
            "from repro_env.io import engine\n"
            "from repro_env.model.errors import EngineError\n"
            "import docker\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"try: engine.opened({address!r}, {{}})\n"
            "except EngineError as error: print(error, '|', error.hint)\n"
        )
        for folder in tmp_path.parents:
            if folder.stat().st_mode & 0o001 == 0:
                folder.chmod(folder.stat().st_mode | 0o001)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "this user may not talk to the engine" in done.stdout
    assert "docker" in done.stdout


def test_an_engine_that_hangs_up(tmp_path: Path) -> None:
    with listening(tmp_path) as address:
        assert engine.MISSING in str(failing(address))


def test_an_engine_that_never_answers(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "deaf.sock"))
        server.listen()
        assert "does not answer" in str(failing(f"unix://{tmp_path}/deaf.sock", timeout=0.3))


def test_an_engine_that_dies_in_mid_talk(tmp_path: Path) -> None:
    said = [answer(VERSION), answer({"Name": os.uname().nodename})]
    with (
        listening(tmp_path, *said) as address,
        engine.opened(address, {}) as opened,
        pytest.raises(EngineError, match="went away while it was asked to start the container"),
        opened.talk("start the container"),
    ):
        opened.client.api.start("abc")


def test_an_engine_that_dies_in_a_stream(tmp_path: Path) -> None:
    cut = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{"stream"'
    said = [answer(VERSION), answer({"Name": os.uname().nodename}), cut]
    with (
        listening(tmp_path, *said) as address,
        engine.opened(address, {}) as opened,
        pytest.raises(EngineError, match="went away while it was asked to build"),
        opened.talk("build"),
    ):
        list(opened.client.api.build(path="git://example.com/x", decode=True))


def test_what_is_no_engine(tmp_path: Path) -> None:
    with listening(tmp_path, answer({"hello": "you"})) as address:
        assert "cannot be used" in str(failing(address))
    for odd in ("bogus", "unix://", "tcp://"):
        failing(odd)


def test_ssh_is_named_with_a_way_out() -> None:
    found = failing("ssh://ann@build.example.com")
    assert "ssh" in str(found)
    assert "-L" in found.hint


def test_the_context_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    folder = tmp_path / "docker"
    meta = folder / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest()
    meta.mkdir(parents=True)
    host = f"unix://{tmp_path}/far.sock"
    (meta / "meta.json").write_text(json.dumps({"Name": "far", "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}))
    (folder / "config.json").write_text(json.dumps({"currentContext": "far"}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    assert failing("", {"DOCKER_CONFIG": str(folder)}).where == host
    assert failing("", {"DOCKER_CONTEXT": "far"}).where == host
    assert failing("", {"DOCKER_HOST": "unix:///none.sock", "DOCKER_CONTEXT": "far"}).where == "unix:///none.sock"
    assert "Docker context gone" in str(failing("", {"DOCKER_CONTEXT": "gone"}))


@pytest.mark.parametrize("auths", [{"registry.example.com": {"auth": "half"}}, {"x": {"auth": "/w=="}}, {"x": {"auth": 1}}])
def test_a_configuration_that_makes_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auths: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with listening(tmp_path, answer(VERSION)) as address:
        found = failing(address, {"DOCKER_CONFIG": str(tmp_path)})
    assert found.where == str(tmp_path)
    assert "configuration" in str(found)


@pytest.mark.parametrize(
    ("where", "name", "there"),
    [
        ("unix:///var/run/docker.sock", os.uname().nodename, False),
        ("unix:///var/run/docker.sock", "docker-desktop", True),
        ("tcp://127.0.0.1:2375", os.uname().nodename, False),
        ("tcp://build.example.com:2376", os.uname().nodename, True),
    ],
)
def test_where_its_files_are(where: str, name: str, there: bool) -> None:
    assert bool(engine.facts(VERSION, {"Name": name}, where=where, api="1.41").elsewhere) is there


def test_podman_is_told_from_docker() -> None:
    said = {**VERSION, "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
    found = engine.facts(said, {"SecurityOptions": ["name=rootless"]}, where="unix:///x", api="1.41")
    assert (found.product, found.rootless, found.buildkit) == ("Podman", True, False)


def test_no_command_pays_for_it() -> None:
    code = "import sys, repro_env.io.engine; print('docker' in sys.modules, 'requests' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
