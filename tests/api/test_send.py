"""`rebuild --output` sends the same image to every kind of output."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.api.push import push
from repro_env.api.send import Delivery, remarks, send
from repro_env.delivery.targets.argument import parse
from repro_env.oci import config
from repro_env.schema import codec
from repro_env.schema.errors import UsageError
from repro_env.schema.spec import Spec, WheelHint
from repro_env.specs.argument import Opened
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import configured
from tests.fakes.messages import Messages
from tests.parts import need
from tests.registries import registry

NAME = f"repro-env-test-send-{secrets.token_hex(4)}"


@pytest.fixture
def store() -> Store:
    return Store.open()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "repro"


@pytest.fixture
def spec(directory: Path, tmp_path: Path) -> Spec:
    made = {name: wheels.make(tmp_path / "wheels", name, files={f"{name}.py": b"X = 1\n" * 90}) for name in ("alpha", "beta")}
    return specs.make(directory, made, carry=list(made), overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with configured(monkeypatch, no_index="1"):
        yield


def send_to(
    word: str,
    spec: Spec,
    directory: Path,
    *,
    tell: Messages | None = None,
    dry_run: bool = False,
    source: bool = False,
    user: str | None = None,
) -> Delivery:
    opened, target = Opened(spec, directory), parse(word)
    return send(opened, target, tell=tell or Messages(), here=directory.parent, dry_run=dry_run, source=source, user=user)


def test_a_layout_and_an_archive_have_the_same_manifest(spec: Spec, directory: Path) -> None:
    oci, docker = send_to("oci:out:v1", spec, directory), send_to("docker-archive:i.tar", spec, directory)
    assert oci.image_id == docker.image_id == oci.environment_image_id == spec.expected.image_id
    assert oci.manifest_digest == docker.manifest_digest
    assert oci.where == f"oci:{directory.parent / 'out'}:v1"


def test_no_wheels_or_blobs_are_needed_if_the_output_has_the_image(spec: Spec, directory: Path) -> None:
    send_to("oci:out", spec, directory)
    shutil.rmtree(directory / "blobs")
    tell = Messages()
    again = send_to("oci:out", spec, directory, tell=tell)
    assert again.made == ()
    assert [line.partition(":")[0] for line in tell.lines] == ["nothing to send"]


def test_a_blob_that_was_recompressed_is_sent_again(spec: Spec, directory: Path, store: Store) -> None:
    """The manifest follows from the spec's directory, not from the store or the output."""
    import gzip

    first = send_to("oci:out", spec, directory)
    path = specs.blob(directory, spec.identity.base)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 9, mtime=1))
    again = send_to("oci:out", spec, directory)
    assert again.image_id == first.image_id
    assert again.manifest_digest != first.manifest_digest
    elsewhere = send(
        Opened(spec, directory), parse("oci:out2"), store=Store.open(store.root.parent / "cold"), here=directory.parent
    )
    assert elsewhere.manifest_digest == again.manifest_digest


def test_another_user_changes_the_config_and_no_layer(spec: Spec, directory: Path) -> None:
    plain = send_to("oci:plain", spec, directory)
    for made in (True, False):  # built, and then found in the output
        own = send_to("oci:own", spec, directory, user="1000:1000")
        assert (own.layers, own.environment_image_id) == (plain.layers, plain.image_id)
        data = config.config(spec.identity, own.layers, user="1000:1000")
        assert own.image_id == f"sha256:{hashlib.sha256(data).hexdigest()}" != plain.image_id
        assert bool(own.made) is made
    assert send_to("oci:plain", spec, directory).image_id == spec.expected.image_id


@pytest.mark.parametrize("user", ["", "root", "0", "0:0", "1000:", "-1", "4294967295", "1:4294967295", "1000:1000:1", "٣"])
def test_a_user_that_is_not_numeric_or_is_root_is_refused(spec: Spec, directory: Path, user: str) -> None:
    with pytest.raises(UsageError, match="must be a numeric user ID above 0"):
        send_to("oci:never", spec, directory, user=user)
    assert not (directory.parent / "never").exists()


def test_a_note_names_imported_code_that_is_not_in_the_image(spec: Spec) -> None:
    def notes_for(*paths: str, in_place: bool = False, prefix: str = "/home/ann/project/.venv") -> str:
        startup = msgspec.structs.replace(spec.observed.startup, sys_path=paths)
        layout = msgspec.structs.replace(spec.identity.layout, in_place=in_place, prefix=prefix)
        changed = msgspec.structs.replace(
            spec,
            observed=msgspec.structs.replace(spec.observed, startup=startup),
            identity=msgspec.structs.replace(spec.identity, layout=layout),
        )
        return "; ".join(remarks(changed))

    assert notes_for("/usr/lib/python3.11", "/home/ann/project/.venv/lib/python3.11/site-packages", "/home/ann/projects") == ""
    assert "imports code from /home/ann/project/src" in notes_for("/home/ann/project/src")
    assert "do not mount the project at /home/ann/project" in notes_for(in_place=True, prefix="/home/ann/project/env")


