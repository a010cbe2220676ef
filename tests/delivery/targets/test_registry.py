"""Sending an image to a registry, and what other programs get from there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from repro_env.delivery.targets.registry import RegistryOutput
from repro_env.oci.manifest import Image
from repro_env.registry.client import Registry
from repro_env.registry.reference import parse
from repro_env.schema.errors import NetworkError, UsageError
from tests.fakes import images
from tests.fakes.front import Front
from tests.parts import need
from tests.registries import registry as started

REPOSITORY = "repro-env-test/image"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> images.Layered:
    return images.sample(tmp_path_factory.mktemp("image"))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in list(os.environ):
        if name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)


def send(output: RegistryOutput, sample: images.Layered) -> tuple[Image, str]:
    """Send the missing layers, as a rebuild does."""
    try:
        for data, packed in zip(sample.layers, sample.packed, strict=True):
            if not output.has(packed):
                assert output.take([data[:100], data[100:]].__iter__) == packed.blob
        return sample.image, output.finish(sample.image)
    finally:
        output.close()


def output(host: str, tag: str = "v1", repository: str = REPOSITORY) -> RegistryOutput:
    return RegistryOutput(parse(f"{host}/{repository}:{tag}"), pause=0.001)


def test_finish_returns_where_the_image_is(real: str, sample: images.Layered) -> None:
    image, line = send(output(real), sample)
    digest = image.manifest_blob.digest
    assert line == f"{real}/{REPOSITORY}@{digest} (tag v1)"
    registry = Registry(real)
    assert registry.manifest(REPOSITORY, "v1") == (image.manifest, image.manifest_blob.media_type, digest)
    found, _, _ = registry.image(REPOSITORY, "v1", architecture="amd64")
    assert registry.small(REPOSITORY, found.config) == image.config
    for blob, data in zip(found.layers, sample.layers, strict=True):
        assert registry.small(REPOSITORY, blob) == data


def test_only_missing_layers_are_sent(real: str, sample: images.Layered) -> None:
    with Front(real) as front:
        send(output(front.host, repository="repro-env-test/missing"), sample)
        assert front.count("PUT", "/blobs/") == len(set(sample.image.layers)) + 1
        front.asked.clear()
        send(output(front.host, "v2", "repro-env-test/missing"), sample)
        assert (front.count("POST"), front.count("PATCH"), front.count("PUT")) == (0, 0, 1)


def _killed_at(stop: int, to: RegistryOutput, sample: images.Layered) -> None:
    def until(data: bytes, number: int) -> Iterator[bytes]:
        yield data[: len(data) // 2]
        if number == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        yield data[len(data) // 2 :]

    for number, (data, packed) in enumerate(zip(sample.layers, sample.packed, strict=True)):
        if not to.has(packed):
            to.take(partial(until, data, number))
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_image_can_be_sent_again_after_a_kill(real: str, sample: images.Layered, tmp_path: Path) -> None:
    """The image appears only when it is complete, and remains of the killed process do not disturb."""
    repository = "repro-env-test/killed"
    for stop in range(4):
        child = os.fork()
        if not child:
            try:
                _killed_at(stop, output(real, repository=repository), sample)
            finally:
                os._exit(1)  # after an error, the child must not continue with the tests
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert Registry(real).head(repository, "v1") is None
    send(output(real, repository=repository), sample)
    assert Registry(real).head(repository, "v1") == sample.image.manifest_blob.digest


def test_a_registry_that_fails_leaves_no_tag(real: str, sample: images.Layered) -> None:
    with Front(real) as front:
        front.fail("PUT", "/blobs/", "status", 500, times=50)
        with pytest.raises(NetworkError, match="an internal problem"):
            send(output(front.host, repository="repro-env-test/failed"), sample)
    assert Registry(real).head("repro-env-test/failed", "v1") is None


def test_a_digest_cannot_be_pushed_to() -> None:
    with pytest.raises(UsageError, match="has a digest"):
        RegistryOutput(parse("registry.example.com/a@sha256:" + "0" * 64))


def test_skopeo_reads_the_image(real: str, sample: images.Layered, tmp_path: Path) -> None:
    need(shutil.which("skopeo"), "skopeo: apt-get install skopeo")
    image, line = send(output(real, repository="repro-env-test/skopeo"), sample)
    source = f"docker://{line.partition(' ')[0]}"
    done = subprocess.run(
        ["skopeo", "copy", "--src-tls-verify=false", source, f"oci:{tmp_path / 'layout'}:x"], check=True, capture_output=True
    )
    assert done.returncode == 0
    there = {path.name for path in (tmp_path / "layout/blobs/sha256").iterdir()}
    assert there == {one.digest[7:] for one in (*image.layers, image.config_blob, image.manifest_blob)}


def test_a_layout_of_skopeo_is_read(real: str, sample: images.Layered, tmp_path: Path) -> None:
    """Read an image in Docker schema 2, the other format in registries."""
    need(shutil.which("skopeo"), "skopeo: apt-get install skopeo")
    send(output(real, repository="repro-env-test/schema"), sample)
    source, target = (f"docker://{real}/repro-env-test/schema:{tag}" for tag in ("v1", "docker"))
    command = ["skopeo", "copy", "--src-tls-verify=false", "--dest-tls-verify=false", "--format", "v2s2", source, target]
    subprocess.run(command, check=True, capture_output=True)
    registry = Registry(real)
    found, data, _ = registry.image("repro-env-test/schema", "docker", architecture="amd64")
    assert json.loads(data)["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert json.loads(registry.small("repro-env-test/schema", found.config)) == json.loads(sample.config)
    assert [registry.small("repro-env-test/schema", layer) for layer in found.layers] == list(sample.layers)


def test_docker_pulls_the_image(real: str, sample: images.Layered) -> None:
    need(shutil.which("docker") and Path("/var/run/docker.sock").exists(), "a Docker engine: apt-get install docker.io")
    image, line = send(output(real, repository="repro-env-test/docker"), sample)
    name = line.partition(" ")[0]
    try:
        subprocess.run(["docker", "pull", "--quiet", name], check=True, capture_output=True)
        done = subprocess.run(["docker", "inspect", "--format", "{{.Id}}", name], check=True, capture_output=True, text=True)
        assert done.stdout.strip() == image.config_blob.digest
    finally:
        subprocess.run(["docker", "rmi", "--force", name], check=False, capture_output=True)
