"""An image straight into an output: the promised ID from whatever is there, and nothing from what is not as promised."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from repro_env.build import packing
from repro_env.build.packing import Sent, pack
from repro_env.image.manifest import Image
from repro_env.model.errors import ArtifactError, BuildError
from repro_env.model.image import GZIP, Blob, Layer
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent
from repro_env.store import inflate
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import configured


class Memory:
    """An output that keeps all of it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.image: Image | None = None
        self.closed = 0

    def has(self, blob: Blob) -> bool:
        return blob.digest in self.blobs

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        data = b"".join(chunks)
        made = Blob(media_type=GZIP, digest="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data))
        if known is not None and made.digest != known.digest:
            raise ArtifactError("became something else")
        self.blobs[made.digest] = data
        return made

    def finish(self, image: Image) -> str:
        self.image = image
        return "memory"

    def close(self) -> None:
        self.closed += 1


class Told(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)


@pytest.fixture
def store() -> Store:
    return Store.open()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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
def spec(folder: Path, made: dict[str, Path]) -> Spec:
    return specs.make(folder, made, carry=list(made), overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with configured(monkeypatch, no_index="1"):
        yield


def send(spec: Spec, folder: Path, store: Store, output: Memory | None = None, *, source: bool = False) -> Sent:
    return pack(spec, folder, store, output or Memory(), tell=Silent(), source=source)


def test_the_layers_inflate_to_the_promised_ones(spec: Spec, folder: Path, store: Store) -> None:
    output = Memory()
    sent = send(spec, folder, store, output)
    assert sent.image_id == spec.expected.image_id
    assert output.image == sent.image
    assert output.closed == 1
    for one, layer in zip(sent.layers, spec.expected.layers, strict=True):
        tar = gzip.decompress(output.blobs[one.blob.digest])
        assert "sha256:" + hashlib.sha256(tar).hexdigest() == one.diff_id == layer.diff_id
    assert not any((store.root / "layers").iterdir())


def test_what_is_known_is_not_inflated(spec: Spec, folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = send(spec, folder, store)

    class Refusing:
        error = OSError
        crc32 = staticmethod(inflate.ZLIB.crc32)

        @staticmethod
        def decompressobj(*_: int) -> None:
            raise AssertionError("inflated")

    monkeypatch.setattr(inflate, "ZLIB", Refusing)
    again = send(spec, folder, store)
    assert again.image == first.image
    assert len(again.made) == len(first.layers)


def test_what_the_output_has_is_not_sent(spec: Spec, folder: Path, store: Store, made: dict[str, Path]) -> None:
    output = Memory()
    first = send(spec, folder, store, output)
    for path in (folder / "blobs").iterdir():  # not even looked for
        path.unlink()
    again = send(spec, folder, store, output)
    assert (again.made, again.image) == ((), first.image)


def test_of_one_changed_wheel_its_layer_alone_is_made(
    spec: Spec, folder: Path, store: Store, made: dict[str, Path], tmp_path: Path
) -> None:
    output = Memory()
    send(spec, folder, store, output)
    other = {**made, "beta-two": wheels.make(tmp_path / "newer", "beta-two", "2.1", {"beta_two.py": b"Y = 3\n" * 400})}
    changed = specs.make(folder, other, carry=list(other), overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})
    sent = send(changed, folder, store, output)
    kinds = {one.diff_id: one.kind for one in changed.expected.layers}
    assert sorted(kinds[diff_id] for diff_id in sent.made if kinds[diff_id] in ("distributions", "marker")) == [
        "distributions",
        "marker",
    ]
    held = {one.diff_id: one.holds for one in changed.expected.layers}
    assert {held[diff_id] for diff_id in sent.made if held[diff_id]} == {("beta-two==2.1",)}


def test_a_damaged_wheel_in_the_store_is_found_and_had_from_elsewhere(
    spec: Spec, folder: Path, store: Store, made: dict[str, Path]
) -> None:
    wheel = next(one for one in spec.identity.distributions if one.name == "alpha")
    for known in (False, True):
        path = store.blobs.put([made["alpha"].read_bytes()], wheel.sha256, where="here")
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        at = data.index(b"alpha/__init__.py") + 30
        data[at] ^= 0xFF
        path.write_bytes(bytes(data))
        assert send(spec, folder, store).image_id == spec.expected.image_id, known


def test_a_damaged_tree_is_refused_by_name(spec: Spec, folder: Path, store: Store) -> None:
    path = specs.blob(folder, spec.identity.base)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    output = Memory()
    with pytest.raises((ArtifactError, BuildError)) as failed:
        send(spec, folder, store, output)
    assert "base" in str(failed.value)
    assert output.image is None
    assert output.closed == 1


def test_a_tree_whose_blob_is_gone_comes_from_its_unpacked_layer(spec: Spec, folder: Path, store: Store) -> None:
    blob = spec.identity.base
    store.layers.unpack(blob.sha256, Carried(folder / "blobs").tree(blob))
    first = send(spec, folder, store)
    for path in (specs.blob(folder, blob),):
        path.unlink()
    other = Store.open(store.root.parent / "other")
    other.layers.unpack(blob.sha256, store.layers.members(blob.sha256))
    again = send(spec, folder, other)
    assert again.image_id == first.image_id == spec.expected.image_id
    assert again.image == first.image  # the same zlib here; elsewhere the manifest might be another one


def test_another_compression_than_at_capture_is_said(spec: Spec, folder: Path, store: Store) -> None:
    hint = msgspec.structs.replace(send(spec, folder, Store.open(store.root.parent / "first")).layers[0])
    other = msgspec.structs.replace(hint, blob=msgspec.structs.replace(hint.blob, digest="sha256:" + "0" * 64))
    hinted = msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, packed=(other,)))
    told = Told()
    assert pack(hinted, folder, store, Memory(), tell=told).image_id == spec.expected.image_id
    assert any("manifest digest is another" in line for line in told.lines)