def test_a_dry_run_writes_nothing(spec: Spec, directory: Path) -> None:
    done = send_to("oci:out", spec, directory, dry_run=True)
    assert (done.where, done.manifest_digest) == ("", "")
    assert done.plan is not None
    assert {item.origin for item in done.plan.items} == {"bundled"}
    assert not (directory.parent / "out").exists()
    send_to("docker-archive:i.tar", spec, directory, dry_run=True)
    assert not list(directory.parent.glob("*i.tar*"))


def test_a_registry_gets_the_same_image(spec: Spec, directory: Path) -> None:
    with registry(directory.parent / "registry") as host:
        done = send_to(f"{host}/team/train:1", spec, directory)
        assert done.manifest_digest == send_to("oci:out", spec, directory).manifest_digest
        assert done.manifest_digest in done.where
        assert send_to(f"{host}/team/train:1", spec, directory).made == ()


def test_a_pushed_spec_is_enough(spec: Spec, directory: Path, store: Store, tmp_path: Path) -> None:
    """Without wheels and blobs elsewhere, trees and layers come from the registry unchanged."""
    made = {distribution.name: distribution for distribution in spec.identity.distributions}
    downloadable = msgspec.structs.replace(
        spec, hints=msgspec.structs.replace(spec.hints, wheels=tuple(_downloadable(hint) for hint in spec.hints.wheels))
    )
    (directory / "spec.json").write_bytes(codec.pretty(downloadable))
    for name, distribution in made.items():
        (directory / "blobs" / distribution.sha256.removeprefix("sha256:")).unlink()
        (wheel,) = (tmp_path / "wheels").glob(f"{name}-*.whl")
        store.blobs.put([wheel.read_bytes()], distribution.sha256, where=name)
    with registry(directory.parent / "registry") as host:
        pushed = push(f"{host}/team/train:1", Opened(downloadable, directory), store=store)
        first = send_to("oci:out", downloadable, directory)
        assert first.manifest_digest == pushed.image.partition("@")[2]
        bare = directory.parent / "elsewhere" / "repro"
        bare.mkdir(parents=True)
        for name in ("spec.json", "remote.json"):
            shutil.copy(directory / name, bare / name)
        tell = Messages()
        other = Store.open(store.root.parent / "bare")
        again = send(Opened(downloadable, bare), parse("oci:out"), store=other, tell=tell, here=bare.parent)
    assert (again.image_id, again.manifest_digest) == (first.image_id, first.manifest_digest)
    assert sum("is fetched complete" in line for line in tell.lines) == len(made)


def _downloadable(hint: WheelHint) -> WheelHint:
    return msgspec.structs.replace(hint, origin="index")


def test_an_engine_gets_the_same_image(spec: Spec, directory: Path) -> None:
    need(Path("/var/run/docker.sock").exists(), "no Docker engine: start dockerd")
    try:
        assert send_to(f"docker:{NAME}:1", spec, directory).image_id == spec.expected.image_id
        printed = subprocess.run(["docker", "image", "inspect", f"{NAME}:1"], capture_output=True, text=True, check=True).stdout
        assert json.loads(printed)[0]["Id"] == spec.expected.image_id
        tell = Messages()
        assert send_to(f"docker:{NAME}:2", spec, directory, tell=tell).made == ()
        assert "nothing to send" in tell.lines[-1]
    finally:
        subprocess.run(["docker", "rmi", "-f", f"{NAME}:1", f"{NAME}:2"], capture_output=True, check=False)


def test_podman_and_skopeo_report_the_same_image_id(spec: Spec, directory: Path) -> None:
    need(shutil.which("podman") and shutil.which("skopeo"), "podman or skopeo is missing")
    need(os.geteuid() == 0, "podman with a store of its own takes root here")
    send_to(f"docker-archive:i.tar:{NAME}:3", spec, directory)
    send_to("oci:out:v1", spec, directory)
    here = directory.parent
    for source in (f"oci-archive:{here / 'i.tar'}", f"oci:{here / 'out'}:v1"):
        raw = subprocess.run(["skopeo", "inspect", "--raw", source], capture_output=True, check=True).stdout
        assert json.loads(raw)["config"]["digest"] == spec.expected.image_id
    for source in (f"docker-archive:{here / 'i.tar'}", f"oci-archive:{here / 'i.tar'}", f"oci:{here / 'out'}:v1"):
        with tempfile.TemporaryDirectory(prefix="r-", dir="/var/tmp") as short:  # podman refuses long paths
            own = ["podman", "--root", f"{short}/root", "--runroot", f"{short}/run", "--storage-driver", "vfs"]
            pulled = subprocess.run([*own, "pull", "-q", source], capture_output=True, text=True, check=False)
            assert pulled.returncode == 0, pulled.stderr
            listed = [*own, "images", "--no-trunc", "--format", "{{.ID}}"]
            printed = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
            assert printed.split() == [spec.expected.image_id], source
