"""A registry's image as one canonical tree: the same from the same image, refused where tools do not agree."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.base import pulled
from repro_env.base.host import FOLDERS
from repro_env.io import machine
from repro_env.model.errors import ArtifactError, NetworkError, PlatformError, ReproEnvError
from repro_env.model.image import INDEX
from repro_env.model.talk import Silent
from repro_env.registry.client import Registry
from repro_env.store.store import Store
from tests.fakes import images
from tests.fakes.images import Layered, layered
from tests.registries import registry

GOLDEN = "sha256:cb0946d4cd7c0766fa5607b05c565b2f4e521c8aad7bc75ed43a0de31f4b1c0f"
"""Of the tree that `LAYERS` become. It moves when the rule does, and then specs made before are worth nothing."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as name:
        yield name


def push(host: str, image: Layered, tag: str = "1", repository: str = "bases/test") -> str:
    server = Registry(host, pause=0.01)
    made = image.image
    for data, one in zip(image.layers, made.layers, strict=True):
        server.upload(repository, [data], one)
    server.ensure(repository, made.config, made.config_blob.media_type)
    return server.put_manifest(repository, tag, made.manifest, made.manifest_blob.media_type)


def foreign_tar() -> bytes:
    """As other tools write layers: times, owners, set-uid bits, devices, hard links, bytecode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:

        def add(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> None:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname, info.mode = len(data), kind, target, mode
            info.mtime, info.uid, info.gid = 1_700_000_000, 7, 8
            archive.addfile(info, io.BytesIO(data))

        add("./usr/bin/", kind=tarfile.DIRTYPE, mode=0o700)
        add("./usr/bin/su", b"su", mode=0o4755)
        add("./usr/bin/again", kind=tarfile.LNKTYPE, target="./usr/bin/su")
        add("./bin", kind=tarfile.SYMTYPE, target="usr/bin")
        add("./dev/null", kind=tarfile.CHRTYPE)
        add("./usr/lib/x/__pycache__/y.pyc", b"pyc")
        add("./etc/shadow", b"secret", mode=0o600)
        add("./etc/old", b"old")
    return out.getvalue()


LAYERS = (foreign_tar(), images.base({"etc/old": None, "etc/new": b"new", "usr/bin/su": b"#!su"}))


def opened(host: str, tag: str = "1", store: Store | None = None) -> pulled.Base:
    return pulled.pull(f"{host}/bases/test:{tag}", machine.platform(), kept=False, store=store or Store.open(), tell=Silent())


def test_the_canonical_tree(host: str) -> None:
    digest = push(host, layered(LAYERS))
    found = opened(host)
    assert found.hint.digest == digest
    assert found.hint.reference == f"{host}/bases/test:1"
    assert [one.digest for one in found.hint.layers] == [one.digest for one in layered(LAYERS).image.layers]
    entries = found.entries
    files = {path: (one.executable, one.sha256) for path, one in entries.items() if one.kind == "file"}

    def sha256(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    assert files == {
        "usr/bin/su": (True, sha256(b"#!su")),
        "usr/bin/again": (True, sha256(b"su")),
        "etc/shadow": (False, sha256(b"secret")),
        "etc/new": (False, sha256(b"new")),
    }
    assert entries["bin"].target == "usr/bin"
    assert set(FOLDERS) <= entries.keys()
    assert "usr/lib/x/__pycache__" not in entries
    assert found.blob.sha256 == GOLDEN
    assert found.blob.files == len(entries)
    from repro_env.image import tar
    from repro_env.image.entry import members

    made = b"".join(tar.write(members(found.tree.entries, found.tree.contents)))
    assert (f"sha256:{sha256(made)}", len(made)) == (found.blob.sha256, found.blob.size)


def test_compression_and_layers_do_not_matter_to_the_tree(host: str) -> None:
    one = layered(LAYERS)
    push(host, one, "one")
    push(host, layered([one.layers[0], LAYERS[1]]), "two")
    assert opened(host, "one").blob == opened(host, "two").blob


def test_what_was_pulled_is_not_pulled_again(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push(host, layered(LAYERS), "known")
    store = Store.open()
    first = opened(host, "known", store)

    def never(*_: object) -> None:
        raise AssertionError("asked for a blob")

    monkeypatch.setattr(Registry, "blob", never)
    assert opened(host, "known", store).blob == first.blob
    monkeypatch.setattr(Registry, "manifest", never)
    assert pulled.again(first.hint, store, Silent()).blob == first.blob


def test_a_tag_that_moved_is_another_base_and_the_digest_is_not(host: str, tmp_path: Path) -> None:
    push(host, layered(LAYERS), "moving")
    first = opened(host, "moving")
    push(host, layered([images.base({"etc/other": b"other"})]), "moving")
    assert opened(host, "moving").blob != first.blob
    assert pulled.again(first.hint, Store.open(tmp_path / "other"), Silent()).blob == first.blob


def test_the_image_of_an_index_for_this_machine(host: str) -> None:
    image = layered(LAYERS)
    digest = push(host, image, "single")
    mine, data = machine.platform().architecture, image.image.manifest
    rows = [
        {
            "mediaType": image.image.manifest_blob.media_type,
            "digest": digest,
            "size": len(data),
            "platform": {"os": "linux", "architecture": name},
        }
        for name in ("s390x", mine)
    ]
    server = Registry(host, pause=0.01)
    for tag, chosen in (("index", rows), ("others", rows[:1])):
        text = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": chosen}).encode()
        server.put_manifest("bases/test", tag, text, INDEX)
    assert opened(host, "index").hint.digest == digest
    with pytest.raises(PlatformError, match="s390x"):
        opened(host, "others")


def hostile(*members: tuple[str, bytes, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([hostile(("../../etc/evil", tarfile.REGTYPE, ""))], "none inside it"),
        ([hostile(("h", tarfile.LNKTYPE, "../../etc/shadow"))], "none inside it"),
        ([hostile(("h", tarfile.LNKTYPE, "etc/nothing"))], "no file before it"),
        ([hostile(("l", tarfile.SYMTYPE, "/etc"), ("l/passwd", tarfile.REGTYPE, ""))], "below"),
        ([hostile(("a", tarfile.REGTYPE, ""), ("a", tarfile.SYMTYPE, "/etc"))], "twice"),
        (
            [
                hostile(("lib", tarfile.SYMTYPE, "usr/lib")),
                images.base({"lib/x": b"x"})[:0] + hostile(("lib/x", tarfile.REGTYPE, "")),
            ],
            "no folder",
        ),
        ([b"no tar at all" * 100], "no tar"),
    ],
)
def test_what_cannot_be_a_base(host: str, tmp_path: Path, layers: list[bytes], said: str) -> None:
    push(host, layered(layers), "bad")
    store = Store.open(tmp_path / "store")
    with pytest.raises(ArtifactError, match=said):
        opened(host, "bad", store)
    assert not list((tmp_path / "store/layers").iterdir())
    assert not (tmp_path / "store/temp").exists()


def test_a_config_of_other_layers_is_refused(host: str) -> None:
    image = layered(LAYERS)
    push(host, Layered(image.layers, images.config(["sha256:" + "0" * 64] * 2)), "lie")
    with pytest.raises(ArtifactError, match="the config says"):
        opened(host, "lie")
    push(host, Layered(image.layers, images.config(["sha256:" + "0" * 64])), "lie")
    with pytest.raises(ArtifactError, match="other layers"):
        opened(host, "lie")


@pytest.mark.parametrize("ref", ["{host}/bases/test:never", "{host}/never/was:1", "127.0.0.1:1/bases/test:1", "UPPER CASE"])
def test_what_is_not_there(host: str, ref: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro_env.base.pulled.Registry", lambda name: Registry(name, pause=0.01))
    with pytest.raises(ReproEnvError) as raised:
        pulled.pull(ref.format(host=host), machine.platform(), kept=False, store=Store.open(), tell=Silent())
    assert raised.value.hint


def test_a_symlink_in_place_of_the_package_database_is_not_followed(host: str) -> None:
    push(host, layered([images.base({"var/lib/dpkg/status": "/var/lib/dpkg/status", "etc/x": b"x"})]), "link")
    found = opened(host, "link")
    assert found.tree.packages == ()
    assert any("packages" in line for line in found.tree.unknown)


def test_the_packages_of_a_debian_image(host: str) -> None:
    status = b"\n".join(
        b"Package: %b\nStatus: install ok installed\nArchitecture: amd64\nVersion: 12.4\n" % name
        for name in (b"base-files", b"dpkg")
    )
    push(host, layered([images.base({"var/lib/dpkg/status": status})]), "deb")
    assert [(one.name, one.version) for one in opened(host, "deb").tree.packages] == [("base-files", "12.4"), ("dpkg", "12.4")]


def test_a_stop_is_heard(host: str, tmp_path: Path) -> None:
    push(host, layered(LAYERS), "stop")
    hint = opened(host, "stop").hint
    with pytest.raises(NetworkError, match="stopped"):
        pulled.again(hint, Store.open(tmp_path / "other"), Silent(), [True])
