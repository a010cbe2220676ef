"""Rebuild from every source of wheels and layers, and with every kind of damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from repro_env.api.rebuild import Rebuilt, rebuild
from repro_env.environment.wheels import layers as lock_layers
from repro_env.oci import config, paths
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, BuildError, DiskError, NetworkError, PlatformError, ReproEnvError
from repro_env.schema.image import Layer
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened
from repro_env.store.packages.wheelfile import open_facts
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.specs.lookup import locate
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import Index, configured
from tests.fakes.messages import Messages
from tests.parts import need

ENV = Path(*paths.ENVIRONMENT.split("/")[1:])
SITE = ENV / "lib/python3.11/site-packages"


@pytest.fixture
def store() -> Store:
    return Store.open()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "project" / "repro"


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    """Two wheels with scripts, executables and data."""
    own = tmp_path / "wheels"
    return {
        "alpha": wheels.make(
            own,
            "alpha",
            files={
                "alpha/__init__.py": b"def main():\n    return 0\n",
                "alpha/tool": b"#!/bin/sh\n",
                "alpha-1.0.data/scripts/helper": b"#!python\nprint(1)\n",
                "alpha-1.0.data/data/share/alpha.txt": b"text\n",
                "alpha/\N{SNOWMAN}.txt": b"snow\n",
            },
            entry_points="[console_scripts]\nalpha = alpha:main\n",
            executable=frozenset({"alpha/tool"}),
        ),
        "beta-two": wheels.make(own, "beta-two", "2.0", {"beta_two.py": b"X = 2\n" * 1000}),
    }


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with configured(monkeypatch, no_index="1"):
        yield


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "wheels") as index:
        yield index


def run(spec: Spec, directory: Path, store: Store, *, dry_run: bool = False) -> Rebuilt:
    return rebuild(Opened(spec, directory), store=store, dry_run=dry_run, tell=Messages())


def origins(done: Rebuilt) -> dict[str, str]:
    assert done.plan is not None
    return {item.what.partition("==")[0]: item.origin for item in done.plan.items}


def tree(store: Store, spec: Spec, name: str) -> Path:
    """Return the unpacked layer of a distribution."""
    (layer,) = (layer for layer in spec.expected.layers if any(held.startswith(name + "==") for held in layer.holds))
    found = store.layers.path(layer.diff_id)
    assert found is not None
    return found


def listing(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def add_facts(store: Store, made: dict[str, Path]) -> None:
    """Add the facts of the wheels to the store, as a capture on this machine does."""
    for name, path in made.items():
        store.facts.put("wheel", wheels.artifact(path, name).sha256, codec.canonical(open_facts(path, path.name)))


def test_bundled_wheels_become_the_expected_image(directory: Path, made: dict[str, Path], store: Store) -> None:
    overlay = {f"{ENV}/pyvenv.cfg": b"home = /opt/python/bin\n"}
    spec = specs.make(directory, made, carry=list(made), compress=["alpha"], overlay=overlay)
    done = run(spec, directory, store)
    assert done.image_id == spec.expected.image_id
    assert store.images.get(done.image_id) == config.config(spec.identity, done.layers)
    assert origins(done) == {"alpha": "bundled", "beta-two": "bundled"} | dict.fromkeys(
        ("base", "interpreter", "overlay", "source"), "bundled"
    )
    assert done.fetched == 0
    alpha = tree(store, spec, "alpha")
    assert (alpha / SITE / "alpha" / "\N{SNOWMAN}.txt").read_bytes() == b"snow\n"
    assert os.access(alpha / SITE / "alpha/tool", os.X_OK)
    assert not os.access(alpha / SITE / "alpha/__init__.py", os.X_OK)
    assert (alpha / ENV / "share/alpha.txt").is_file()
    assert (alpha / ENV / "bin/alpha").read_bytes().startswith(b"#!/usr/bin/env -S sh")
    assert (alpha / ENV / "bin/helper").read_bytes().endswith(b"print(1)\n")
    assert (alpha / SITE / "alpha-1.0.dist-info/INSTALLER").read_bytes() == b"repro-env\n"
    assert spec.observed.source is not None
    assert store.layers.path(spec.observed.source.tree.sha256) is not None


def test_a_second_rebuild_does_nothing(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    run(spec, directory, store)
    for path in (directory / "blobs").glob("*"):
        path.unlink()
    done = run(spec, directory, store)
    assert done.plan is None
    assert done.image_id == spec.expected.image_id


def test_a_missing_layer_is_built_again(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    run(spec, directory, store)
    store.layers.discard(spec.expected.layers[2].diff_id)
    run(spec, directory, store)
    assert store.layers.path(spec.expected.layers[2].diff_id) is not None


def test_layers_of_another_image_are_reused_and_checked(
    directory: Path, made: dict[str, Path], store: Store, tmp_path: Path
) -> None:
    """For the same wheels under another prefix, only the marker is built, even without the facts about the layers."""
    spec = specs.make(directory, made, carry=list(made))
    run(spec, directory, store)
    for kept in (store.root / "facts" / lock_layers.KIND).glob("*"):
        kept.unlink()
    other = specs.make(tmp_path / "other", made, prefix="/srv/env")
    done = run(other, tmp_path / "other", store)
    assert done.image_id == other.expected.image_id != spec.expected.image_id
    assert set(origins(done).values()) == {"layer"}


def test_wheels_come_from_their_urls(directory: Path, made: dict[str, Path], store: Store, index: Index) -> None:
    urls = {name: [f"{index.proxy}/files/{path.name}"] for name, path in made.items()}
    spec = specs.make(directory, made, urls=urls)
    done = run(spec, directory, store)
    assert done.image_id == spec.expected.image_id
    assert origins(done)["alpha"] == "url"
    assert done.plan is not None
    assert done.plan.fetch == done.fetched == sum(path.stat().st_size for path in made.values())
    assert all(store.blobs.path(wheel.sha256) for wheel in spec.identity.distributions)


def test_local_wheels_are_not_downloaded(directory: Path, made: dict[str, Path], store: Store, index: Index) -> None:
    urls = {name: [f"{index.proxy}/files/{path.name}"] for name, path in made.items()}
    spec = specs.make(directory, made, urls=urls, carry=["alpha"])
    store.blobs.put([made["beta-two"].read_bytes()], spec.identity.distributions[1].sha256, where="test")
    done = run(spec, directory, store)
    assert (origins(done)["alpha"], origins(done)["beta-two"]) == ("bundled", "blob")
    assert index.asked == []


def test_nothing_is_downloaded_on_the_machine_of_the_capture(
    directory: Path, made: dict[str, Path], store: Store, tmp_path: Path
) -> None:
    prefix = tmp_path / "venv"
    for name, path in made.items():
        wheels.install(path, prefix, name)
    add_facts(store, made)
    spec = specs.make(directory, made, prefix=prefix)
    done = run(spec, directory, store)
    assert done.image_id == spec.expected.image_id
    assert (origins(done)["alpha"], origins(done)["beta-two"]) == ("live", "live")
    assert not any(store.blobs.path(wheel.sha256) for wheel in spec.identity.distributions)


def test_an_edited_live_file_is_not_used(
    directory: Path, made: dict[str, Path], store: Store, tmp_path: Path, index: Index
) -> None:
    prefix = tmp_path / "venv"
    for name, path in made.items():
        wheels.install(path, prefix, name)
    add_facts(store, made)
    edited = prefix / "lib/python3.11/site-packages/beta_two.py"
    edited.write_bytes(edited.read_bytes().replace(b"2", b"3"))  # the size stays the same
    spec = specs.make(directory, made, prefix=prefix, urls={"beta-two": [f"{index.proxy}/files/{made['beta-two'].name}"]})
    done = run(spec, directory, store)
    assert done.image_id == spec.expected.image_id
    assert done.fetched == made["beta-two"].stat().st_size
    assert (tree(store, spec, "beta-two") / SITE / "beta_two.py").read_bytes() == b"X = 2\n" * 1000


def test_a_symlink_out_of_the_live_tree_is_not_followed(
    directory: Path, made: dict[str, Path], store: Store, tmp_path: Path
) -> None:
    prefix = tmp_path / "venv"
    for name, path in made.items():
        wheels.install(path, prefix, name)
    add_facts(store, made)
    linked = prefix / "lib/python3.11/site-packages/beta_two.py"
    linked.rename(tmp_path / "elsewhere.py")
    linked.symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(ArtifactError, match=r"beta_two-2\.0"):
        run(specs.make(directory, made, prefix=prefix), directory, store)


@pytest.mark.parametrize("local", [False, True], ids=["http", "find-links"])
def test_wheels_come_from_a_configured_index(
    local: bool, directory: Path, made: dict[str, Path], store: Store, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = specs.make(directory, made, urls={"alpha": ["http://127.0.0.1:9/gone.whl"]})
    options = {"find_links": str(index.directory), "no_index": "1"} if local else {"index_url": index.url}
    with configured(monkeypatch, **options):
        done = run(spec, directory, store)
    assert done.image_id == spec.expected.image_id
    assert origins(done)["beta-two"] == "index"
    assert (done.fetched == 0) == local


def test_another_file_with_the_same_name_is_not_used(
    directory: Path, made: dict[str, Path], store: Store, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = specs.make(directory, made, carry=["alpha"])
    wheels.make(index.directory, "beta-two", "2.0", {"beta_two.py": b"evil\n"})
    with configured(monkeypatch, index_url=index.url), pytest.raises(ArtifactError, match=r"beta_two-2\.0"):
        run(spec, directory, store)
    index.hashes = False
    with (
        configured(monkeypatch, index_url=index.url),
        pytest.raises(ArtifactError, match=r"does not have the expected content|sends more"),
    ):
        run(spec, directory, store)
    assert store.images.get(spec.expected.image_id) is None


def test_the_next_url_is_tried_after_a_failure(directory: Path, made: dict[str, Path], store: Store, index: Index) -> None:
    good = f"{index.proxy}/files/{made['alpha'].name}"
    (index.directory / "other.whl").write_bytes(made["alpha"].read_bytes()[:-1] + b"?")
    urls = [
        f"{index.proxy}/files/gone.whl",
        f"{index.proxy}/files/other.whl",
        f"{index.proxy}/files/{made['beta-two'].name}",
        good,
    ]
    spec = specs.make(directory, made, urls={"alpha": urls}, carry=["beta-two"])
    assert run(spec, directory, store).image_id == spec.expected.image_id


def test_the_error_lists_all_urls_that_were_tried(directory: Path, made: dict[str, Path], store: Store, index: Index) -> None:
    (index.directory / "other.whl").write_bytes(b"other bytes")
    urls = [f"{index.proxy}/files/gone.whl", f"{index.proxy}/files/other.whl"]
    spec = specs.make(directory, made, urls={"alpha": urls}, carry=["beta-two"])
    with pytest.raises(ArtifactError) as caught:
        run(spec, directory, store)
    assert "gone.whl" in str(caught.value)
    assert "404" in str(caught.value)
    assert "other.whl" in str(caught.value)
    assert listing(store.root / "blobs") == set()


def test_a_404_is_an_artifact_error(directory: Path, made: dict[str, Path], store: Store, index: Index) -> None:
    spec = specs.make(directory, made, urls={"alpha": [f"{index.proxy}/files/gone.whl"]}, carry=["beta-two"])
    with pytest.raises(ArtifactError, match="alpha"):
        run(spec, directory, store)


def test_no_answer_is_a_network_error(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, urls={"alpha": ["http://127.0.0.1:9/alpha.whl"]}, carry=["beta-two"])
    with pytest.raises(NetworkError, match=r"127\.0\.0\.1:9"):
        run(spec, directory, store)


def test_a_wheel_without_a_source_is_an_error(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=["beta-two"])
    with pytest.raises(ArtifactError, match="was not found") as caught:
        run(spec, directory, store)
    assert caught.value.where == "alpha==1.0"
    assert caught.value.hint


def flip(path: Path, at: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_bundled_wheel_with_a_flipped_byte_is_refused(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    flip(specs.blob(directory, spec.identity.distributions[0]))
    with pytest.raises(ArtifactError, match="sha256") as caught:
        run(spec, directory, store)
    assert caught.value.where == "alpha==1.0"


@pytest.mark.parametrize("what", ["base", "interpreter", "overlay"])
def test_a_bundled_tree_with_a_flipped_byte_is_refused(what: str, directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made), overlay={"opt/env/x": b"overlay " * 100})
    identity = spec.identity
    blob = {"base": identity.base, "interpreter": identity.interpreter.tree, "overlay": identity.overlay}[what]
    assert blob is not None
    flip(specs.blob(directory, blob))
    with pytest.raises(ArtifactError, match=what):
        run(spec, directory, store)
    assert store.layers.path(blob.sha256) is None
    assert store.images.get(spec.expected.image_id) is None


def test_a_damaged_blob_of_the_store_is_replaced(directory: Path, made: dict[str, Path], store: Store, index: Index) -> None:
    spec = specs.make(directory, made, urls={"alpha": [f"{index.proxy}/files/{made['alpha'].name}"]}, carry=["beta-two"])
    alpha = spec.identity.distributions[0]
    add_facts(store, made)
    flip(store.blobs.put([made["alpha"].read_bytes()], alpha.sha256, where="test"), at=50)  # in its first member
    assert run(spec, directory, store).image_id == spec.expected.image_id
    replaced = store.blobs.path(alpha.sha256)
    assert replaced is not None
    assert replaced.read_bytes() == made["alpha"].read_bytes()


def test_a_damaged_blob_of_the_store_without_facts_is_not_used(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    flip(store.blobs.put([made["alpha"].read_bytes()], spec.identity.distributions[0].sha256, where="test"))
    assert run(spec, directory, store).image_id == spec.expected.image_id


@pytest.mark.parametrize("what", ["base", "interpreter"])
def test_a_missing_tree_is_an_error(what: str, directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    tree = spec.identity.base if what == "base" else spec.identity.interpreter.tree
    assert tree is not None
    specs.blob(directory, tree).unlink()
    with pytest.raises(ArtifactError, match=f"the {what} was not found") as caught:
        run(spec, directory, store)
    assert "blobs" in caught.value.where
    assert caught.value.hint


def test_a_missing_source_is_reported_and_not_an_error(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    assert spec.observed.source is not None
    specs.blob(directory, spec.observed.source.tree).unlink()
    messages = Messages()
    done = rebuild(Opened(spec, directory), store=store, tell=messages)
    assert done.image_id == spec.expected.image_id
    assert any("source" in line for line in messages.lines)


def test_a_dry_run_changes_nothing(directory: Path, made: dict[str, Path], store: Store, index: Index) -> None:
    urls = {"alpha": [f"{index.proxy}/files/gone.whl", f"{index.proxy}/files/{made['alpha'].name}"]}
    spec = specs.make(directory, made, urls=urls, carry=["beta-two"])
    before = listing(store.root)
    done = run(spec, directory, store, dry_run=True)
    assert set(listing(store.root)) == before
    assert done.plan is not None
    (alpha,) = (item for item in done.plan.items if item.what == "alpha==1.0")
    assert (alpha.origin, alpha.where) == ("url", urls["alpha"][1])
    assert origins(done)["beta-two"] == "bundled"


@pytest.mark.parametrize("damage", ["flip", "404", "nowhere", "silence"])
def test_a_dry_run_names_wheels_that_are_not_available(
    damage: str, directory: Path, made: dict[str, Path], store: Store, index: Index
) -> None:
    urls = {"404": [f"{index.proxy}/files/gone.whl"], "silence": ["http://127.0.0.1:9/a.whl"]}.get(damage, [])
    carry = ["beta-two", "alpha"] if damage == "flip" else ["beta-two"]
    spec = specs.make(directory, made, urls={"alpha": urls}, carry=carry)
    if damage == "flip":
        flip(specs.blob(directory, spec.identity.distributions[0]))
    with pytest.raises(NetworkError if damage == "silence" else ArtifactError, match="alpha"):
        run(spec, directory, store, dry_run=True)


def change_layer(spec: Spec, number: int, **changes: object) -> Spec:
    """Change the expected layer `number` of a spec, and its image ID accordingly."""
    layers = list(spec.expected.layers)
    layers[number] = msgspec.structs.replace(layers[number], **changes)
    return with_layers(spec, tuple(layers))


def with_layers(spec: Spec, layers: tuple[Layer, ...]) -> Spec:
    image = config.image_id(spec.identity, layers)
    return msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, layers=layers, image_id=image))


def test_another_expected_layer_is_a_build_error(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    number = next(number for number, layer in enumerate(spec.expected.layers) if layer.holds)
    other = change_layer(spec, number, diff_id="sha256:" + "0" * 64)
    with pytest.raises(BuildError, match="not the expected sha256:0000") as caught:
        run(other, directory, store)
    assert other.expected.layers[number].holds[0] in str(caught.value)
    assert store.images.get(other.expected.image_id) is None


def test_a_layer_of_other_wheels_in_the_store_is_refused(
    directory: Path, made: dict[str, Path], store: Store, tmp_path: Path
) -> None:
    """The spec names a layer that is in the store, but has other wheels."""
    evil = {
        "alpha": wheels.make(tmp_path / "evil", "alpha", files={"alpha/__init__.py": b"evil\n"}),
        "beta-two": made["beta-two"],
    }
    planted = specs.make(tmp_path / "planted", evil, carry=list(evil))
    run(planted, tmp_path / "planted", store)
    spec = specs.make(directory, made, carry=list(made))
    forged = with_layers(spec, (*planted.expected.layers[:-1], spec.expected.layers[-1]))
    with pytest.raises(BuildError):
        run(forged, directory, store)
    for kept in (store.root / "facts" / lock_layers.KIND).glob("*"):
        kept.unlink()
    with pytest.raises(BuildError):
        run(forged, directory, store)
    assert store.images.get(forged.expected.image_id) is None


@pytest.mark.parametrize("change", ["image", "base", "order", "holds", "marker"])
def test_a_spec_that_contradicts_itself_is_refused(change: str, directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    layers = spec.expected.layers
    broken = {
        "image": msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, image_id="sha256:" + "1" * 64)),
        "base": change_layer(spec, 0, diff_id="sha256:" + "2" * 64),
        "order": with_layers(spec, (layers[1], layers[0], *layers[2:])),
        "holds": change_layer(spec, 2, holds=("gamma==1.0",)),
        "marker": change_layer(spec, len(layers) - 1, diff_id="sha256:" + "3" * 64),
    }[change]
    with pytest.raises(BuildError, match="contradicts itself"):
        run(broken, directory, store)


def test_layers_that_break_the_grouping_rule_are_refused(directory: Path, made: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, made, carry=list(made))
    layers = [layer for layer in spec.expected.layers if layer.holds]
    assert len(layers) == 2, "two buckets"
    swapped = (*spec.expected.layers[:2], layers[1], layers[0], spec.expected.layers[-1])
    with pytest.raises(BuildError, match="grouping rule"):
        run(with_layers(spec, swapped), directory, store)


def test_distributions_may_share_a_path(directory: Path, store: Store, tmp_path: Path) -> None:
    both = {
        name: wheels.make(tmp_path / "w", name, files={"shared.py": name.encode()}) for name in ("aa", "ab", "ac", "ad", "ae")
    }
    spec = specs.make(directory, both, carry=list(both))
    assert run(spec, directory, store).image_id == spec.expected.image_id


def test_another_architecture_is_refused(directory: Path, made: dict[str, Path], store: Store) -> None:
    other: Literal["amd64", "arm64"] = "arm64" if specs.ARCHITECTURE == "amd64" else "amd64"
    spec = specs.make(directory, made, architecture=other)
    with pytest.raises(PlatformError, match="the spec is for"):
        run(spec, directory, store)


def test_a_wheel_that_unpacks_to_more_than_its_stated_size_is_refused(directory: Path, store: Store, tmp_path: Path) -> None:
    """At most the stated sizes are written, even if the deflate stream has more."""
    path = wheels.make(tmp_path / "w", "bomb", files={"bomb.bin": bytes(1 << 20)})
    spec_path = tmp_path / "honest"
    spec = specs.make(spec_path, {"bomb": path}, carry=["bomb"])
    data = path.read_bytes()
    short = data.replace((1 << 20).to_bytes(4, "little"), (1 << 10).to_bytes(4, "little"))
    assert short != data
    path.write_bytes(short)
    artifact = wheels.artifact(path, "bomb")
    identity = msgspec.structs.replace(spec.identity, distributions=(artifact,))
    layers = (*spec.expected.layers[:-1], config.marker_layer(identity))
    forged = with_layers(msgspec.structs.replace(spec, identity=identity), layers)
    SpecBlobs(spec_path / "blobs").add_file(path, artifact.sha256)
    with pytest.raises(ArtifactError, match="bomb"):
        run(forged, spec_path, store)
    assert store.temp is not None
    assert listing(store.root / "layers") == set() or tree_sizes(store) < 1 << 20


def tree_sizes(store: Store) -> int:
    return sum(path.stat().st_size for path in (store.root / "layers").rglob("*") if path.is_file())


def test_a_lack_of_disk_space_is_an_error_before_any_write(
    directory: Path, made: dict[str, Path], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = specs.make(directory, made, carry=list(made))
    before = listing(store.root)
    monkeypatch.setattr("repro_env.api.rebuild.free", lambda path: (4096, 10**6))
    with pytest.raises(DiskError, match="the build needs"):
        run(spec, directory, store)
    assert listing(store.root) == before


REBUILD = """
import sys
from pathlib import Path
from repro_env.store.specs.lookup import locate
from repro_env.api.rebuild import rebuild
from repro_env.schema.progress import Silent
from repro_env.specs.argument import Opened
from repro_env.store.store import Store

