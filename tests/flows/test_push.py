"""Push, and taking back from there: a real registry, tiny specs."""

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

from repro_env.build import remote
from repro_env.flows import snapshot
from repro_env.flows.opened import Opened, opened
from repro_env.flows.push import Pushed, push
from repro_env.flows.rebuild import Rebuilt, rebuild
from repro_env.model.errors import ArtifactError, NetworkError, ReproEnvError, SpecError
from repro_env.model.image import Blob
from repro_env.model.spec import Spec
from repro_env.registry.client import Registry
from repro_env.registry.manifest import Descriptor, Manifest
from repro_env.registry.manifest import parse as manifest_of
from repro_env.registry.reference import parse
from repro_env.registry.referrers import attach
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.front import Front
from tests.fakes.index import configured
from tests.flows.test_rebuild import Told
from tests.registries import registry


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
    spec = specs.make(
        folder, made, carry=["alpha"], compress=["alpha"], overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"}
    )
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


def test_a_source_that_was_evicted_is_fetched_when_a_run_needs_it(
    spec: Spec, folder: Path, repository: str, tmp_path: Path
) -> None:
    sent(spec, folder, f"{repository}:1")
    store = bare(tmp_path)
    found = opened(f"{repository}:1", tmp_path, store)
    made(found, store)
    assert spec.observed.source is not None
    store.layers.remove(spec.observed.source.tree.sha256)
    shutil.rmtree(found.folder / "blobs")
    taken = snapshot.take(found.spec, found.folder, directory=None, runs=tmp_path / "runs", store=store)
    assert (taken.tree / "train.py").read_bytes() == b"print('trained')\n"


def test_what_the_image_has_is_not_sent_twice(spec: Spec, folder: Path, repository: str) -> None:
    done, _ = sent(spec, folder, f"{repository}:1")
    image, artifact = fetched(done.image), fetched(done.spec)
    layers = {one["digest"] for one in image["layers"]}
    named = {one["annotations"][remote.TITLE]: one["digest"] for one in artifact["layers"]}
    for tree in (spec.identity.base, spec.identity.interpreter.tree, spec.identity.overlay):
        assert tree is not None
        assert named[f"blobs/{tree.sha256[7:]}.gz"] in layers
    assert {"spec.json", "requirements.txt", "provenance.json"} <= named.keys()
    assert not any("private" in name or name == "remote.json" for name in named)
    assert artifact["artifactType"] == remote.SPEC_TYPE
    assert artifact["subject"]["digest"] == done.image.partition("@")[2]


