"""Connections to container engines: the facts that are read, and an error for each failure."""

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
from repro_env.schema.errors import EngineError
from tests.parts import need
from tests.sandbox import engines

VERSION = {"ApiVersion": "1.41", "Version": "20.10.24", "Arch": "amd64", "Os": "linux", "Components": [{"Name": "Engine"}]}


@contextlib.contextmanager
def fake_engine(directory: Path, *answers: bytes) -> Iterator[str]:
    """Serve a socket that sends one of `answers` for each request. After the last answer it closes connections at once."""
    path = directory / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            pending = list(answers)
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(100)
                    with contextlib.suppress(OSError):
                        if connection.recv(65536):  # the first connection only checks the socket
                            connection.sendall(pending.pop(0) if pending else b"")

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


@pytest.fixture(autouse=True)
def _without_docker_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"):
        monkeypatch.delenv(name, raising=False)


def connect_error(address: str = "", *, timeout: float = 100) -> EngineError:
    with pytest.raises(EngineError) as caught:
        engine.connect(address, timeout=timeout)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_connecting_to_the_local_engine_reports_its_facts() -> None:
    need(engines.answers(), "a Docker engine: apt-get install docker.io, and dockerd running")
    with engine.connect() as connection:
        assert connection.facts.product == "Docker"
        assert connection.facts.remote_reason == ""
        assert connection.address == engine.DEFAULT
        with (
            pytest.raises(EngineError, match=r"cannot look at the image: .*[Nn]o such image") as caught,
            connection.talk("look at the image"),
        ):
            connection.client.images.get("repro-env-test-none:none")
        assert caught.value.status == 404
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.hint, copy.status) == (str(caught.value), caught.value.hint, 404)


def test_a_missing_socket_is_an_error(tmp_path: Path) -> None:
    assert "the socket does not exist" in str(connect_error(f"unix://{tmp_path}/none.sock"))


def test_a_socket_without_a_server_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "closed.sock"))
    assert "connection refused" in str(connect_error(f"unix://{tmp_path}/closed.sock"))


def test_a_port_without_a_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]  # bound, so that no other program can listen on it
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
        assert "connection refused" in str(connect_error())


def test_a_socket_without_permission_is_an_error(tmp_path: Path) -> None:
    need(os.getuid() == 0, "uid 0, to start a process as another user")
    tmp_path.chmod(0o755)
    with fake_engine(tmp_path) as address:
        (tmp_path / "engine.sock").chmod(0o600)
        code = (
            "import os, sys\n"
            "from repro_env.io import engine\n"
            "from repro_env.schema.errors import EngineError\n"
            "import docker\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"try: engine.connect({address!r})\n"
            "except EngineError as error: print(error, '|', error.hint)\n"
        )
        for directory in tmp_path.parents:
            if directory.stat().st_mode & 0o001 == 0:
                directory.chmod(directory.stat().st_mode | 0o001)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "this user is not allowed to use the engine" in done.stdout
    assert "docker" in done.stdout


def test_an_engine_that_closes_the_connection_is_an_error(tmp_path: Path) -> None:
    with fake_engine(tmp_path) as address:
        assert engine.MISSING in str(connect_error(address))


def test_an_engine_that_never_answers_times_out(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "silent.sock"))
        server.listen()
        assert "does not answer" in str(connect_error(f"unix://{tmp_path}/silent.sock", timeout=0.3))


def test_a_connection_lost_during_a_request_names_the_action(tmp_path: Path) -> None:
    answers = [answer(VERSION), answer({"Name": os.uname().nodename})]
    with (
        fake_engine(tmp_path, *answers) as address,
        engine.connect(address) as connection,
        pytest.raises(EngineError, match="connection was lost while the engine was asked to start the container"),
        connection.talk("start the container"),
    ):
        connection.client.api.start("abc")


