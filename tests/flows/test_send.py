"""`rebuild --output`: one image, whatever takes it."""

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

from repro_env.flows.outputs import parse
from repro_env.flows.push import push
from repro_env.flows.send import Delivery, notes, send
from repro_env.image import config
from repro_env.model import codec
from repro_env.model.errors import UsageError
from repro_env.model.spec import Spec, WheelHint
from repro_env.model.talk import Silent
from repro_env.registry import reference
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import configured
from tests.parts import need
from tests.registries import registry

NAME = f"repro-env-test-send-{secrets.token_hex(4)}"


@pytest.fixture
def store() -> Store:
    return Store.open()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repro"


@pytest.fixture
def spec(folder: Path, tmp_path: Path) -> Spec:
    made = {name: wheels.make(tmp_path / "wheels", name, files={f"{name}.py": b"X = 1\n" * 90}) for name in ("alpha", "beta")}
    return specs.make(folder, made, carry=list(made), overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with configured(monkeypatch, no_index="1"):
        yield


class Told(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)


def to(
    word: str,
    spec: Spec,
    folder: Path,
    *,
    tell: Told | None = None,
    dry_run: bool = False,
    source: bool = False,
    user: str | None = None,
    vouch: str = "",
) -> Delivery:
    return send(
        spec,
        folder,
        parse(word),
        store=Store.open(),
        tell=tell or Told(),
        here=folder.parent,
        dry_run=dry_run,
        source=source,
        user=user,
        provenance=Path(vouch) if vouch else None,
    )


def test_a_layout_and_an_archive_have_the_same_manifest(spec: Spec, folder: Path) -> None:
    one, other = to("oci:out:v1", spec, folder), to("docker-archive:i.tar", spec, folder)
    assert one.image_id == other.image_id == one.environment_id == spec.expected.image_id
    assert one.manifest_digest == other.manifest_digest
    assert one.where == f"oci:{folder.parent / 'out'}:v1"


def test_an_image_that_is_there_takes_no_wheels_and_no_blobs(spec: Spec, folder: Path) -> None:
    for word in ("oci:out", "docker-archive:i.tar"):
        to(word, spec, folder)
    shutil.rmtree(folder / "blobs")
    for word in ("oci:out", "docker-archive:i.tar"):
        tell = Told()
        again = to(word, spec, folder, tell=tell)
        assert again.made == ()
        assert [line.partition(":")[0] for line in tell.lines] == ["nothing to send"]


def test_a_blob_that_was_compressed_otherwise_is_sent_as_it_is_now(spec: Spec, folder: Path, store: Store) -> None:
    """What is there is not taken for what would be made: the manifest follows from the folder, not from the store."""
    import gzip

    first = to("oci:out", spec, folder)
    path = specs.blob(folder, spec.identity.base)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 9, mtime=1))
    again = to("oci:out", spec, folder)
    assert again.image_id == first.image_id
    assert again.manifest_digest != first.manifest_digest
    elsewhere = send(
        spec, folder, parse("oci:out2"), store=Store.open(store.root.parent / "cold"), tell=Told(), here=folder.parent
    )
    assert elsewhere.manifest_digest == again.manifest_digest


def test_another_user_changes_the_config_and_no_layer(spec: Spec, folder: Path) -> None:
    plain = to("oci:plain", spec, folder)
    for made in (True, False):  # made, and then known to be there
        own = to("oci:own", spec, folder, user="1000:1000")
        assert (own.layers, own.environment_id) == (plain.layers, plain.image_id)
        data = config.config(spec.identity, own.layers, user="1000:1000")
        assert own.image_id == f"sha256:{hashlib.sha256(data).hexdigest()}" != plain.image_id
        assert bool(own.made) is made
    assert to("oci:plain", spec, folder).image_id == spec.expected.image_id


@pytest.mark.parametrize("user", ["", "root", "0", "0:0", "1000:", "-1", "4294967295", "1:4294967295", "1000:1000:1", "٣"])
def test_a_user_that_is_not_numeric_or_is_root_is_refused(spec: Spec, folder: Path, user: str) -> None:
    with pytest.raises(UsageError, match="must be a numeric user ID above 0"):
        to("oci:never", spec, folder, user=user)
    assert not (folder.parent / "never").exists()


def test_code_that_the_environment_imports_is_named_when_the_image_lacks_it(spec: Spec) -> None:
    def told(*paths: str, in_place: bool = False, prefix: str = "/home/ann/project/.venv") -> str:
        startup = msgspec.structs.replace(spec.observed.startup, sys_path=paths)
        layout = msgspec.structs.replace(spec.identity.layout, in_place=in_place, prefix=prefix)
        changed = msgspec.structs.replace(
            spec,
            observed=msgspec.structs.replace(spec.observed, startup=startup),
            identity=msgspec.structs.replace(spec.identity, layout=layout),
        )
        return "; ".join(notes(changed))

    assert told("/usr/lib/python3.11", "/home/ann/project/.venv/lib/python3.11/site-packages", "/home/ann/projects") == ""
    assert "imports code from /home/ann/project/src" in told("/home/ann/project/src")
    assert "do not mount the project at /home/ann/project" in told(in_place=True, prefix="/home/ann/project/env")


def test_a_dry_run_leaves_nothing(spec: Spec, folder: Path) -> None:
    done = to("oci:out", spec, folder, dry_run=True)
    assert (done.where, done.manifest_digest) == ("", "")
    assert done.plan is not None
    assert {item.origin for item in done.plan.items} == {"bundled"}
    assert not (folder.parent / "out").exists()
    to("docker-archive:i.tar", spec, folder, dry_run=True)
    assert not list(folder.parent.glob("*i.tar*"))


