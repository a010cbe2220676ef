"""An image from a registry becomes one canonical tree, always the same; images that tools read differently are rejected."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.environment.system import baseimage
from repro_env.environment.system.host import DIRECTORIES
from repro_env.io import machine
from repro_env.registry.client import Registry
from repro_env.schema.errors import ArtifactError, NetworkError, PlatformError, ReproEnvError
from repro_env.schema.image import INDEX
from repro_env.schema.progress import Silent
from repro_env.store.store import Store
from tests.fakes import images
from tests.fakes.images import Layered, layered
from tests.registries import registry

GOLDEN = "sha256:cb0946d4cd7c0766fa5607b05c565b2f4e521c8aad7bc75ed43a0de31f4b1c0f"
"""The digest of the tree of `LAYERS`. It changes only with the rule, which makes existing specs invalid."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as name:
        yield name


def push(host: str, image: Layered, tag: str = "1", repository: str = "bases/test") -> str:
    server = Registry(host, pause=0.01)
    made = image.image
    for data, blob in zip(image.layers, made.layers, strict=True):
        server.upload(repository, [data].__iter__, blob)
    server.ensure(repository, made.config, made.config_blob.media_type)
    return server.put_manifest(repository, tag, made.manifest, made.manifest_blob.media_type)[0]


def foreign_tar() -> bytes:
    """A layer as other tools write it: times, owners, set-uid bits, devices, hard links, bytecode."""
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


def opened(host: str, tag: str = "1", store: Store | None = None) -> baseimage.BaseImage:
    return baseimage.pull(f"{host}/bases/test:{tag}", machine.platform(), kept=False, store=store or Store.open(), tell=Silent())


def test_an_image_becomes_its_canonical_tree(host: str) -> None:
    digest = push(host, layered(LAYERS))
    found = opened(host)
    assert found.hint.digest == digest
    assert found.hint.reference == f"{host}/bases/test:1"
    assert [layer.digest for layer in found.hint.layers] == [layer.digest for layer in layered(LAYERS).image.layers]
    entries = found.entries
    files = {path: (entry.executable, entry.sha256) for path, entry in entries.items() if entry.kind == "file"}

    def sha256(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    assert files == {
        "usr/bin/su": (True, sha256(b"#!su")),
        "usr/bin/again": (True, sha256(b"su")),
        "etc/shadow": (False, sha256(b"secret")),
        "etc/new": (False, sha256(b"new")),
    }
    assert entries["bin"].target == "usr/bin"
    assert set(DIRECTORIES) <= entries.keys()
    assert "usr/lib/x/__pycache__" not in entries
    assert found.blob.sha256 == GOLDEN
    assert found.blob.files == len(entries)
    from repro_env.oci import tar
    from repro_env.oci.entry import members

    made = b"".join(tar.write(members(found.tree.entries, found.tree.contents)))
    assert (f"sha256:{sha256(made)}", len(made)) == (found.blob.sha256, found.blob.size)


def test_compression_and_layers_do_not_change_the_tree(host: str) -> None:
    image = layered(LAYERS)
    push(host, image, "one")
    push(host, layered([image.layers[0], LAYERS[1]]), "two")
    assert opened(host, "one").blob == opened(host, "two").blob


def test_a_pulled_image_is_not_downloaded_again(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push(host, layered(LAYERS), "known")
    store = Store.open()
    first = opened(host, "known", store)

    def never(*_: object) -> None:
        raise AssertionError("asked for a blob")

    monkeypatch.setattr(Registry, "blob", never)
    assert opened(host, "known", store).blob == first.blob
    monkeypatch.setattr(Registry, "manifest", never)
    assert baseimage.fetch(first.hint, store, Silent()).blob == first.blob


def test_a_moved_tag_is_another_base_but_the_digest_is_not(host: str, tmp_path: Path) -> None:
    push(host, layered(LAYERS), "moving")
    first = opened(host, "moving")
    push(host, layered([images.base({"etc/other": b"other"})]), "moving")
    assert opened(host, "moving").blob != first.blob
    assert baseimage.fetch(first.hint, Store.open(tmp_path / "other"), Silent()).blob == first.blob


def test_an_index_gives_the_image_for_this_machine(host: str) -> None:
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
    ("layers", "message"),
    [
        ([hostile(("../../etc/evil", tarfile.REGTYPE, ""))], "not a path inside"),
        ([hostile(("h", tarfile.LNKTYPE, "../../etc/shadow"))], "not a path inside"),
        ([hostile(("h", tarfile.LNKTYPE, "etc/nothing"))], "not a file before it"),
        ([hostile(("l", tarfile.SYMTYPE, "/etc"), ("l/passwd", tarfile.REGTYPE, ""))], "below"),
        ([hostile(("a", tarfile.REGTYPE, ""), ("a", tarfile.SYMTYPE, "/etc"))], "twice"),
        (
            [
                hostile(("lib", tarfile.SYMTYPE, "usr/lib")),
                images.base({"lib/x": b"x"})[:0] + hostile(("lib/x", tarfile.REGTYPE, "")),
            ],
            "not a directory",
        ),
        ([b"no tar at all" * 100], "not a tar"),
    ],
)
def test_an_ambiguous_image_is_rejected_as_base(host: str, tmp_path: Path, layers: list[bytes], message: str) -> None:
    push(host, layered(layers), "bad")
    store = Store.open(tmp_path / "store")
    with pytest.raises(ArtifactError, match=message):
        opened(host, "bad", store)
    assert not list((tmp_path / "store/layers").iterdir())
    assert not (tmp_path / "store/temp").exists()


def test_a_config_that_does_not_match_the_layers_is_rejected(host: str) -> None:
    image = layered(LAYERS)
    push(host, Layered(image.layers, images.config(["sha256:" + "0" * 64] * 2)), "lie")
    with pytest.raises(ArtifactError, match="the config says"):
        opened(host, "lie")
    push(host, Layered(image.layers, images.config(["sha256:" + "0" * 64])), "lie")
    with pytest.raises(ArtifactError, match="does not match its layers"):
        opened(host, "lie")


@pytest.mark.parametrize("ref", ["{host}/bases/test:never", "{host}/never/was:1", "127.0.0.1:1/bases/test:1", "UPPER CASE"])
def test_a_missing_image_is_reported(host: str, ref: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro_env.environment.system.baseimage.Registry", lambda name: Registry(name, pause=0.01))
    with pytest.raises(ReproEnvError) as raised:
        baseimage.pull(ref.format(host=host), machine.platform(), kept=False, store=Store.open(), tell=Silent())
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
    assert [(package.name, package.version) for package in opened(host, "deb").tree.packages] == [
        ("base-files", "12.4"),
        ("dpkg", "12.4"),
    ]


def test_a_download_can_be_stopped(host: str, tmp_path: Path) -> None:
    push(host, layered(LAYERS), "stop")
    hint = opened(host, "stop").hint
    with pytest.raises(NetworkError, match="stopped"):
        baseimage.fetch(hint, Store.open(tmp_path / "other"), Silent(), [True])