spec, directory = locate(sys.argv[1], Path.cwd())
print(rebuild(Opened(spec, directory), store=Store.open(), tell=Silent()).image_id)
"""


def start_rebuild(directory: Path, **variables: str) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", REBUILD, str(directory)],
        env={**os.environ, "PYTHONPATH": root, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str]) -> str:
    out, problem = process.communicate(timeout=300)
    assert process.returncode == 0, problem
    return out.strip()


@pytest.fixture
def large(tmp_path: Path) -> dict[str, Path]:
    """Wheels that are slow to unpack."""
    return {
        name: wheels.make(tmp_path / "large", name, files={f"{name}/{n}.bin": os.urandom(40_000) for n in range(150)})
        for name in ("one", "two", "three", "four")
    }


def test_a_rebuild_completes_after_being_killed_at_any_time(directory: Path, large: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, large, carry=list(large))
    survived = 0
    for step in range(1, 12):
        process = start_rebuild(directory)
        time.sleep(0.03 * step)
        process.send_signal(signal.SIGKILL)
        survived += process.wait() == 0
        process.communicate()
        assert not survived or store.images.get(spec.expected.image_id)
        for layer in spec.expected.layers:
            assert store.layers.path(layer.diff_id) is None or store.layers.verify(layer.diff_id)
    assert wait_for(start_rebuild(directory)) == spec.expected.image_id
    assert listing(store.root / "temp") == set()


def test_two_rebuilds_at_once_succeed(directory: Path, large: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, large, carry=list(large))
    both = [start_rebuild(directory), start_rebuild(directory)]
    assert [wait_for(process) for process in both] == [spec.expected.image_id] * 2
    assert all(store.layers.verify(layer.diff_id) for layer in spec.expected.layers)


def test_an_interrupted_rebuild_leaves_no_temporary_files(directory: Path, large: dict[str, Path], store: Store) -> None:
    spec = specs.make(directory, large, carry=list(large))
    process = start_rebuild(directory)
    time.sleep(0.25)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert listing(store.root / "temp") == set()
    assert wait_for(start_rebuild(directory)) == spec.expected.image_id


def test_umask_time_zone_locale_and_hash_seed_do_not_change_the_image(
    directory: Path, made: dict[str, Path], tmp_path: Path
) -> None:
    spec = specs.make(directory, made, carry=list(made))
    for number, (mask, seed) in enumerate([(0o077, "1"), (0o002, "77")]):
        before = os.umask(mask)
        try:
            root = tmp_path / f"sch\N{LATIN SMALL LETTER O WITH DIAERESIS}n {number}"
            process = start_rebuild(directory, REPRO_ENV_STORE=str(root), TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED=seed)
            assert wait_for(process) == spec.expected.image_id
        finally:
            os.umask(before)


def test_a_spec_is_found_by_each_of_its_paths(directory: Path, made: dict[str, Path], tmp_path: Path) -> None:
    spec = specs.make(directory, made)
    below = directory.parent / "src" / "deep"
    below.mkdir(parents=True)
    expected = (spec, directory.resolve())
    for given, start in (
        (None, below),
        (str(directory), tmp_path),
        (str(directory / "spec.json"), tmp_path),
        ("..", directory / "blobs"),
    ):
        assert locate(given, start) == expected
    assert locate(str(directory.parent), tmp_path) == expected


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"identity"', b'"extra": 1, "identity"', 1)),
        lambda path: path.write_bytes(path.read_bytes().replace(b"repro-env/spec/2", b"repro-env/spec/9")),
        lambda path: path.write_bytes(b""),
    ],
    ids=["missing", "truncated", "unknown key", "newer", "empty"],
)
def test_a_damaged_spec_is_refused(damage: Callable[[Path], object], directory: Path, made: dict[str, Path]) -> None:
    specs.make(directory, made)
    damage(directory / "spec.json")
    with pytest.raises(ReproEnvError) as caught:
        locate(str(directory), directory.parent)
    assert caught.value.exit_code in (3, 4)
    assert caught.value.hint
    with pytest.raises(ReproEnvError):
        locate(None, directory)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs takes root")
    directory = tmp_path / "small"
    directory.mkdir()
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(directory)], check=False)
    need(result.returncode == 0, "mounting a tmpfs takes a capability that containers often lack")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_is_an_error_and_leaves_no_files(
    directory: Path, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = {"big": wheels.make(tmp_path / "w", "big", files={"big.bin": os.urandom(3_000_000)})}
    spec = specs.make(directory, big, carry=["big"])
    store = Store.open(small_disk / "store")
    with pytest.raises(DiskError, match="the build needs"):
        run(spec, directory, store)
    monkeypatch.setattr("repro_env.api.rebuild.free", lambda path: (10**12, 10**6))
    with pytest.raises(DiskError):
        run(spec, directory, store)
    assert listing(store.root / "temp") == set()
    assert store.images.get(spec.expected.image_id) is None
