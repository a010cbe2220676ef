"""Push, and taking back from there: a real registry, tiny specs."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.build import remote
from repro_env.flows.opened import Opened, opened
from repro_env.flows.push import Pushed, push
from repro_env.flows.rebuild import Rebuilt, rebuild
from repro_env.model.errors import ArtifactError, NetworkError, ReproEnvError, SpecError
from repro_env.model.spec import Spec
from repro_env.registry.reference import parse
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import configured
from tests.flows.test_rebuild import Told
from tests.registries import registry

TAG = "team/train:1"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "no-uv-cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    with configured(monkeypatch, no_index="1"):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "project" / "repro"


@pytest.fixture
def repository(host: str, tmp_path: Path) -> str:
    """A repository of the test's own."""
    return f"{host}/{tmp_path.name.lower().replace('_', '-').strip('-')}"


@pytest.fixture
def spec(folder: Path, tmp_path: Path) -> Spec:
    """Of a carried wheel, and one that was linked and is in the store alone."""
    own = tmp_path / "wheels"
    made = {
        "alpha": wheels.make(own, "alpha", files={"alpha/__init__.py": b"A = 1\n", "alpha/b.py": b"B = 2\n" * 900}),
        "beta": wheels.make(own, "beta", "2.0", {"beta.py": b"X = 2\n" * 1000}),
    }
    spec = specs.make(folder, made, carry=["alpha"], overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})
    for name, path in made.items():
        one = next(one for one in spec.identity.distributions if one.name == name)
        Store.open().blobs.put([path.read_bytes()], one.sha256, where=name)
    (folder / "requirements.txt").write_text("alpha==1.0\n")
    (folder / "private.txt").write_text("no part of the spec")
    return spec


def bare(tmp_path: Path, name: str = "bare") -> Store:
    return Store.open(tmp_path / f"{name}-store")


def sent(spec: Spec, folder: Path, to: str) -> tuple[Pushed, Told]:
    told = Told()
    return push(spec, folder, parse(to), store=Store.open(), tell=told), told


def made(found: Opened, store: Store, told: Told | None = None) -> Rebuilt:
    return rebuild(found.spec, found.folder, store=store, dry_run=False, tell=told or Told())


def test_a_bare_machine_rebuilds_from_a_reference(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    done, _ = sent(spec, folder, f"{repository}:1")
    assert done.changed
    assert done.sent
    assert done.image_id == spec.expected.image_id
    store, told = bare(tmp_path), Told()
    shutil.rmtree(folder)
    found = opened(f"{repository}:1", tmp_path, store, told)
    assert found.spec == spec
    assert found.runs == tmp_path / "runs"
    assert (found.folder / "requirements.txt").read_text() == "alpha==1.0\n"
    assert not (found.folder / "private.txt").exists()
    rebuilt = made(found, store, told)
    assert rebuilt.image_id == spec.expected.image_id
    assert rebuilt.plan is not None
    assert {item.what.partition("==")[0]: item.origin for item in rebuilt.plan.items} == dict.fromkeys(
        ("alpha", "beta", "base", "interpreter", "overlay", "source"), "registry"
    )
    assert rebuilt.fetched > 0
    assert any("comes whole from" in line for line in told.lines)
    assert any(line.startswith("fetching the base from") for line in told.lines)
    assert spec.observed.source is not None
    assert store.layers.path(spec.observed.source.tree.sha256) is not None


def test_a_second_push_sends_nothing(spec: Spec, folder: Path, repository: str) -> None:
    first, _ = sent(spec, folder, f"{repository}:1")
    written = (folder / "remote.json").read_bytes()
    second, _ = sent(spec, folder, f"{repository}:1")
    assert (second.changed, second.sent, second.blobs) == (False, 0, 0)
    assert (second.image, second.spec) == (first.image, first.spec)
    assert (folder / "remote.json").read_bytes() == written
