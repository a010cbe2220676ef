"""`repro-env image verify` as a command: what is printed, and the exit codes; folders, archives and registries."""

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


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro_env", "image", "verify", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_as_it_says(sample: Layered, tmp_path: Path) -> None:
    images.layout(sample, tmp_path / "oci")
    done = call(tmp_path, "oci")
    assert done.returncode == 0, done.stderr
    assert f"image ID      {sample.image_id}" in done.stdout
    assert "as it says: 4 layers" in done.stdout
    facts = json.loads(call(tmp_path, "oci:oci", "--json").stdout)
    assert facts["good"] is True
    assert facts["images"][0]["layers"] == 4
    assert facts["images"][0]["mismatches"] == []


def test_what_is_not_as_it_says(sample: Layered, tmp_path: Path) -> None:
    images.saved(Layered(sample.layers[:1], sample.config), tmp_path / "saved.tar")
    done = call(tmp_path, "saved.tar")
    assert done.returncode == 1
    assert "not as it says: 1 mismatch" in done.stdout
    assert "names 4 layers, and the image has 1" in done.stdout


def test_what_is_nothing(tmp_path: Path) -> None:
    done = call(tmp_path, "nothing")
    assert done.returncode == 2
    assert "is not there" in done.stderr
    (tmp_path / "empty").mkdir()
    assert call(tmp_path, "empty").returncode == 11


def test_an_image_in_a_registry(sample: Layered, tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as host:
        server = Registry(host, pause=0.01)
        made = sample.image
        for data, one in zip(sample.layers, made.layers, strict=True):
            server.upload("team/app", [data], one)
        server.ensure("team/app", made.config, made.config_blob.media_type)
        server.put_manifest("team/app", "v1", made.manifest, made.manifest_blob.media_type)
        done = call(tmp_path, f"{host}/team/app:v1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert made.manifest_blob.digest in done.stdout
        blob = next((tmp_path / "registry").rglob(f"{made.layers[1].digest[7:]}/data"))
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
        assert call(tmp_path, f"{host}/team/app:v1").returncode == 1
        assert call(tmp_path, f"{host}/team/app:v2").returncode != 0
