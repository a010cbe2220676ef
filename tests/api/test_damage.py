"""What is damaged in the store, or beside a spec, is found before it is used, and had again from where it came from."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from repro_env.api.rebuild import rebuild
from repro_env.delivery.builder.sinks import send
from repro_env.delivery.targets.ocilayout import Oci
from repro_env.io.files import sha256_of
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened
from repro_env.store.store import Store
from tests.api.damage import flip, layer_file, remove, truncate
from tests.fakes import specs, wheels
from tests.fakes.index import Index

DAMAGES = [flip, truncate, remove]
NAMES = ("demo", "more")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "wheels") as one:
        yield one


@pytest.fixture
def spec(tmp_path: Path, index: Index) -> Spec:
    """Of two wheels that a server has, and trees that are bundled."""
    made = {
        name: wheels.make(index.directory, name, files={f"{name}.py": random.Random(name).randbytes(30_000)}) for name in NAMES
    }
    urls = {name: [f"{index.url.removesuffix('/simple')}/files/{quote(path.name)}"] for name, path in made.items()}
    return specs.make(tmp_path / "repro", made, urls=urls)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def sent(spec: Spec, tmp_path: Path, store: Store, name: str) -> dict[str, str]:
    """`rebuild --output oci:`; every file's name and digest."""
    directory = tmp_path / name
    send(spec, tmp_path / "repro", store, Oci(directory, ""), tell=Silent())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (directory / "blobs/sha256").iterdir()}
    assert all(name == digest for name, digest in found.items())
    return found


def built(spec: Spec, tmp_path: Path, store: Store) -> str:
    return rebuild(Opened(spec, tmp_path / "repro"), store=store, tell=Silent()).image_id


def fetched(index: Index) -> list[str]:
    """Wheels that were asked for since this was asked last."""
    names = [one.path.rpartition("/")[2].partition("-")[0] for one in index.asked if "/files/" in one.path]
    index.asked.clear()
    return sorted(set(names))


def blob(spec: Spec, store: Store, name: str) -> Path:
    (wheel,) = (one for one in spec.identity.distributions if one.name == name)
    return store.root / "blobs" / wheel.sha256.removeprefix("sha256:")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("known", [True, False])
def test_a_wheel_for_an_output(
    spec: Spec, tmp_path: Path, store: Store, index: Index, damage: Callable[[Path], None], known: bool
) -> None:
    """`known`: what the layers are as blobs was proven before, so that nothing of a wheel has to be inflated."""
    first = sent(spec, tmp_path, store, "first")
    assert fetched(index) == ["demo", "more"]
    if not known:
        for fact in (path for kind in (store.root / "facts").iterdir() for path in kind.iterdir()):
            fact.unlink()
    damage(blob(spec, store, "demo"))
    assert sent(spec, tmp_path, store, "second") == first
    assert "demo" in fetched(index)
    assert sha256_of(blob(spec, store, "demo")) == blob(spec, store, "demo").name


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wheel_for_the_store(spec: Spec, tmp_path: Path, store: Store, index: Index, damage: Callable[[Path], None]) -> None:
    sent(spec, tmp_path, store, "first")
    fetched(index)
    damage(blob(spec, store, "demo"))
    assert built(spec, tmp_path, store) == spec.expected.image_id
    assert fetched(index) == ["demo"]
    assert sha256_of(blob(spec, store, "demo")) == blob(spec, store, "demo").name


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_blob_of_an_output_is_written_again(spec: Spec, tmp_path: Path, store: Store, damage: Callable[[Path], None]) -> None:
    first = sent(spec, tmp_path, store, "out")
    largest = max((tmp_path / "out/blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    damage(largest)
    assert sent(spec, tmp_path, store, "out") == first


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("output", [True, False])
def test_a_carried_tree_is_named_and_makes_nothing(
    spec: Spec, tmp_path: Path, store: Store, damage: Callable[[Path], None], output: bool
) -> None:
    """There is no other place that could give it again."""
    if output:
        sent(spec, tmp_path, store, "first")  # its bytes as they are sent are known by now
    path = specs.blob(tmp_path / "repro", spec.identity.base)
    damage(path)
    with pytest.raises((ArtifactError, BuildError)) as raised:
        sent(spec, tmp_path, store, "out") if output else built(spec, tmp_path, store)
    assert path.name.partition(".")[0][:12] in str(raised.value)
    assert not (tmp_path / "out/index.json").exists()
    assert store.images.get(spec.expected.image_id) is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_carried_tree_whose_layer_is_in_the_store_is_not_missed(
    spec: Spec, tmp_path: Path, store: Store, damage: Callable[[Path], None]
) -> None:
    built(spec, tmp_path, store)
    damage(specs.blob(tmp_path / "repro", spec.identity.base))
    assert built(spec, tmp_path, store) == spec.expected.image_id


def test_a_damaged_layer_is_no_source_for_an_output(spec: Spec, tmp_path: Path, store: Store) -> None:
    """With the blob gone, the unpacked tree would be taken: never with other bytes."""
    built(spec, tmp_path, store)
    path = layer_file(spec, store, "base")
    specs.blob(tmp_path / "repro", spec.identity.base).unlink()
    flip(path)
    with pytest.raises((ArtifactError, BuildError)):
        sent(spec, tmp_path, store, "out")
    assert not (tmp_path / "out/index.json").exists()
