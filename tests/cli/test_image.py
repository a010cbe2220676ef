"""The output and exit codes of `repro-env image verify`, for directories, archives and registries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repro_env.registry.client import Registry
from tests.fakes import images
from tests.fakes.images import Layered
from tests.registries import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Layered:
    return images.sample(tmp_path_factory.mktemp("sample"))


def call(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro_env", "image", "verify", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_image_verify_does_not_accept_an_intact_image_without_a_spec(sample: Layered, tmp_path: Path) -> None:
    images.layout(sample, tmp_path / "oci")
    process = call(tmp_path, "oci")
    assert process.returncode == 1, process.stderr
    assert f"image ID      {sample.image_id}" in process.stdout
    assert "\nnot verified" in process.stdout
    assert "name the spec of the image with --spec" in process.stdout
    facts = json.loads(call(tmp_path, "oci:oci", "--json").stdout)
    assert facts["good"] is False
    assert facts["reports"][0]["layers"] == 4
    assert (facts["reports"][0]["mismatches"], facts["reports"][0]["compared"]) == ([], False)


def test_image_verify_reports_a_missing_layer(sample: Layered, tmp_path: Path) -> None:
    images.saved(Layered(sample.layers[:1], sample.config), tmp_path / "saved.tar")
    process = call(tmp_path, "saved.tar")
    assert process.returncode == 1
    assert "not intact: 1 mismatch" in process.stdout
    assert "names 4 layers, but the image has 1" in process.stdout


def test_image_verify_refuses_a_path_without_an_image(tmp_path: Path) -> None:
    process = call(tmp_path, "nothing")
    assert process.returncode == 2
    assert "this file or directory does not exist" in process.stderr
    (tmp_path / "empty").mkdir()
    assert call(tmp_path, "empty").returncode == 11


def test_image_verify_reads_an_image_in_a_registry(sample: Layered, tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as host:
        server = Registry(host, pause=0.01)
        image = sample.image
        for data, layer in zip(sample.layers, image.layers, strict=True):
            server.upload("team/app", [data].__iter__, layer)
        server.ensure("team/app", image.config, image.config_blob.media_type)
        server.put_manifest("team/app", "v1", image.manifest, image.manifest_blob.media_type)
        process = call(tmp_path, f"{host}/team/app:v1")
        assert "not verified" in process.stdout, process.stderr
        assert image.manifest_blob.digest in process.stdout
        blob = next((tmp_path / "registry").rglob(f"{image.layers[1].digest[7:]}/data"))
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
        assert "not intact: " in call(tmp_path, f"{host}/team/app:v1").stdout
        assert call(tmp_path, f"{host}/team/app:v2").returncode != 0