def test_a_connection_lost_during_a_stream_names_the_action(tmp_path: Path) -> None:
    cut = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{"stream"'
    answers = [answer(VERSION), answer({"Name": os.uname().nodename}), cut]
    with (
        fake_engine(tmp_path, *answers) as address,
        engine.connect(address) as connection,
        pytest.raises(EngineError, match="connection was lost while the engine was asked to build"),
        connection.talk("build"),
    ):
        list(connection.client.api.build(path="git://example.com/x", decode=True))


def test_a_server_that_is_not_an_engine_is_an_error(tmp_path: Path) -> None:
    with fake_engine(tmp_path, answer({"hello": "you"})) as address:
        assert "cannot be used" in str(connect_error(address))
    for address in ("bogus", "unix://", "tcp://"):
        connect_error(address)


def test_an_ssh_address_is_rejected_with_a_hint() -> None:
    error = connect_error("ssh://ann@build.example.com")
    assert "ssh" in str(error)
    assert "-L" in error.hint


def test_the_docker_context_selects_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    directory = tmp_path / "docker"
    meta = directory / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest()
    meta.mkdir(parents=True)
    host = f"unix://{tmp_path}/far.sock"
    (meta / "meta.json").write_text(json.dumps({"Name": "far", "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(directory))
    (directory / "config.json").write_text(json.dumps({"currentContext": "far"}))
    assert connect_error().where == host
    (directory / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    assert connect_error().where == host
    monkeypatch.setenv("DOCKER_HOST", "unix:///none.sock")
    assert connect_error().where == "unix:///none.sock"
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    assert "gone: the Docker context does not exist" in str(connect_error())


@pytest.mark.parametrize("auths", [{"registry.example.com": {"auth": "half"}}, {"x": {"auth": "/w=="}}, {"x": {"auth": 1}}])
def test_an_invalid_docker_configuration_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auths: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with fake_engine(tmp_path, answer(VERSION)) as address:
        error = connect_error(address)
    assert error.where == str(tmp_path)
    assert "configuration" in str(error)


@pytest.mark.parametrize(
    ("where", "name", "is_remote"),
    [
        ("unix:///var/run/docker.sock", os.uname().nodename, False),
        ("unix:///var/run/docker.sock", "docker-desktop", True),
        ("tcp://127.0.0.1:2375", os.uname().nodename, False),
        ("tcp://build.example.com:2376", os.uname().nodename, True),
    ],
)
def test_an_engine_on_another_machine_is_detected(where: str, name: str, is_remote: bool) -> None:
    assert bool(engine.facts(VERSION, {"Name": name}, where=where).remote_reason) is is_remote


def test_podman_is_distinguished_from_docker() -> None:
    version = {**VERSION, "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
    facts = engine.facts(version, {"SecurityOptions": ["name=rootless"]}, where="unix:///x")
    assert (facts.product, facts.rootless) == ("Podman", True)


@pytest.mark.parametrize(("info", "rootless", "has_limits"), [
    ({"Rootless": True, "SecurityOptions": ["name=seccomp"], "CgroupVersion": "1"}, True, False),  # Podman 4.3
    ({"Rootless": True, "CgroupVersion": "2"}, True, True),
    ({"Rootless": False, "CgroupVersion": "1"}, False, True),
    ({}, False, True),
])  # fmt: skip
def test_what_an_engine_of_a_user_can_do_is_detected(info: dict[str, object], rootless: bool, has_limits: bool) -> None:
    facts = engine.facts(VERSION, info, where="unix:///x")
    assert (facts.rootless, facts.has_limits) == (rootless, has_limits)


def test_the_store_of_docker_is_detected() -> None:
    for status, expected in (
        ([["driver-type", "io.containerd.snapshotter.v1"]], True),
        ([["Backing Filesystem", "extfs"]], False),
        (None, False),
    ):
        assert engine.facts(VERSION, {"DriverStatus": status}, where="unix:///x").has_manifests == expected


def test_importing_the_module_does_not_import_docker() -> None:
    code = "import sys, repro_env.io.engine; print('docker' in sys.modules, 'requests' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
