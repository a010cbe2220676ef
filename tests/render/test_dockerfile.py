"""The Dockerfile of a spec: its bytes, its order, and that nothing of a spec gets out of its place."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.flows import dockerfile as files
from repro_env.image import config
from repro_env.image.entry import Entry
from repro_env.inside import install
from repro_env.model.artifact import CondaPackage
from repro_env.model.environment import Variable
from repro_env.model.errors import SpecError
from repro_env.model.spec import BaseHint, Spec
from repro_env.render import dockerfile, instruction
from repro_env.render.instruction import Copy, From, Run, Set, Workdir
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.render.test_instruction import NASTY, UNSAYABLE

GOLDEN = Path(__file__).with_name("Dockerfile.golden")


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    made = {name: wheels.make(tmp_path / "wheels", name) for name in ("one", "two")}
    overlay = {"opt/env/pyvenv.cfg": b"home = /opt/python\n"}
    urls = {"two": ["https://files.example.com/two-1.0-py3-none-any.whl"]}
    return specs.make(tmp_path / "repro", made, carry=("one",), urls=urls, overlay=overlay, architecture="amd64")


def changed(spec: Spec, **values: Any) -> Spec:
    return msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, **values))


def rendered(spec: Spec) -> bytes:
    return dockerfile.render(spec, config.settings(spec.identity, spec.observed.source), spec.observed.source)


def test_the_golden_one(spec: Spec) -> None:
    """Reads well, and the same bytes on every machine: a zlib or Python of another version changes none of it."""
    assert rendered(spec).decode() == GOLDEN.read_text()


def test_the_stages(spec: Spec) -> None:
    found = instruction.parse(rendered(spec).decode())
    assert [one for one in found if isinstance(one, From)] == [
        From("scratch", "base"),
        From("base", "distributions"),
        From("base", "image"),
        From("image", "checked"),
        From("image"),
    ]
    last = found[found.index(From("image")) :]
    assert not any(isinstance(one, Run) for one in last)  # what a container is started with never gets into the image
    assert [one.stage for one in last if isinstance(one, Copy)] == ["checked", ""]  # without the check there is no marker
    env = {one.name: one.value for one in last if isinstance(one, Set) and one.word == "ENV"}
    assert env == config.variables(spec.identity)
    assert env["PATH"].startswith("/opt/env/bin:")
    assert spec.observed.source is not None
    assert last[-2:] == [
        Copy((f"blobs/{spec.observed.source.tree.sha256[7:]}.gz",), "/home/ann/project/", unpack=True),
        Workdir("/home/ann/project"),
    ]
    assert Set("LABEL", config.LABEL, spec.digest) in last


def test_nothing_is_fetched_but_by_the_installer(spec: Spec) -> None:
    text = rendered(spec).decode()
    assert "http" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "files.example.com" not in text


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_values_of_a_spec_stay_values(spec: Spec, value: str) -> None:
    env = (*spec.identity.config.env, Variable(name="ZZ", value=value))
    odd = changed(spec, config=msgspec.structs.replace(spec.identity.config, env=env))
    found = instruction.parse(rendered(odd).decode())
    assert Set("ENV", "ZZ", value) in found
    assert len(found) == len(instruction.parse(rendered(spec).decode())) + 1


@pytest.mark.parametrize("value", [one for one in NASTY.values() if one and "/" not in one])
def test_so_does_the_interpreters_path(spec: Spec, value: str) -> None:
    runtime = msgspec.structs.replace(spec.identity.interpreter, executable=f"/opt/{value}/python")
    found = instruction.parse(rendered(changed(spec, interpreter=runtime)).decode())
    assert {one.argv[0] for one in found if isinstance(one, Run)} == {f"/opt/{value}/python"}


@pytest.mark.parametrize("value", UNSAYABLE.values(), ids=UNSAYABLE)
def test_what_no_line_can_say_is_refused(spec: Spec, value: str) -> None:
    env = (Variable(name="A", value=value),)
    runtime = spec.identity.interpreter
    for odd in (
        changed(spec, config=msgspec.structs.replace(spec.identity.config, env=env)),
        changed(spec, interpreter=msgspec.structs.replace(runtime, executable=f"/opt/{value}")),
        changed(spec, interpreter=msgspec.structs.replace(runtime, version=f"3.11{value}")),
    ):
        with pytest.raises((SpecError, UnicodeEncodeError, ValueError)):
            rendered(odd)


def test_conda_packages_are_refused_by_name(spec: Spec) -> None:
    package = CondaPackage(
        name="zlib", version="1", build="0", subdir="linux-64", filename="zlib-1-0.conda", sha256="sha256:" + "0" * 64, size=1
    )
    odd = changed(spec, packages=(package,))
    assert "conda packages" in dockerfile.refusal(odd)
    with pytest.raises(SpecError, match="conda packages"):
        rendered(odd)


def test_a_base_that_is_only_linked(spec: Spec) -> None:
    """Who builds has to have it: a copied folder has not, `rebuild --builder docker` brings it."""
    image = BaseHint(
        reference="registry.example.com/python:3.11",
        digest="sha256:" + "0" * 64,
        platform=spec.identity.platform,
        layers=(),
    )
    linked = msgspec.structs.replace(spec, hints=msgspec.structs.replace(spec.hints, base=image))
    assert "--keep-base" in dockerfile.refusal(linked)
    assert dockerfile.refusal(linked, alone=False) == ""
    kept = msgspec.structs.replace(linked.hints, base=msgspec.structs.replace(image, kept=True))
    assert dockerfile.refusal(msgspec.structs.replace(linked, hints=kept)) == ""
    assert rendered(linked) == rendered(spec)


def test_the_installer_and_the_product_agree_on_names() -> None:
    assert install.LISTING == dockerfile.LISTING
    assert f"/{install.BUILD}" == dockerfile.BUILD


def test_the_list_of_paths(spec: Spec) -> None:
    rows = [
        Entry("a", "dir"),
        Entry("a/ü\n", "file", False, 1, "0" * 64),
        Entry("b", "file", True, 1, "1" * 64),
        Entry("c", "link", target="/x y"),
    ]
    data = files.listing(rows)
    assert data == files.listing(rows)
    lines = [json.loads(line) for line in zlib.decompress(data, 31).decode().splitlines()]
    assert lines == [["a", "dir", ""], ["a/ü\n", "file", "0" * 64], ["b", "program", "1" * 64], ["c", "link", "/x y"]]


def test_written_once_and_again_when_something_is_missing(spec: Spec, tmp_path: Path) -> None:
    folder, store = tmp_path / "repro", Store.open(tmp_path / "store")
    for path in (tmp_path / "wheels").iterdir():
        store.blobs.put([path.read_bytes()], "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest(), where="test")
    assert files.write(folder, spec, store) == ""
    first = {name: (folder / name).read_bytes() for name in files.NAMES}
    times = {name: (folder / name).stat().st_mtime_ns for name in files.NAMES}
    assert files.write(folder, spec, store) == ""
    assert times == {name: (folder / name).stat().st_mtime_ns for name in files.NAMES}
    for name in files.NAMES:
        (folder / name).write_bytes(b"edited")
        files.write(folder, spec, store)
        assert {name: (folder / name).read_bytes() for name in files.NAMES} == first
    assert first["install.py"] == Path(install.__file__).read_bytes()


def test_none_is_left_where_there_can_be_none(spec: Spec, tmp_path: Path) -> None:
    folder = tmp_path / "repro"
    for name in files.NAMES:
        (folder / name).write_bytes(b"of an earlier capture")
    package = CondaPackage(
        name="zlib", version="1", build="0", subdir="linux-64", filename="zlib-1-0.conda", sha256="sha256:" + "0" * 64, size=1
    )
    assert files.write(folder, changed(spec, packages=(package,)), Store.open(tmp_path / "store"))
    assert not any((folder / name).exists() for name in files.NAMES)


@pytest.mark.parametrize("value", ["/home/ann/my\u00a0project", "/a\u2028RUN id", "/a\u202eb"])
def test_what_a_dockerfile_cannot_say_ends_no_capture(spec: Spec, tmp_path: Path, value: str) -> None:
    odd = changed(spec, config=msgspec.structs.replace(spec.identity.config, env=(Variable(name="PATH", value=value),)))
    why = files.write(tmp_path / "repro", odd, Store.open(tmp_path / "store"))
    assert "which no Dockerfile can say" in why
    assert why.isprintable()
    assert not (tmp_path / "repro" / "Dockerfile").exists()
