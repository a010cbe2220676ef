"""A real registry for all tests in this directory. There are no credentials, proxies or certificates except those of a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.registry.client import Registry
from tests.fakes.authority import Authority
from tests.fakes.front import Front
from tests.registries import registry as started


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The `host:port` of a registry that requires no credentials."""
    with started(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def docker_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The empty Docker configuration directory of the test."""
    directory = tmp_path / "docker"
    directory.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(directory))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(name)
    return directory


@pytest.fixture
def front(real: str) -> Iterator[Front]:
    """A proxy in front of the real registry that injects faults."""
    with Front(real) as found:
        yield found


@pytest.fixture
def registry(front: Front) -> Registry:
    """A client that connects through `front` and retries without a pause."""
    return Registry(front.host, pause=0.001)
