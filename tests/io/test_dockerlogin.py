from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from repro_env.io.dockerlogin import find
from repro_env.schema.errors import NetworkError

SECRET = "a very secret word"


@pytest.fixture(autouse=True)
def docker_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The empty Docker configuration directory of the test."""
    directory = tmp_path / "docker"
    directory.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(directory))
    monkeypatch.setenv("HOME", str(tmp_path))
    return directory


def login(directory: Path, **config: object) -> None:
    (directory / "config.json").write_text(json.dumps(config))


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def helper(directory: Path, name: str, script: str, patch: pytest.MonkeyPatch) -> None:
    """A credential helper on PATH."""
    path = directory / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    patch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_there_are_no_credentials_without_a_login(docker_directory: Path) -> None:
    assert find("registry.example.com") is None
    login(docker_directory)
    assert find("registry.example.com") is None


@pytest.mark.parametrize(
    ("place", "host", "is_it"),
    [
        ("registry.example.com", "registry.example.com", True),
        ("https://registry.example.com", "registry.example.com", True),
        ("https://registry.example.com/v2/", "registry.example.com", True),
        ("registry.example.com:5000", "registry.example.com:5000", True),
        ("registry.example.com:5000", "registry.example.com", False),
        ("other.example.com", "registry.example.com", False),
        ("registry.example.com/team", "registry.example.com", True),
        ("https://index.docker.io/v1/", "docker.io", True),
        ("docker.io", "docker.io", True),
        ("https://index.docker.io/v1/", "registry.example.com", False),
    ],
)
def test_credentials_are_those_of_the_host(place: str, host: str, is_it: bool, docker_directory: Path) -> None:
    login(docker_directory, auths={place: {"auth": basic("me", SECRET)}})
    found = find(host)
    assert (found is not None) is is_it
    if found is not None:
        assert (found.user, found.password, found.source) == ("me", SECRET, str(docker_directory / "config.json"))


def test_docker_config_is_below_home_without_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DOCKER_CONFIG")
    (tmp_path / ".docker").mkdir()
    login(tmp_path / ".docker", auths={"registry.example.com": {"auth": basic("me", SECRET)}})
    found = find("registry.example.com")
    assert found is not None
    assert found.basic == "Basic " + basic("me", SECRET)


def test_an_identity_token_is_read(docker_directory: Path) -> None:
    login(docker_directory, auths={"registry.example.com": {"auth": basic("<token>", ""), "identitytoken": SECRET}})
    found = find("registry.example.com")
    assert found is not None
    assert found.identity == SECRET


def test_credentials_do_not_appear_in_text() -> None:
    from repro_env.io.dockerlogin import Credentials
    from repro_env.registry.server import Token

    shown = (
        f"{Credentials('me', SECRET, SECRET, 'a file')!r} {Credentials('me', SECRET)} {Token(SECRET, 0.0)!r} {Token(SECRET, 0.0)}"
    )
    assert SECRET not in shown


def test_a_hosts_helper_is_used_only_for_this_host(
    docker_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(
        tmp_path,
        "own",
        f'read host; echo "{{\\"ServerURL\\": \\"$host\\", \\"Username\\": \\"$1 $host\\", \\"Secret\\": \\"{SECRET}\\"}}"',
        monkeypatch,
    )
    login(docker_directory, credHelpers={"registry.example.com": "own"}, auths={"other.example.com": {"auth": basic("me", "x")}})
    found, other = find("registry.example.com"), find("other.example.com")
    assert found is not None
    assert other is not None
    assert (found.user, found.password, other.user) == ("get registry.example.com", SECRET, "me")


def test_the_store_is_a_helper_for_all_hosts(docker_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(tmp_path, "store", f'echo \'{{"Username": "<token>", "Secret": "{SECRET}"}}\'', monkeypatch)
    login(docker_directory, credsStore="store", auths={"registry.example.com": {}})
    found = find("registry.example.com")
    assert found is not None
    assert (found.identity, found.password) == (SECRET, "")


def test_docker_hub_has_its_own_name_for_helpers(docker_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(tmp_path, "store", 'read host; echo "{\\"Username\\": \\"$host\\", \\"Secret\\": \\"x\\"}"', monkeypatch)
    login(docker_directory, credsStore="store")
    found = find("docker.io")
    assert found is not None
    assert found.user == "https://index.docker.io/v1/"


def test_a_helper_without_credentials_is_not_an_error(
    docker_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, "store", "echo credentials not found in native keychain; exit 1", monkeypatch)
    login(docker_directory, credsStore="store", auths={"registry.example.com": {}})
    assert find("registry.example.com") is None


@pytest.mark.parametrize(
    "script",
    [
        f"echo {SECRET}; exit 3",
        f"echo '[\"{SECRET}\"]'",
        f'echo \'{{"Secret": ["{SECRET}"]}}\'',
        f'echo \'{{"Username": "me", "Secret": ["{SECRET}"]}}\'',
    ],
)
def test_a_helper_that_fails_is_named_and_not_quoted(
    script: str, docker_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, "store", script, monkeypatch)
    login(docker_directory, credsStore="store")
    with pytest.raises(NetworkError, match="failed, or returned invalid credentials") as caught:
        find("registry.example.com")
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    assert "docker-credential-store" in str(caught.value)


@pytest.mark.parametrize("name", ["not-there", "../evil", "a b", "x; touch y"])
def test_a_missing_helper_is_an_error(name: str, docker_directory: Path) -> None:
    login(docker_directory, credsStore=name)
    with pytest.raises(NetworkError, match="helper"):
        find("registry.example.com")


@pytest.mark.parametrize(
    "text", ["{", "[]", f'{{"auths": "{SECRET}"}}', f'{{"auths": {{"registry.example.com": {{"auth": "{SECRET}"}}}}}}', "\xff"]
)
def test_a_broken_file_is_named_and_not_quoted(text: str, docker_directory: Path) -> None:
    (docker_directory / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(NetworkError) as caught:
        find("registry.example.com")
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    assert str(docker_directory / "config.json") in str(caught.value)
