"""`capture --base REF` through the command: from a registry's image to the same image, on other machines too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repro_env.registry.client import Registry
from tests.e2e.parts import Project
from tests.fakes import images
from tests.fakes.images import layered
from tests.registries import registry


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as name:
        yield name


def spec_of(directory: Path) -> dict[str, Any]:
    content = json.loads((directory / "spec.json").read_text())
    assert isinstance(content, dict)
    return content


def blob(small: Project, digest: str) -> bytes:
    """A carried tree as it is sent."""
    return (small.directory / f"repro/blobs/{digest.removeprefix('sha256:')}.gz").read_bytes()


def push(host: str, layers: list[bytes], tag: str) -> str:
    made = layered(layers)
    server = Registry(host, pause=0.01)
    for data, layer in zip(made.layers, made.image.layers, strict=True):
        server.upload("bases/small", [data].__iter__, layer)
    server.ensure("bases/small", made.config, made.image.config_blob.media_type)
    server.put_manifest("bases/small", tag, made.image.manifest, made.image.manifest_blob.media_type)
    return made.image.manifest_blob.digest


@pytest.fixture(scope="module")
def trees(small: Project) -> tuple[bytes, bytes]:
    """The base and the interpreter that were cut from this machine, as layers."""
    identity = spec_of(small.directory / "repro")["identity"]
    return blob(small, identity["base"]["sha256"]), blob(small, identity["interpreter"]["tree"]["sha256"])


def test_a_downloadable_base_gives_the_same_image_and_is_not_bundled(
    small: Project, host: str, trees: tuple[bytes, bytes], tmp_path: Path
) -> None:
    """The same system out of a registry makes the same image; it is not carried, and had again by its digest."""
    digest = push(host, [trees[0]], "system")
    made = small.capture("--base", f"{host}/bases/small:system", "--output", tmp_path / "repro", "--source", small.directory)
    base = made["base"]
    assert (base["reference"], base["digest"], base["kept"]) == (f"{host}/bases/small:system", digest, False)
    before, after = spec_of(small.directory / "repro"), spec_of(tmp_path / "repro")
    assert after["identity"] == before["identity"]
    assert made["image_id"] == before["expected"]["image_id"]
    name = f"{after['identity']['base']['sha256'].removeprefix('sha256:')}.gz"
    assert not (tmp_path / "repro/blobs" / name).exists()
    assert "missing" not in small.run("show", tmp_path / "repro").out.partition("\nblobs")[2].partition("\n\n")[0]
    checked = small.run("check", tmp_path / "repro", code=None)
    assert checked.code == 0, checked.out

    push(host, [images.base({"etc/other": b"another system"})], "system")  # the tag moves
    other = small.elsewhere(tmp_path / "store")
    messages = other.run("rebuild", tmp_path / "repro", "--dry-run").err
    assert f"{host}/bases/small:system@{digest}" in messages
    assert other.rebuild(tmp_path / "repro") == made["image_id"]


def test_a_kept_base_rebuilds_without_the_registry(small: Project, host: str, trees: tuple[bytes, bytes], tmp_path: Path) -> None:
    """The image has the captured Python, and a distribution that the environment has not; the registry may go away."""
    more = images.base({"usr/share/more": b"more", "etc/hostname": b"builder\n"})
    push(host, [*trees, more], "python")
    made = small.capture(
        "--base", f"{host}/bases/small:python", "--keep-base", "--output", tmp_path / "repro", "--source", small.directory
    )
    assert made["base"]["kept"] is True
    assert made["image_id"] != spec_of(small.directory / "repro")["expected"]["image_id"]
    text = (tmp_path / "repro/spec.json").read_text().replace(host, "registry.invalid")
    (tmp_path / "repro/spec.json").write_text(text)
    other = small.elsewhere(tmp_path / "store")
    assert other.rebuild(tmp_path / "repro") == made["image_id"]
    code = "import ssl, mdurl; print(open('/usr/share/more').read(), mdurl.EDITED)"
    says = other.run("exec", "--source", small.directory, "python", "-c", code, cwd=tmp_path)
    assert says.out.split() == ["more", "True"]


def test_a_base_with_a_different_interpreter_is_refused(
    small: Project, host: str, trees: tuple[bytes, bytes], tmp_path: Path
) -> None:
    stdlib = spec_of(small.directory / "repro")["observed"]["interpreter"]["stdlib"].lstrip("/")
    push(host, [*trees, images.base({f"{stdlib}/os.py": b"# changed\n"})], "other")
    done = small.run(
        "capture", "--python", small.python, "--base", f"{host}/bases/small:other", "--output", tmp_path / "repro", code=7
    )
    assert "this image has another interpreter at" in done.err
    assert f"/{stdlib}/os.py" in done.err
    assert f"--base {host}/bases/small:other" in done.err
    assert not (tmp_path / "repro/spec.json").exists()


def test_contradictory_options_of_the_base_are_refused(small: Project, tmp_path: Path) -> None:
    assert "--base REF" in small.run("capture", "--keep-base", "--output", tmp_path / "repro", code=2).err
    done = small.run("capture", "--base", "registry.example.com/x:1", "--with", "git", "--output", tmp_path / "repro", code=2)
    assert "--with" in done.err
    assert not list(tmp_path.iterdir())
