"""The image in a real engine: it has the expected ID, only missing layers are sent, and a failure leaves nothing."""

from __future__ import annotations

import hashlib
import secrets
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from repro_env.delivery.targets import engine as output
from repro_env.delivery.targets.engine import EngineOutput, Layer
from repro_env.io import engine as engines
from repro_env.io.engine import Engine
from repro_env.oci import tar
from repro_env.oci.entry import Entry
from repro_env.oci.manifest import Image
from repro_env.schema.errors import ArtifactError, EngineError, UsageError
from repro_env.schema.image import LABEL, Packed
from repro_env.store.temporary import Temp
from tests.sandbox.engines import EngineProxy, config, docker, plain_layer

NAME = f"repro-env-test-engine-{secrets.token_hex(4)}"
"""A unique name, because other test workers use the engine too. Images with it are removed after each test."""


def layer(name: str, text: str) -> Layer:
    return plain_layer(b"".join(tar.write([(Entry(name, "file", size=len(text)), [text.encode()])])))


def unread(one: Layer) -> Layer:
    """Return the same layer; reading it fails the test."""

    def never() -> Iterator[bytes]:
        raise AssertionError("a layer that the engine has was read")

    return Layer(one.diff_id, one.blob, never)


def id_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def own_id(engine: Engine, data: bytes, layers: Sequence[Layer]) -> str:
    image = Image(data, tuple(layer.blob for layer in layers))
    return image.manifest_blob.digest if engine.facts.has_manifests else image.config_blob.digest


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engines.connect(docker()) as opened:
        yield opened
        for name in [
            tag for image in opened.client.api.images(name=NAME) for tag in image["RepoTags"] or () if tag.startswith(NAME)
        ]:
            opened.client.api.remove_image(name, force=True)


@pytest.fixture
def unique(tmp_path: Path) -> str:
    """Return a text that no other test uses for its layers."""
    return str(tmp_path)


def test_an_image_has_its_id_and_only_new_layers_are_sent(engine: Engine, unique: str) -> None:
    one, two, three = (layer(name, unique + name) for name in ("one", "two", "three"))
    first, second = config([one, two]), config([one, two, three])
    known = 0 if engine.facts.has_manifests else 2
    assert not engine.find_image(id_of(first))
    output.load(engine, first, [one, two], f"{NAME}:first")
    assert engine.find_image(id_of(first))
    assert output.count_known_layers(engine, [one.diff_id, two.diff_id, three.diff_id]) == known
    assert output.count_known_layers(engine, [two.diff_id, one.diff_id]) == 0
    output.load(engine, second, [*map(unread, (one, two)[:known]), *(one, two)[known:], three], f"{NAME}:second")
    found = engine.client.api.inspect_image(f"{NAME}:second")
    assert found["Id"] == own_id(engine, second, [one, two, three])
    assert found["RootFS"]["Layers"] == [one.diff_id, two.diff_id, three.diff_id]
    output.load(engine, second, [unread(one), unread(two), unread(three)], f"{NAME}:third")
    assert engine.client.api.inspect_image(f"{NAME}:third")["Id"] == found["Id"] == engine.find_image(id_of(second))


def test_an_image_with_other_layers_or_settings_is_not_taken_for_it(engine: Engine, unique: str) -> None:
    one, two = (layer(name, unique + name) for name in ("one", "two"))
    output.load(engine, config([one]), [one], f"{NAME}:first")
    settings = {"WorkingDir": "/", "Env": ["PATH=/bin", "MORE=1"], "Labels": {LABEL: "sha256:" + "0" * 64}}
    for data in (
        config([two]),
        config([one, two]),
        config([one], config=settings),
        config([one], created="1980-01-01T00:00:01Z"),
    ):
        assert not engine.find_image(id_of(data))
    offset = config([one], created="1980-01-01T00:00:00+00:00")
    output.load(engine, offset, [one], f"{NAME}:offset")
    assert engine.find_image(id_of(offset)), "Docker reports the time with another offset"


def test_layers_with_wrong_bytes_are_refused(engine: Engine, unique: str) -> None:
    one = layer("one", unique)
    other = layer("one", unique + "damaged")
    lying = Layer(one.diff_id, msgspec.structs.replace(one.blob, size=other.blob.size), other.chunks)
    with pytest.raises(EngineError, match="cannot take the image"):
        output.load(engine, config([lying]), [lying], f"{NAME}:lying")
    assert not engine.find_image(id_of(config([lying]))), "an image that cannot be unpacked is removed"


def test_an_engine_that_stops_gives_one_clear_error(unique: str, tmp_path: Path) -> None:
    proxy = EngineProxy(tmp_path, docker())
    one = layer("one", unique)

    def cutting() -> Iterator[bytes]:
        proxy.cut()
        yield from one.chunks()
        yield bytes(1 << 24)

    larger = msgspec.structs.replace(one.blob, size=one.blob.size + (1 << 24))
    with engines.connect(proxy.address) as engine, pytest.raises(EngineError, match="engine"):
        output.load(engine, config([one]), [Layer(one.diff_id, larger, cutting)], f"{NAME}:cut")


def test_layers_are_kept_until_all_are_there(engine: Engine, unique: str, tmp_path: Path) -> None:
    plain = [layer(name, unique + name) for name in ("one", "two")]
    diff_ids = [layer.diff_id for layer in plain]
    sent = EngineOutput(engines.connect(docker()), f"{NAME}:output", Temp(tmp_path), diff_ids)
    blobs = [sent.take(partial(compressed, one)) for one in plain]
    packed = [Packed(diff_id=diff_id, blob=blob) for diff_id, blob in zip(diff_ids, blobs, strict=True)]
    assert not any(map(sent.has, packed))
    image = Image(config(plain), tuple(blobs))
    said = sent.finish(image)
    assert f"{NAME}:output in Docker" in said
    assert image.config_blob.digest in said
    sent.close()
    assert list(tmp_path.iterdir()) == []
    again = EngineOutput(engines.connect(docker()), f"{NAME}:again", Temp(tmp_path), diff_ids)
    if engine.facts.has_manifests:
        assert [again.take(partial(compressed, data)) for data in plain] == blobs
    else:
        assert all(map(again.has, packed)), "layers in the engine are not made again"
    again.finish(image)
    again.close()
    compressed_id = image.manifest_blob.digest if engine.facts.has_manifests else image.config_blob.digest
    assert engine.client.api.inspect_image(f"{NAME}:again")["Id"] == compressed_id
    assert engine.find_image(image.config_blob.digest) == compressed_id


def test_names_are_checked_before_anything_is_sent() -> None:
    assert [output.with_tag(name) for name in ("a", "a:1", "localhost:5000/a", "localhost:5000/a:1")] == [
        "a:latest", "a:1", "localhost:5000/a:latest", "localhost:5000/a:1",
    ]  # fmt: skip
    for name in ("UPPER", "a b", "a@sha256:" + "0" * 64):
        with pytest.raises(UsageError):
            output.with_tag(name)


def test_a_layer_that_the_engine_removed_is_named(unique: str, tmp_path: Path) -> None:
    removed = layer("one", unique)
    sent = EngineOutput(engines.connect(docker()), f"{NAME}:lost", Temp(tmp_path), [removed.diff_id])
    with pytest.raises(ArtifactError, match="the layer is missing"):
        sent.finish(Image(config([removed]), (Image(b"{}", ()).config_blob,)))
    sent.close()


def compressed(layer: Layer) -> Iterator[bytes]:
    made = zlib.compressobj(1, zlib.DEFLATED, 31)
    yield made.compress(b"".join(layer.chunks()))
    yield made.flush()
