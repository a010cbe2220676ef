"""One real registry for all tests here, and no credentials, proxies or certificates but those that a test gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.registry import upload
from repro_env.registry.client import Registry
from tests.fakes.authority import Authority
from tests.fakes.front import Front
from tests.registries import registry as started


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a registry that asks for nothing."""
    with started(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Docker's folder of the test, empty."""
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(name)
    return folder


@pytest.fixture(autouse=True)
def long_from_a_mebibyte_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs are sent as streams from there on."""
    monkeypatch.setattr(upload, "HELD", 1 << 20)


@pytest.fixture
def front(real: str) -> Iterator[Front]:
    """What makes faults before the real one."""
    with Front(real) as found:
        yield found


@pytest.fixture
def registry(front: Front) -> Registry:
    """Asked through `front`; tries again at once."""
    return Registry(front.host, pause=0.001)