def test_a_folder_without_its_blobs_is_made_whole(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    sent(spec, folder, f"{repository}:1")
    text = (folder / "remote.json").read_text()
    assert repository in text
    clone = tmp_path / "clone"
    shutil.copytree(folder, clone, ignore=shutil.ignore_patterns("blobs"))
    store = bare(tmp_path)
    dry = rebuild(spec, clone, store=store, dry_run=True, tell=Told())
    assert dry.plan is not None
    assert {item.origin for item in dry.plan.items} == {"registry"}
    assert dry.plan.fetch > 0
    assert not (clone / "blobs").exists()
    assert rebuild(spec, clone, store=store, dry_run=False, tell=Told()).image_id == spec.expected.image_id
    for one in (folder / "blobs").glob("[0-9a-f]*"):
        assert (clone / "blobs" / one.name).read_bytes() == one.read_bytes()


def test_a_damaged_blob_beside_the_spec_is_fetched_again(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    sent(spec, folder, f"{repository}:1")
    blob = specs.blob(folder, spec.identity.base)
    good = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(good[:-9] + b"otherbyte")
    assert rebuild(spec, folder, store=Store.open(), dry_run=False, tell=Told()).image_id == spec.expected.image_id
    assert blob.read_bytes() == good


def test_a_copy_that_is_gone_is_made_up_by_another(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    sent(spec, folder, f"{repository}/first:1")
    sent(spec, folder, f"{repository}/second:1")
    copies = remote.read(folder).copies
    assert [one.repository for one in copies] == [f"{repository}/first", f"{repository}/second"]
    delete(f"{copies[0].repository}@{copies[0].image}")
    delete(f"{copies[0].repository}@{copies[0].spec}")
    shutil.rmtree(folder / "blobs")
    assert rebuild(spec, folder, store=bare(tmp_path), dry_run=False, tell=Told()).image_id == spec.expected.image_id


def test_an_image_that_was_deleted_is_said(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    done, _ = sent(spec, folder, f"{repository}:1")
    delete(done.image)
    with pytest.raises(NetworkError, match="is not there"):
        opened(f"{repository}:1", tmp_path, bare(tmp_path))
    shutil.rmtree(folder / "blobs")
    with pytest.raises(ReproEnvError, match=r"nowhere to be had.*is not there") as raised:
        rebuild(spec, folder, store=bare(tmp_path), dry_run=False, tell=Told())
    assert "beta" in str(raised.value)
    assert repository in str(raised.value).replace("/v2/", "/")
    assert raised.value.hint
    # The artifact alone still tells what it carries.
    assert opened(done.spec, tmp_path, bare(tmp_path)).spec == spec


@pytest.mark.parametrize("how", ["other bytes", "gone"])
def test_a_layer_that_is_damaged_or_gone_in_the_registry(
    how: str, spec: Spec, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(tmp_path / "own") as host:
        done, _ = sent(spec, folder, f"{host}/damaged:1")
        (layer,) = (
            one
            for one in fetched(done.spec)["layers"]
            if one["annotations"][remote.TITLE].startswith(f"blobs/{spec.identity.base.sha256[7:]}")
        )
        (data,) = (tmp_path / "own" / "data").rglob(f"{layer['digest'][7:]}/data")
        if how == "gone":
            data.unlink()
        else:
            whole = data.read_bytes()
            data.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        store = bare(tmp_path)
        found = opened(f"{host}/damaged:1", tmp_path, store)
        with pytest.raises((ArtifactError, NetworkError)) as raised:
            made(found, store)
        assert layer["digest"] in str(raised.value)
        assert raised.value.hint
        assert store.images.get(spec.expected.image_id) is None
        # Beside the first machine's spec nothing is missing.
        assert rebuild(spec, folder, store=store, dry_run=False, tell=Told()).image_id == spec.expected.image_id


def test_a_tag_that_moves_is_another_spec_and_a_digest_stays(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    first, _ = sent(spec, folder, f"{repository}:1")
    other = specs.make(tmp_path / "other" / "repro", {"gamma": wheels.make(tmp_path / "wheels", "gamma")}, carry=["gamma"])
    sent(other, tmp_path / "other" / "repro", f"{repository}:1")
    assert opened(f"{repository}:1", tmp_path).spec == other
    assert opened(first.image, tmp_path).spec == spec
    shutil.rmtree(folder / "blobs")
    assert rebuild(spec, folder, store=bare(tmp_path), dry_run=False, tell=Told()).image_id == spec.expected.image_id


def test_an_image_without_a_spec(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    done, _ = sent(spec, folder, f"{repository}:1")
    delete(done.spec)
    name, _, digest = done.image.partition("@")
    delete(f"{name}@{tagged(name, digest.replace(':', '-'))}")
    with pytest.raises(SpecError, match="has no spec") as raised:
        opened(f"{repository}:1", tmp_path)
    assert "repro-env push" in raised.value.hint


@pytest.mark.parametrize("word", ["127.0.0.1:9/Upper:1", "registry.example.com/name@sha256:12"])
def test_a_word_that_is_no_reference(word: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        opened(word, tmp_path)
    assert "registry.example.com/team/name:tag" in raised.value.hint


@pytest.mark.parametrize("word", ["missing/spec.json", "../missing", "./missing", "missing"])
def test_a_path_that_is_not_there_is_no_reference(word: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not there"):
        opened(word, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"schema": "repro-env/remote/2"}',
        '{"schema": "repro-env/remote/1", "copies": [{"repository": "x", "image": "latest", "spec": "y"}]}',
        '{"schema": "repro-env/remote/1", "more": 1}',
    ],
)
def test_a_remote_that_cannot_be_read_is_refused(text: str, spec: Spec, folder: Path) -> None:
    (folder / "remote.json").write_text(text)
    with pytest.raises(SpecError) as raised:
        rebuild(spec, folder, store=Store.open(), dry_run=False, tell=Told())
    assert "remote.json" in raised.value.where


def test_through_the_referrers_api_with_credentials_and_a_cut_transfer(
    spec: Spec, folder: Path, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "plain-words-for-tests"
    with Front(host) as front:
        front.referrers, front.token, front.user = True, True, ("me", secret)
        to = f"{front.host}/api/train:1"
        with pytest.raises(NetworkError, match="credentials"):
            sent(spec, folder, to)
        (tmp_path / "docker").mkdir()
        login = base64.b64encode(f"me:{secret}".encode()).decode()
        (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": {front.host: {"auth": login}}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
        done, told = sent(spec, folder, to)
        assert not sent(spec, folder, to)[0].changed
        assert not any(
            one.path.endswith(done.image.partition("@")[2].replace(":", "-")) and one.method == "PUT" for one in front.asked
        )
        front.fail("GET", "/blobs/", "cut", 100)
        store = bare(tmp_path)
        found = opened(to, tmp_path, store, told)
        assert found.spec == spec
        assert made(found, store, told).image_id == spec.expected.image_id
        written = [path.read_bytes() for path in folder.iterdir() if path.is_file()] + ["\n".join(told.lines).encode()]
        assert not any(text in data for data in written for text in (secret.encode(), login.encode()))


def test_kept_blobs_of_another_repository_are_not_sent(spec: Spec, folder: Path, host: str) -> None:
    with Front(host) as front:
        first, _ = sent(spec, folder, f"{front.host}/mounted/first:1")
        second, _ = sent(spec, folder, f"{front.host}/mounted/second:1")
        assert second.image.partition("@")[2] == first.image.partition("@")[2]
        assert front.count("POST", "mount=") > 0
        assert (second.sent, second.blobs, second.changed) == (0, 0, True)


def _url(name: str) -> str:
    host, _, rest = name.partition("/")
    repository, _, digest = rest.partition("@")
    return f"http://{host}/v2/{repository}/manifests/{digest}"


def fetched(name: str) -> dict[str, Any]:
    """A manifest of the registry, by HTTP alone."""
    request = urllib.request.Request(_url(name), headers={"Accept": "application/vnd.oci.image.manifest.v1+json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def tagged(name: str, tag: str) -> str:
    accept = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"
    request = urllib.request.Request(_url(f"{name}@{tag}"), headers={"Accept": accept}, method="HEAD")
    with urllib.request.urlopen(request) as answer:
        digest: str = answer.headers["Docker-Content-Digest"]
    return digest


def delete(name: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(_url(name), method="DELETE")) as answer:
        assert answer.status == 202


def _named(title: str) -> Callable[[list[Descriptor]], None]:
    def change(files: list[Descriptor]) -> None:
        files[0] = msgspec.structs.replace(files[0], annotations={remote.TITLE: title})

    return change


def _more(title: str, size: int | None = None) -> Callable[[list[Descriptor]], None]:
    def change(files: list[Descriptor]) -> None:
        own = next(one for one in files if (one.annotations or {})[remote.TITLE] == "spec.json")
        files.append(msgspec.structs.replace(own, annotations={remote.TITLE: title}, size=own.size if size is None else size))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_named("spec.json"), "twice"),
        (_more("requirements.txt", 1 << 40), "twice, or of"),
        (lambda files: files.clear(), "holds no spec.json"),
    ],
    ids=["a file twice", "a file without end", "no spec"],
)
def test_an_artifact_of_a_stranger(
    change: Callable[[list[Descriptor]], None], said: str, spec: Spec, folder: Path, repository: str, tmp_path: Path
) -> None:
    (folder / "requirements.txt").unlink()
    name = crafted(sent(spec, folder, f"{repository}:1")[0], change)
    store = bare(tmp_path)
    with pytest.raises((ArtifactError, SpecError), match=said) as raised:
        opened(name, tmp_path, store)
    assert raised.value.hint
    assert list((store.root / "specs").iterdir()) == []


def test_names_that_are_none_of_a_spec_are_not_written(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    done, _ = sent(spec, folder, f"{repository}:1")
    for title in ("../out", "/tmp/p-out", "sub/spec.json", "blobs/../../out", "remote.json", ".git/config"):
        found = opened(crafted(done, _more(title)), tmp_path, bare(tmp_path))
        assert {path.name for path in found.folder.rglob("*")} == {"spec.json", "requirements.txt", "remote.json"}
        assert remote.read(found.folder).copies[0].repository == repository
    assert not (tmp_path / "out").exists()


def test_a_spec_that_hangs_on_another_image_is_refused(spec: Spec, folder: Path, repository: str, tmp_path: Path) -> None:
    done, _ = sent(spec, folder, f"{repository}:1")
    other = specs.make(tmp_path / "other" / "repro", {"gamma": wheels.make(tmp_path / "wheels", "gamma")}, carry=["gamma"])
    second, _ = sent(other, tmp_path / "other" / "repro", f"{repository}:2")
    name = crafted(msgspec.structs.replace(done, image=second.image), lambda files: None)
    with pytest.raises(ArtifactError, match="hangs on"):
        opened(name, tmp_path, bare(tmp_path))


def crafted(done: Pushed, change: Callable[[list[Descriptor]], None]) -> str:
    """An artifact like the one that was pushed, with other files."""
    ref, image = parse(done.spec), parse(done.image)
    with Registry(ref.host) as client:
        data, media_type, _ = client.manifest(ref.repository, ref.digest)
        manifest = manifest_of(data, media_type, where="test")
        assert isinstance(manifest, Manifest)
        files = list(manifest.layers)
        change(files)
        whole, kind, digest = client.manifest(image.repository, image.digest)
        subject = Blob(media_type=kind, digest=digest, size=len(whole))
        made = attach(client, ref.repository, subject, remote.SPEC_TYPE, files, {"org.example": "crafted"})
    return f"{ref.name}@{made.digest}"