def test_an_output_keeps_no_image_of_a_spec_that_lies(spec: Spec, folder: Path, store: Store) -> None:
    layers = tuple(
        msgspec.structs.replace(one, diff_id="sha256:" + "1" * 64)
        if one.kind == "distributions" and "alpha==1.0" in one.holds
        else one
        for one in spec.expected.layers
    )
    lying = _with(spec, layers)
    output = Memory()
    with pytest.raises(BuildError, match="not the expected sha256:1111"):
        send(lying, folder, store, output)
    assert output.image is None


def test_groups_that_the_rule_would_not_make_are_refused(spec: Spec, folder: Path, store: Store, made: dict[str, Path]) -> None:
    """One layer with both wheels: every byte of it right, and not what the grouping rule says."""
    apart = [one for one in spec.expected.layers if one.kind == "distributions"]
    assert len(apart) == 2, "choose names that fall into two buckets"
    swapped = {apart[0].diff_id: apart[1], apart[1].diff_id: apart[0]}
    lying = _with(spec, tuple(swapped.get(one.diff_id, one) for one in spec.expected.layers))
    with pytest.raises(BuildError, match="grouping rule"):
        send(lying, folder, store)


def test_the_source_is_the_last_layer_at_its_path(spec: Spec, folder: Path, store: Store) -> None:
    output = Memory()
    sent = send(spec, folder, store, output, source=True)
    assert sent.image_id != spec.expected.image_id
    assert [one.diff_id for one in sent.layers[:-1]] == [one.diff_id for one in spec.expected.layers]
    config = json.loads(sent.image.config)
    assert config["config"]["WorkingDir"] == "/home/ann/project"
    assert config["rootfs"]["diff_ids"][-1] == sent.layers[-1].diff_id
    tar = gzip.decompress(output.blobs[sent.layers[-1].blob.digest])
    assert "sha256:" + hashlib.sha256(tar).hexdigest() == sent.layers[-1].diff_id
    with tarfile.open(fileobj=BytesIO(tar)) as archive:
        names = archive.getnames()
    assert names == ["home", "home/ann", "home/ann/project", "home/ann/project/train.py"]
    again = send(spec, folder, store, output, source=True)
    assert (again.made, again.image) == ((), sent.image)
    assert send(spec, folder, store, output).image_id == spec.expected.image_id


def test_without_source_it_cannot_be_added(spec: Spec, folder: Path, store: Store) -> None:
    bare = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=None))
    with pytest.raises(BuildError, match="holds no source"):
        send(bare, folder, store, source=True)


def test_workers_make_the_same(spec: Spec, folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from repro_env.output.oci import Oci

    alone = send(spec, folder, Store.open(store.root.parent / "alone"))
    monkeypatch.setattr(packing, "ALONE", 0)
    for count in (1, 2):
        output = Oci(tmp_path / f"out{count}", "", store.boot)
        own = Store.open(store.root.parent / f"own{count}")
        assert pack(spec, folder, own, output, tell=Silent(), workers=count).image == alone.image


def test_a_plan_says_where_all_of_it_would_come_from(spec: Spec, folder: Path, store: Store) -> None:
    output = Memory()
    plan = packing.Packing(spec, folder, store, output).plan(ask=True)
    origins = {item.what: item.origin for item in plan.items}
    assert origins == {
        "base": "bundled",
        "interpreter": "bundled",
        "alpha==1.0": "bundled",
        "beta-two==2.0": "bundled",
        "overlay": "bundled",
    }
    assert output.blobs == {}
    send(spec, folder, store, output)
    later = packing.Packing(spec, folder, store, output).plan(ask=True)
    assert {item.origin for item in later.items} == {"output"}
    assert later.write == 0


def _with(spec: Spec, layers: tuple[Layer, ...]) -> Spec:
    """The spec with other expected layers, and the image ID that follows from them."""
    from repro_env.image import config

    image_id = config.image_id(spec.identity, layers)
    return msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, layers=layers, image_id=image_id))
