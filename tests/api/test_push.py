"""Push to a real registry and rebuild from it, with tiny specs."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api.push import Pushed, push
from repro_env.api.rebuild import Rebuilt, rebuild
from repro_env.delivery.builder import remote
from repro_env.oci.manifest import Descriptor, Manifest
from repro_env.oci.manifest import parse as manifest_of
from repro_env.registry.client import Registry
from repro_env.registry.reference import parse
from repro_env.registry.referrers import attach
from repro_env.runs.start import snapshot
from repro_env.schema.errors import ArtifactError, NetworkError, ReproEnvError, SpecError
from repro_env.schema.image import Blob
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened, open_spec
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.front import Front
from tests.fakes.index import configured
from tests.fakes.messages import Messages
from tests.registries import registry


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    with configured(monkeypatch, no_index="1"):
        yield


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "project" / "repro"


@pytest.fixture
def repository(host: str, tmp_path: Path) -> str:
    """The name of a repository for this test."""
    return f"{host}/{tmp_path.name.lower().replace('_', '-').strip('-')}"


@pytest.fixture
def spec(directory: Path, tmp_path: Path) -> Spec:
    """A spec of a bundled wheel, and of a downloadable wheel that only the store has."""
    own = tmp_path / "wheels"
    made = {
        "alpha": wheels.make(own, "alpha", files={"alpha/__init__.py": b"A = 1\n", "alpha/b.py": b"B = 2\n" * 900}),
        "beta": wheels.make(own, "beta", "2.0", {"beta.py": b"X = 2\n" * 1000}),
    }
    spec = specs.make(
        directory, made, carry=["alpha"], compress=["alpha"], overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"}
    )
    for name, path in made.items():
        wheel = next(wheel for wheel in spec.identity.distributions if wheel.name == name)
        Store.open().blobs.put([path.read_bytes()], wheel.sha256, where=name)
    (directory / "requirements.txt").write_text("alpha==1.0\n")
    (directory / "private.txt").write_text("not part of the spec")
    return spec


def empty_store(tmp_path: Path, name: str = "bare") -> Store:
    return Store.open(tmp_path / f"{name}-store")


def push_to(spec: Spec, directory: Path, to: str) -> tuple[Pushed, Messages]:
    messages = Messages()
    return push(to, Opened(spec, directory), tell=messages), messages


def rebuild_opened(found: Opened, store: Store, messages: Messages | None = None) -> Rebuilt:
    return rebuild(found, store=store, tell=messages or Messages())


def test_a_bare_machine_rebuilds_from_a_reference(spec: Spec, directory: Path, repository: str, tmp_path: Path) -> None:
    done, _ = push_to(spec, directory, f"{repository}:1")
    assert done.sent
    assert done.image_id == spec.expected.image_id
    store, messages = empty_store(tmp_path), Messages()
    shutil.rmtree(directory)
    found = open_spec(f"{repository}:1", tmp_path, store, messages)
    assert found.spec == spec
    assert found.runs == tmp_path / "runs"
    assert (found.directory / "requirements.txt").read_text() == "alpha==1.0\n"
    assert not (found.directory / "private.txt").exists()
    rebuilt = rebuild_opened(found, store, messages)
    assert rebuilt.image_id == spec.expected.image_id
    assert rebuilt.plan is not None
    assert {item.what.partition("==")[0]: item.origin for item in rebuilt.plan.items} == dict.fromkeys(
        ("alpha", "beta", "base", "interpreter", "overlay", "source"), "registry"
    )
    assert rebuilt.fetched > 0
    assert any("is fetched complete from" in line for line in messages.lines)
    assert spec.observed.source is not None
    assert store.layers.path(spec.observed.source.tree.sha256) is not None


def test_a_second_push_sends_nothing(spec: Spec, directory: Path, repository: str) -> None:
    first, _ = push_to(spec, directory, f"{repository}:1")
    written = (directory / "remote.json").read_bytes()
    second, _ = push_to(spec, directory, f"{repository}:1")
    assert (second.sent, second.blobs) == (0, 0)
    assert (second.image, second.spec) == (first.image, first.spec)
    assert (directory / "remote.json").read_bytes() == written


def test_an_evicted_source_is_downloaded_when_a_run_needs_it(
    spec: Spec, directory: Path, repository: str, tmp_path: Path
) -> None:
    push_to(spec, directory, f"{repository}:1")
    store = empty_store(tmp_path)
    found = open_spec(f"{repository}:1", tmp_path, store)
    rebuild_opened(found, store)
    assert spec.observed.source is not None
    store.layers.discard(spec.observed.source.tree.sha256)
    shutil.rmtree(found.directory / "blobs")
    code = snapshot.take(found.spec, found.directory, directory=None, runs=tmp_path / "runs", store=store)
    assert (code.tree / "train.py").read_bytes() == b"print('trained')\n"


def test_layers_of_the_image_are_not_sent_again_as_blobs(spec: Spec, directory: Path, repository: str) -> None:
    done, _ = push_to(spec, directory, f"{repository}:1")
    image, artifact = read_manifest(done.image), read_manifest(done.spec)
    layers = {layer["digest"] for layer in image["layers"]}
    files = {layer["annotations"][remote.TITLE]: layer["digest"] for layer in artifact["layers"]}
    for tree in (spec.identity.base, spec.identity.interpreter.tree, spec.identity.overlay):
        assert tree is not None
        assert files[f"blobs/{tree.sha256[7:]}.gz"] in layers
    assert {"spec.json", "requirements.txt", "provenance.json"} <= files.keys()
    assert not any("private" in name or name == "remote.json" for name in files)
    assert artifact["artifactType"] == remote.SPEC_TYPE
    assert artifact["subject"]["digest"] == done.image.partition("@")[2]


def test_missing_blobs_are_downloaded_into_a_clone(spec: Spec, directory: Path, repository: str, tmp_path: Path) -> None:
    push_to(spec, directory, f"{repository}:1")
    text = (directory / "remote.json").read_text()
    assert repository in text
    clone = tmp_path / "clone"
    shutil.copytree(directory, clone, ignore=shutil.ignore_patterns("blobs"))
    store = empty_store(tmp_path)
    dry = rebuild(Opened(spec, clone), store=store, dry_run=True, tell=Messages())
    assert dry.plan is not None
    assert {item.origin for item in dry.plan.items} == {"registry"}
    assert dry.plan.fetch > 0
    assert not (clone / "blobs").exists()
    assert rebuild(Opened(spec, clone), store=store, tell=Messages()).image_id == spec.expected.image_id
    blobs = sorted((directory / "blobs").glob("[0-9a-f]*"))
    assert blobs
    for blob in blobs:
        assert (clone / "blobs" / blob.name).read_bytes() == blob.read_bytes()


def test_a_damaged_blob_of_the_spec_is_downloaded_again(spec: Spec, directory: Path, repository: str, tmp_path: Path) -> None:
    push_to(spec, directory, f"{repository}:1")
    blob = specs.blob(directory, spec.identity.base)
    good = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(good[:-9] + b"otherbyte")
    assert rebuild(Opened(spec, directory), store=Store.open(), tell=Messages()).image_id == spec.expected.image_id
    assert blob.read_bytes() == good


def test_a_second_copy_replaces_a_deleted_copy(spec: Spec, directory: Path, repository: str, tmp_path: Path) -> None:
    push_to(spec, directory, f"{repository}/first:1")
    push_to(spec, directory, f"{repository}/second:1")
    copies = remote.read(directory).copies
    assert [copy.repository for copy in copies] == [f"{repository}/first", f"{repository}/second"]
    delete(f"{copies[0].repository}@{copies[0].image}")
    delete(f"{copies[0].repository}@{copies[0].spec}")
    shutil.rmtree(directory / "blobs")
    assert rebuild(Opened(spec, directory), store=empty_store(tmp_path), tell=Messages()).image_id == spec.expected.image_id


def test_a_deleted_image_is_reported(spec: Spec, directory: Path, repository: str, tmp_path: Path) -> None:
    done, _ = push_to(spec, directory, f"{repository}:1")
    delete(done.image)
    with pytest.raises(NetworkError, match="does not have this image"):
        open_spec(f"{repository}:1", tmp_path, empty_store(tmp_path))
    shutil.rmtree(directory / "blobs")
    with pytest.raises(ReproEnvError, match=r"was not found.*does not have this image") as raised:
        rebuild(Opened(spec, directory), store=empty_store(tmp_path), tell=Messages())
    assert "beta" in str(raised.value)
    assert repository in str(raised.value).replace("/v2/", "/")
    assert raised.value.hint
    # The artifact can still be opened by its own digest.
    assert open_spec(done.spec, tmp_path, empty_store(tmp_path)).spec == spec


@pytest.mark.parametrize("how", ["other bytes", "gone"])
def test_a_damaged_or_missing_layer_in_the_registry_is_reported(
    how: str, spec: Spec, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(tmp_path / "own") as host:
        done, _ = push_to(spec, directory, f"{host}/damaged:1")
        (layer,) = (
            row
            for row in read_manifest(done.spec)["layers"]
            if row["annotations"][remote.TITLE].startswith(f"blobs/{spec.identity.base.sha256[7:]}")
        )
        (data,) = (tmp_path / "own" / "data").rglob(f"{layer['digest'][7:]}/data")
        if how == "gone":
            data.unlink()
        else:
            content = data.read_bytes()
            data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        store = empty_store(tmp_path)
        found = open_spec(f"{host}/damaged:1", tmp_path, store)
        with pytest.raises((ArtifactError, NetworkError)) as raised:
            rebuild_opened(found, store)
        assert layer["digest"] in str(raised.value)
        assert raised.value.hint
        assert store.images.get(spec.expected.image_id) is None
        # The spec on the first machine still has all of its blobs.
        assert rebuild(Opened(spec, directory), store=store, tell=Messages()).image_id == spec.expected.image_id


def test_a_tag_may_move_to_another_spec_and_a_digest_does_not(
    spec: Spec, directory: Path, repository: str, tmp_path: Path
) -> None:
    first, _ = push_to(spec, directory, f"{repository}:1")
    other = specs.make(tmp_path / "other" / "repro", {"gamma": wheels.make(tmp_path / "wheels", "gamma")}, carry=["gamma"])
    push_to(other, tmp_path / "other" / "repro", f"{repository}:1")
    assert open_spec(f"{repository}:1", tmp_path).spec == other
    assert open_spec(first.image, tmp_path).spec == spec
    shutil.rmtree(directory / "blobs")
    assert rebuild(Opened(spec, directory), store=empty_store(tmp_path), tell=Messages()).image_id == spec.expected.image_id


def test_an_image_without_a_spec_is_refused(spec: Spec, directory: Path, repository: str, tmp_path: Path) -> None:
    done, _ = push_to(spec, directory, f"{repository}:1")
    delete(done.spec)
    name, _, digest = done.image.partition("@")
    delete(f"{name}@{digest_of_tag(name, digest.replace(':', '-'))}")
    with pytest.raises(SpecError, match="has no spec") as raised:
        open_spec(f"{repository}:1", tmp_path)
    assert "repro-env push" in raised.value.hint


@pytest.mark.parametrize("word", ["127.0.0.1:9/Upper:1", "registry.example.com/name@sha256:12"])
def test_an_invalid_reference_is_refused(word: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        open_spec(word, tmp_path)
    assert "registry.example.com/team/name:tag" in raised.value.hint


@pytest.mark.parametrize("word", ["missing/spec.json", "../missing", "./missing", "missing"])
def test_a_missing_path_is_not_a_reference(word: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="this file does not exist"):
        open_spec(word, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"schema": "repro-env/remote/2"}',
        '{"schema": "repro-env/remote/1", "copies": [{"repository": "x", "image": "latest", "spec": "y"}]}',
        '{"schema": "repro-env/remote/1", "more": 1}',
    ],
)
def test_an_unreadable_remote_json_is_refused(text: str, spec: Spec, directory: Path) -> None:
    (directory / "remote.json").write_text(text)
    with pytest.raises(SpecError) as raised:
        rebuild(Opened(spec, directory), store=Store.open(), tell=Messages())
    assert "remote.json" in raised.value.where


def test_the_referrers_api_credentials_and_an_interrupted_transfer(
    spec: Spec, directory: Path, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "plain-words-for-tests"
    with Front(host) as front:
        front.referrers, front.token, front.user = True, True, ("me", secret)
        to = f"{front.host}/api/train:1"
        with pytest.raises(NetworkError, match="credentials"):
            push_to(spec, directory, to)
        (tmp_path / "docker").mkdir()
        login = base64.b64encode(f"me:{secret}".encode()).decode()
        (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": {front.host: {"auth": login}}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
        done, messages = push_to(spec, directory, to)
        assert push_to(spec, directory, to)[0].blobs == 0
        assert not any(
            request.path.endswith(done.image.partition("@")[2].replace(":", "-")) and request.method == "PUT"
            for request in front.asked
        )
        front.fail("GET", "/blobs/", "cut", 100)
        store = empty_store(tmp_path)
        found = open_spec(to, tmp_path, store, messages)
        assert found.spec == spec
        assert rebuild_opened(found, store, messages).image_id == spec.expected.image_id
        written = [path.read_bytes() for path in directory.iterdir() if path.is_file()] + ["\n".join(messages.lines).encode()]
        assert not any(text in data for data in written for text in (secret.encode(), login.encode()))


def _url(name: str) -> str:
    host, _, path = name.partition("/")
    repository, _, digest = path.partition("@")
    return f"http://{host}/v2/{repository}/manifests/{digest}"


def read_manifest(name: str) -> dict[str, Any]:
    """Read a manifest from the registry with plain HTTP."""
    request = urllib.request.Request(_url(name), headers={"Accept": "application/vnd.oci.image.manifest.v1+json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def digest_of_tag(name: str, tag: str) -> str:
    accept = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"
    request = urllib.request.Request(_url(f"{name}@{tag}"), headers={"Accept": accept}, method="HEAD")
    with urllib.request.urlopen(request) as answer:
        digest: str = answer.headers["Docker-Content-Digest"]
    return digest


def delete(name: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(_url(name), method="DELETE")) as answer:
        assert answer.status == 202


def _rename_first(title: str) -> Callable[[list[Descriptor]], None]:
    def change(files: list[Descriptor]) -> None:
        files[0] = msgspec.structs.replace(files[0], annotations={remote.TITLE: title})

    return change


def _add_file(title: str, size: int | None = None) -> Callable[[list[Descriptor]], None]:
    def change(files: list[Descriptor]) -> None:
        own = next(file for file in files if (file.annotations or {})[remote.TITLE] == "spec.json")
        files.append(msgspec.structs.replace(own, annotations={remote.TITLE: title}, size=own.size if size is None else size))

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_rename_first("spec.json"), "twice"),
        (_add_file("requirements.txt", 1 << 40), "which is too large"),
        (lambda files: files.clear(), "has no spec.json"),
    ],
    ids=["a file twice", "a huge file", "no spec"],
)
def test_a_crafted_artifact_is_refused(
    change: Callable[[list[Descriptor]], None], text: str, spec: Spec, directory: Path, repository: str, tmp_path: Path
) -> None:
    (directory / "requirements.txt").unlink()
    name = attach_changed(push_to(spec, directory, f"{repository}:1")[0], change)
    store = empty_store(tmp_path)
    with pytest.raises((ArtifactError, SpecError), match=text) as raised:
        open_spec(name, tmp_path, store)
    assert raised.value.hint
    assert list((store.root / "specs").iterdir()) == []


def test_files_with_other_names_than_those_of_a_spec_are_not_written(
    spec: Spec, directory: Path, repository: str, tmp_path: Path
) -> None:
    done, _ = push_to(spec, directory, f"{repository}:1")
    for title in ("../out", "/tmp/p-out", "sub/spec.json", "blobs/../../out", "remote.json", ".git/config"):
        found = open_spec(attach_changed(done, _add_file(title)), tmp_path, empty_store(tmp_path))
        assert {path.name for path in found.directory.rglob("*")} == {"spec.json", "requirements.txt", "remote.json"}
        assert remote.read(found.directory).copies[0].repository == repository
    assert not (tmp_path / "out").exists()


def test_a_spec_that_refers_to_another_image_is_refused(spec: Spec, directory: Path, repository: str, tmp_path: Path) -> None:
    done, _ = push_to(spec, directory, f"{repository}:1")
    other = specs.make(tmp_path / "other" / "repro", {"gamma": wheels.make(tmp_path / "wheels", "gamma")}, carry=["gamma"])
    second, _ = push_to(other, tmp_path / "other" / "repro", f"{repository}:2")
    name = attach_changed(msgspec.structs.replace(done, image=second.image), lambda files: None)
    with pytest.raises(ArtifactError, match="but refers to"):
        open_spec(name, tmp_path, empty_store(tmp_path))


def attach_changed(done: Pushed, change: Callable[[list[Descriptor]], None]) -> str:
    """Attach a copy of the pushed artifact with changed files to the image."""
    ref, image = parse(done.spec), parse(done.image)
    with Registry(ref.host) as client:
        data, media_type, _ = client.manifest(ref.repository, ref.digest)
        manifest = manifest_of(data, media_type, where="test")
        assert isinstance(manifest, Manifest)
        files = list(manifest.layers)
        change(files)
        data, media_type, digest = client.manifest(image.repository, image.digest)
        subject = Blob(media_type=media_type, digest=digest, size=len(data))
        artifact = attach(client, ref.repository, subject, remote.SPEC_TYPE, files)
    return f"{ref.name}@{artifact.digest}"
