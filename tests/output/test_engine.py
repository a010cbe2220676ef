"""The image in a real engine: under its ID, only what is missing is sent, and nothing stays of what fails."""

from __future__ import annotations

import hashlib
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.image import tar
from repro_env.image.entry import Entry
from repro_env.image.manifest import Image
from repro_env.io import engine as engines
from repro_env.io.engine import Engine
from repro_env.model.errors import BuildError, EngineError, UsageError
from repro_env.model.image import Packed
from repro_env.output import engine as output
from repro_env.output.engine import EngineOutput, Layer
from repro_env.store.temp import Temp
from tests.run.engines import Between, config, docker

NAME = f"repro-env-test-engine-{secrets.token_hex(4)}"
"""Nobody else's: what has it is removed after each test, and other workers use the engine too."""


def layer(name: str, text: str) -> Layer:
    data = b"".join(tar.write([(Entry(name, "file", size=len(text)), [text.encode()])]))
    return Layer("sha256:" + hashlib.sha256(data).hexdigest(), lambda: len(data), lambda: [data])


def unread(one: Layer) -> Layer:
    """The same layer, which must not be asked for."""

    def never() -> Iterator[bytes]:
        raise AssertionError("a layer that the engine has was read")

    return Layer(one.diff_id, one.size, never)


def id_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engines.opened(docker()) as opened:
        yield opened
        for name in [tag for one in opened.client.api.images(name=NAME) for tag in one["RepoTags"] or () if tag.startswith(NAME)]:
            opened.client.api.remove_image(name, force=True)


@pytest.fixture
def unique(tmp_path: Path) -> str:
    """So that no other test's layers are these."""
    return str(tmp_path)


def test_an_image_has_its_id_and_only_new_layers_are_sent(engine: Engine, unique: str) -> None:
    one, two, three = (layer(name, unique + name) for name in ("one", "two", "three"))
    first, second = config([one, two]), config([one, two, three])
    assert not output.has(engine, id_of(first))
    output.load(engine, first, [one, two], f"{NAME}:first")
    assert output.has(engine, id_of(first))
    assert output.below(engine, [one.diff_id, two.diff_id, three.diff_id]) == 2
    assert output.below(engine, [two.diff_id, one.diff_id]) == 0
    output.load(engine, second, [unread(one), unread(two), three], f"{NAME}:second")
    found = engine.client.api.inspect_image(f"{NAME}:second")
    assert found["Id"] == id_of(second)
    assert found["RootFS"]["Layers"] == [one.diff_id, two.diff_id, three.diff_id]
    output.load(engine, second, [unread(one), unread(two), unread(three)], f"{NAME}:third")
    assert engine.client.api.inspect_image(f"{NAME}:third")["Id"] == id_of(second)


def test_other_bytes_than_the_layers_are_refused(engine: Engine, unique: str) -> None:
    one = layer("one", unique)
    other = layer("one", unique + "damaged")
    lying = Layer(one.diff_id, other.size, other.chunks)
    with pytest.raises(EngineError, match="cannot take the image"):
        output.load(engine, config([lying]), [lying], f"{NAME}:lying")
    assert not output.has(engine, id_of(config([lying])))


def test_an_engine_that_goes_away_is_one_sentence(unique: str, tmp_path: Path) -> None:
    proxy = Between(tmp_path, docker())
    one = layer("one", unique)

    def cutting() -> Iterator[bytes]:
        proxy.cut()
        yield from one.chunks()
        yield bytes(1 << 24)

    with engines.opened(proxy.address) as engine, pytest.raises(EngineError, match="engine"):
        output.load(engine, config([one]), [Layer(one.diff_id, lambda: one.size() + (1 << 24), cutting)], f"{NAME}:cut")


def test_the_output_keeps_blobs_until_all_are_there(engine: Engine, unique: str, tmp_path: Path) -> None:
    plain = [layer(name, unique + name) for name in ("one", "two")]
    sent = EngineOutput(engines.opened(docker()), f"{NAME}:output", Temp(tmp_path / "temp"), (), [one.diff_id for one in plain])
    blobs = [sent.take(iter([gzip(b"".join(one.chunks()))]), None) for one in plain]
    assert all(sent.has(blob) for blob in blobs)
    image = Image(config(plain), tuple(blobs))
    said = sent.finish(image)
    assert f"{NAME}:output in Docker" in said
    assert image.config_blob.digest in said
    sent.close()
    assert not (tmp_path / "temp").exists()
    packed = tuple(Packed(diff_id=one.diff_id, blob=blob) for one, blob in zip(plain, blobs, strict=True))
    again = EngineOutput(
        engines.opened(docker()), f"{NAME}:again", Temp(tmp_path / "temp"), packed, [one.diff_id for one in plain]
    )
    assert all(again.has(blob) for blob in blobs), "in the engine: not to be made again"
    assert not again.has(msgspec.structs.replace(blobs[0], digest="sha256:" + "0" * 64))
    again.finish(image)
    again.close()
    assert engine.client.api.inspect_image(f"{NAME}:again")["Id"] == image.config_blob.digest


def test_names_are_looked_at_before_anything_is_sent() -> None:
    assert [output.tagged(name) for name in ("a", "a:1", "localhost:5000/a", "localhost:5000/a:1")] == [
        "a:latest", "a:1", "localhost:5000/a:latest", "localhost:5000/a:1",
    ]  # fmt: skip
    for name in ("UPPER", "a b", "a@sha256:" + "0" * 64):
        with pytest.raises(UsageError):
            output.tagged(name)


def test_a_layer_that_the_engine_lost_is_named(unique: str, tmp_path: Path) -> None:
    one = layer("one", unique)
    blob = Packed(diff_id=one.diff_id, blob=Image(b"{}", ()).config_blob)
    sent = EngineOutput(engines.opened(docker()), f"{NAME}:lost", Temp(tmp_path / "temp"), (blob,), [one.diff_id])
    with pytest.raises(BuildError, match="lost it meanwhile"):
        sent.finish(Image(config([one]), (blob.blob,)))
    sent.close()


def gzip(data: bytes) -> bytes:
    made = zlib.compressobj(1, zlib.DEFLATED, 31)
    return made.compress(data) + made.flush()
