"""Sending an image to an output: the expected image ID from any source, and no image from wrong content."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from repro_env.delivery.builder import sinks
from repro_env.delivery.builder.build import Build
from repro_env.delivery.builder.sinks import OutputSink, SentImage
from repro_env.oci.manifest import Image
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.image import GZIP, Blob, Layer, Packed
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Spec
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import configured


class Memory:
    """An output in memory."""

    in_workers = False

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.image: Image | None = None

    def has(self, layer: Packed) -> bool:
        return layer.blob.digest in self.blobs

    def take(self, chunks: Callable[[], Iterator[bytes]]) -> Blob:
        data = b"".join(chunks())
        made = Blob(media_type=GZIP, digest="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data))
        self.blobs[made.digest] = data
        return made

    def finish(self, image: Image) -> str:
        self.image = image
        return "memory"

    def close(self) -> None:
        pass


@pytest.fixture
def store() -> Store:
    return Store.open()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "repro"


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    own = tmp_path / "wheels"
    files = {"alpha/__init__.py": b"X = 1\n" * 400, "alpha/empty": b"", "alpha-1.0.data/scripts/run": b"#!python\n"}
    return {
        "alpha": wheels.make(own, "alpha", files=files, entry_points="[console_scripts]\nalpha = alpha:main\n"),
        "beta-two": wheels.make(own, "beta-two", "2.0", {"beta_two.py": b"Y = 2\n" * 400}),
    }


@pytest.fixture
def spec(directory: Path, made: dict[str, Path]) -> Spec:
    return specs.make(directory, made, carry=list(made), overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with configured(monkeypatch, no_index="1"):
        yield


def send(spec: Spec, directory: Path, store: Store, output: Memory | None = None, *, source: bool = False) -> SentImage:
    return sinks.send(spec, directory, store, output or Memory(), tell=Silent(), source=source)


def test_the_sent_layers_have_the_expected_diff_ids(spec: Spec, directory: Path, store: Store) -> None:
    output = Memory()
    sent = send(spec, directory, store, output)
    assert sent.image_id == spec.expected.image_id
    assert output.image == sent.image
    for packed, layer in zip(sent.layers, spec.expected.layers, strict=True):
        tar = gzip.decompress(output.blobs[packed.blob.digest])
        assert "sha256:" + hashlib.sha256(tar).hexdigest() == packed.diff_id == layer.diff_id
    assert not any((store.root / "layers").iterdir())


def test_layers_that_the_output_has_are_not_sent(spec: Spec, directory: Path, store: Store, made: dict[str, Path]) -> None:
    output = Memory()
    first = send(spec, directory, store, output)
    for path in (directory / "blobs").iterdir():  # they are not needed
        path.unlink()
    again = send(spec, directory, store, output)
    assert (again.made, again.image) == ((), first.image)


def test_a_changed_wheel_changes_only_its_layer(
    spec: Spec, directory: Path, store: Store, made: dict[str, Path], tmp_path: Path
) -> None:
    output = Memory()
    send(spec, directory, store, output)
    other = {**made, "beta-two": wheels.make(tmp_path / "newer", "beta-two", "2.1", {"beta_two.py": b"Y = 3\n" * 400})}
    changed = specs.make(directory, other, carry=list(other), overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})
    sent = send(changed, directory, store, output)
    kinds = {layer.diff_id: layer.kind for layer in changed.expected.layers}
    assert sorted(kinds[diff_id] for diff_id in sent.made if kinds[diff_id] in ("distributions", "marker")) == [
        "distributions",
        "marker",
    ]
    held = {layer.diff_id: layer.holds for layer in changed.expected.layers}
    assert {held[diff_id] for diff_id in sent.made if held[diff_id]} == {("beta-two==2.1",)}


def test_a_damaged_wheel_in_the_store_is_fetched_again(spec: Spec, directory: Path, store: Store, made: dict[str, Path]) -> None:
    wheel = next(wheel for wheel in spec.identity.distributions if wheel.name == "alpha")
    for known in (False, True):
        path = store.blobs.put([made["alpha"].read_bytes()], wheel.sha256, where="here")
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        at = data.index(b"alpha/__init__.py") + 30
        data[at] ^= 0xFF
        path.write_bytes(bytes(data))
        assert send(spec, directory, store).image_id == spec.expected.image_id, known


def test_a_damaged_tree_is_refused_by_name(spec: Spec, directory: Path, store: Store) -> None:
    path = specs.blob(directory, spec.identity.base)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    output = Memory()
    with pytest.raises((ArtifactError, BuildError)) as failed:
        send(spec, directory, store, output)
    assert "base" in str(failed.value)
    assert output.image is None


def test_a_tree_without_a_blob_is_sent_from_its_unpacked_layer(spec: Spec, directory: Path, store: Store) -> None:
    blob = spec.identity.base
    store.layers.unpack(blob.sha256, SpecBlobs(directory / "blobs").tree(blob))
    first = send(spec, directory, store)
    for path in (specs.blob(directory, blob),):
        path.unlink()
    other = Store.open(store.root.parent / "other")
    other.layers.unpack(blob.sha256, store.layers.members(blob.sha256))
    again = send(spec, directory, other)
    assert again.image_id == first.image_id == spec.expected.image_id
    assert again.image == first.image  # with the same zlib; another version may give another manifest


def test_no_image_is_stored_for_a_wrong_spec(spec: Spec, directory: Path, store: Store) -> None:
    layers = tuple(
        msgspec.structs.replace(layer, diff_id="sha256:" + "1" * 64)
        if layer.kind == "distributions" and "alpha==1.0" in layer.holds
        else layer
        for layer in spec.expected.layers
    )
    lying = _with(spec, layers)
    output = Memory()
    with pytest.raises(BuildError, match="not the expected sha256:1111"):
        send(lying, directory, store, output)
    assert output.image is None


def test_groups_that_violate_the_rule_are_refused(spec: Spec, directory: Path, store: Store, made: dict[str, Path]) -> None:
    """One layer with both wheels: its content is right, but it violates the grouping rule."""
    apart = [layer for layer in spec.expected.layers if layer.kind == "distributions"]
    assert len(apart) == 2, "the names must be in two buckets"
    swapped = {apart[0].diff_id: apart[1], apart[1].diff_id: apart[0]}
    lying = _with(spec, tuple(swapped.get(layer.diff_id, layer) for layer in spec.expected.layers))
    with pytest.raises(BuildError, match="grouping rule"):
        send(lying, directory, store)


def test_the_source_is_the_last_layer_at_its_captured_path(spec: Spec, directory: Path, store: Store) -> None:
    output = Memory()
    sent = send(spec, directory, store, output, source=True)
    assert sent.image_id != spec.expected.image_id
    assert [layer.diff_id for layer in sent.layers[:-1]] == [layer.diff_id for layer in spec.expected.layers]
    config = json.loads(sent.image.config)
    assert config["config"]["WorkingDir"] == "/home/ann/project"
    assert config["rootfs"]["diff_ids"][-1] == sent.layers[-1].diff_id
    tar = gzip.decompress(output.blobs[sent.layers[-1].blob.digest])
    assert "sha256:" + hashlib.sha256(tar).hexdigest() == sent.layers[-1].diff_id
    with tarfile.open(fileobj=BytesIO(tar)) as archive:
        names = archive.getnames()
    assert names == ["home", "home/ann", "home/ann/project", "home/ann/project/train.py"]
    again = send(spec, directory, store, output, source=True)
    assert (again.made, again.image) == ((sent.layers[-1].diff_id,), sent.image)
    assert send(spec, directory, store, output).image_id == spec.expected.image_id


def test_a_spec_without_source_cannot_add_it(spec: Spec, directory: Path, store: Store) -> None:
    bare = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=None))
    with pytest.raises(BuildError, match="has no source"):
        send(bare, directory, store, source=True)


def test_a_plan_names_the_origin_of_every_artifact(spec: Spec, directory: Path, store: Store) -> None:
    output = Memory()
    plan = Build(spec, directory, store, OutputSink(output, spec, directory, store)).plan(ask=True)
    origins = {item.what: item.origin for item in plan.items}
    assert origins == {
        "base": "bundled",
        "interpreter": "bundled",
        "alpha==1.0": "bundled",
        "beta-two==2.0": "bundled",
        "overlay": "bundled",
    }
    assert output.blobs == {}
    send(spec, directory, store, output)
    later = Build(spec, directory, store, OutputSink(output, spec, directory, store)).plan(ask=True)
    assert {item.origin for item in later.items} == {"output"}
    assert later.write == 0


def _with(spec: Spec, layers: tuple[Layer, ...]) -> Spec:
    """Return the spec with other expected layers and their image ID."""
    from repro_env.oci import config

    image_id = config.image_id(spec.identity, layers)
    return msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, layers=layers, image_id=image_id))