def test_a_registry_gets_the_same(spec: Spec, folder: Path) -> None:
    with registry(folder.parent / "registry") as host:
        done = to(f"{host}/team/train:1", spec, folder)
        assert done.manifest_digest == to("oci:out", spec, folder).manifest_digest
        assert done.manifest_digest in done.where
        assert to(f"{host}/team/train:1", spec, folder).made == ()


def test_what_was_pushed_is_enough(spec: Spec, folder: Path, store: Store, tmp_path: Path) -> None:
    """No wheel and no blob is anywhere else: trees and layers come from the registry as they were sent there."""
    made = {one.name: one for one in spec.identity.distributions}
    linked = msgspec.structs.replace(
        spec, hints=msgspec.structs.replace(spec.hints, wheels=tuple(_linked(one) for one in spec.hints.wheels))
    )
    (folder / "spec.json").write_bytes(codec.pretty(linked))
    for name, one in made.items():
        (folder / "blobs" / one.sha256.removeprefix("sha256:")).unlink()
        (wheel,) = (tmp_path / "wheels").glob(f"{name}-*.whl")
        store.blobs.put([wheel.read_bytes()], one.sha256, where=name)
    with registry(folder.parent / "registry") as host:
        pushed = push(linked, folder, reference.parse(f"{host}/team/train:1"), store=store, tell=Told())
        beside = to(f"{host}/team/other:1", linked, folder)
        assert beside.sent == 0, "layers of another repository of the same registry are had from there"
        first = to("oci:out", linked, folder)
        assert first.manifest_digest == pushed.image.partition("@")[2]
        bare = folder.parent / "elsewhere" / "repro"
        bare.mkdir(parents=True)
        for name in ("spec.json", "remote.json"):
            shutil.copy(folder / name, bare / name)
        tell = Told()
        other = Store.open(store.root.parent / "bare")
        again = send(linked, bare, parse("oci:out"), store=other, tell=tell, here=bare.parent)
    assert (again.image_id, again.manifest_digest) == (first.image_id, first.manifest_digest)
    assert sum("came whole" in line for line in tell.lines) == len(made)


def _linked(hint: WheelHint) -> WheelHint:
    return msgspec.structs.replace(hint, origin="index")


def test_an_engine_gets_the_same(spec: Spec, folder: Path) -> None:
    need(Path("/var/run/docker.sock").exists(), "no Docker engine: start dockerd")
    try:
        assert to(f"docker:{NAME}:1", spec, folder).image_id == spec.expected.image_id
        shown = subprocess.run(["docker", "image", "inspect", f"{NAME}:1"], capture_output=True, text=True, check=True).stdout
        assert json.loads(shown)[0]["Id"] == spec.expected.image_id
        tell = Told()
        assert to(f"docker:{NAME}:2", spec, folder, tell=tell).made == ()
        assert "nothing to send" in tell.lines[-1]
    finally:
        subprocess.run(["docker", "rmi", "-f", f"{NAME}:1", f"{NAME}:2"], capture_output=True, check=False)


def test_podman_and_skopeo_report_the_same(spec: Spec, folder: Path) -> None:
    need(shutil.which("podman") and shutil.which("skopeo"), "podman or skopeo is missing")
    need(os.geteuid() == 0, "podman with a store of its own takes root here")
    to(f"docker-archive:i.tar:{NAME}:3", spec, folder)
    to("oci:out:v1", spec, folder)
    here = folder.parent
    for source in (f"oci-archive:{here / 'i.tar'}", f"oci:{here / 'out'}:v1"):
        raw = subprocess.run(["skopeo", "inspect", "--raw", source], capture_output=True, check=True).stdout
        assert json.loads(raw)["config"]["digest"] == spec.expected.image_id
    for source in (f"docker-archive:{here / 'i.tar'}", f"oci-archive:{here / 'i.tar'}", f"oci:{here / 'out'}:v1"):
        with tempfile.TemporaryDirectory(prefix="r-", dir="/var/tmp") as short:  # it takes no long path
            own = ["podman", "--root", f"{short}/root", "--runroot", f"{short}/run", "--storage-driver", "vfs"]
            pulled = subprocess.run([*own, "pull", "-q", source], capture_output=True, text=True, check=False)
            assert pulled.returncode == 0, pulled.stderr
            listed = [*own, "images", "--no-trunc", "--format", "{{.ID}}"]
            shown = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
            assert shown.split() == [spec.expected.image_id], source


def test_squashfs_has_no_manifest(spec: Spec, folder: Path) -> None:
    need(shutil.which("mksquashfs"), "squashfs-tools is missing")
    done = to("squashfs:i.sqfs", spec, folder)
    assert (done.image_id, done.manifest_digest) == (spec.expected.image_id, "")
    for more in ({"source": True}, {"vouch": "p.json"}):
        with pytest.raises(UsageError, match="does not go with"):
            to("squashfs:j.sqfs", spec, folder, **more)


def test_provenance_is_the_same_each_time_and_says_so_when_it_cannot_be_written(spec: Spec, folder: Path) -> None:
    to("oci:out", spec, folder, vouch="p.json")
    first = (folder.parent / "p.json").read_bytes()
    to("oci:other", spec, folder, vouch="q.json")
    assert (folder.parent / "q.json").read_bytes() == first
    with pytest.raises(UsageError, match="cannot be written"):
        to("oci:out", spec, folder, vouch="no/such/p.json")
