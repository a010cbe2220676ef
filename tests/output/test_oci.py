"""An image layout: whole or not there, added to, and never trusted unread."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from repro_env.build.packing import Sent, pack
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent
from repro_env.output.oci import Oci
from repro_env.store.store import Store
from tests.fakes import specs, wheels


@pytest.fixture
def store() -> Store:
    return Store.open()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repro"


@pytest.fixture
def spec(folder: Path, tmp_path: Path) -> Spec:
    made = {name: wheels.make(tmp_path / "wheels", name, files={f"{name}.py": b"X = 1\n" * 500}) for name in ("alpha", "beta")}
    return specs.make(folder, made, carry=list(made), overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})


def send(spec: Spec, folder: Path, store: Store, to: Path, tag: str = "") -> Sent:
    return pack(spec, folder, store, Oci(to, tag, store.boot), tell=Silent())


def test_a_layout_has_the_image(spec: Spec, folder: Path, store: Store, tmp_path: Path) -> None:
    sent = send(spec, folder, store, tmp_path / "out", "v1")
    assert sent.image_id == spec.expected.image_id
    assert len(sent.made) == len(spec.expected.layers)
    index = json.loads((tmp_path / "out/index.json").read_bytes())
    assert [one["digest"] for one in index["manifests"]] == [sent.image.manifest_blob.digest]
    for path in (tmp_path / "out/blobs/sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    again = send(spec, folder, store, tmp_path / "out", "v1")
    assert again.made == ()
    assert again.image == sent.image
