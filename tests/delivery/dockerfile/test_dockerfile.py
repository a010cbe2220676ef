"""The Dockerfile of a spec: its bytes and order; values of a spec cannot become instructions."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.delivery.dockerfile import directory as files
from repro_env.delivery.dockerfile import dockerfile, instruction
from repro_env.delivery.dockerfile.instruction import Copy, From, Run, Set, Workdir
from repro_env.guest import install
from repro_env.oci import config
from repro_env.oci.entry import Entry
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import Variable
from repro_env.schema.errors import SpecError
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.delivery.dockerfile.test_instruction import NASTY, UNSAYABLE
from tests.fakes import specs, wheels

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


def test_golden_dockerfile(spec: Spec) -> None:
    """The same bytes on every machine, independent of the versions of zlib and Python."""
    assert rendered(spec).decode() == GOLDEN.read_text()


def test_the_stages_come_in_order(spec: Spec) -> None:
    found = instruction.parse(rendered(spec).decode())
    assert [item for item in found if isinstance(item, From)] == [
        From("scratch", "base"),
        From("base", "distributions"),
        From("base", "image"),
        From("image", "checked"),
        From("image"),
    ]
    last = found[found.index(From("image")) :]
    assert not any(isinstance(step, Run) for step in last)  # nothing is run in the last stage
    assert [step.stage for step in last if isinstance(step, Copy)] == ["checked", ""]  # the marker comes from the check
    env = {step.name: step.value for step in last if isinstance(step, Set) and step.word == "ENV"}
    assert env == config.variables(spec.identity)
    assert env["PATH"].startswith("/opt/env/bin:")
    assert spec.observed.source is not None
    assert last[-2:] == [
        Copy((f"blobs/{spec.observed.source.tree.sha256[7:]}.gz",), "/home/ann/project/", unpack=True),
        Workdir("/home/ann/project"),
    ]
    assert Set("LABEL", config.LABEL, spec.digest) in last


def test_only_the_installer_downloads(spec: Spec) -> None:
    text = rendered(spec).decode()
    assert "http" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "files.example.com" not in text


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_values_of_a_spec_cannot_become_instructions(spec: Spec, value: str) -> None:
    env = (*spec.identity.config.env, Variable(name="ZZ", value=value))
    odd = changed(spec, config=msgspec.structs.replace(spec.identity.config, env=env))
    found = instruction.parse(rendered(odd).decode())
    assert Set("ENV", "ZZ", value) in found
    assert len(found) == len(instruction.parse(rendered(spec).decode())) + 1


@pytest.mark.parametrize("value", [value for value in NASTY.values() if value and "/" not in value])
def test_the_interpreters_path_cannot_become_an_instruction(spec: Spec, value: str) -> None:
    runtime = msgspec.structs.replace(spec.identity.interpreter, executable=f"/opt/{value}/python")
    found = instruction.parse(rendered(changed(spec, interpreter=runtime)).decode())
    assert {item.argv[0] for item in found if isinstance(item, Run)} == {f"/opt/{value}/python"}


@pytest.mark.parametrize("value", UNSAYABLE.values(), ids=UNSAYABLE)
def test_a_value_that_does_not_fit_into_a_line_is_refused(spec: Spec, value: str) -> None:
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


def test_the_installer_uses_the_same_names() -> None:
    assert install.LISTING == dockerfile.LISTING
    assert f"/{install.BUILD}" == dockerfile.BUILD


def test_the_list_of_paths_is_complete(spec: Spec) -> None:
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


def test_the_dockerfile_is_written_again_only_if_a_file_is_missing(spec: Spec, tmp_path: Path) -> None:
    directory, store = tmp_path / "repro", Store.open(tmp_path / "store")
    for path in (tmp_path / "wheels").iterdir():
        store.blobs.put([path.read_bytes()], "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest(), where="test")
    assert files.write(directory, spec, store) == ""
    first = {name: (directory / name).read_bytes() for name in files.NAMES}
    times = {name: (directory / name).stat().st_mtime_ns for name in files.NAMES}
    assert files.write(directory, spec, store) == ""
    assert times == {name: (directory / name).stat().st_mtime_ns for name in files.NAMES}
    for name in files.NAMES:
        (directory / name).write_bytes(b"edited")
        files.write(directory, spec, store)
        assert {name: (directory / name).read_bytes() for name in files.NAMES} == first
    assert first["install.py"] == files.installer()


def test_an_old_dockerfile_is_removed_if_it_cannot_be_written(spec: Spec, tmp_path: Path) -> None:
    directory = tmp_path / "repro"
    for name in files.NAMES:
        (directory / name).write_bytes(b"of an earlier capture")
    package = CondaPackage(
        name="zlib", version="1", build="0", subdir="linux-64", filename="zlib-1-0.conda", sha256="sha256:" + "0" * 64, size=1
    )
    assert files.write(directory, changed(spec, packages=(package,)), Store.open(tmp_path / "store"))
    assert not any((directory / name).exists() for name in files.NAMES)


@pytest.mark.parametrize("value", ["/home/ann/my\u00a0project", "/a\u2028RUN id", "/a\u202eb"])
def test_a_value_that_a_dockerfile_cannot_express_does_not_end_the_capture(spec: Spec, tmp_path: Path, value: str) -> None:
    odd = changed(spec, config=msgspec.structs.replace(spec.identity.config, env=(Variable(name="PATH", value=value),)))
    why = files.write(tmp_path / "repro", odd, Store.open(tmp_path / "store"))
    assert "a Dockerfile cannot express" in why
    assert why.isprintable()
    assert not (tmp_path / "repro" / "Dockerfile").exists()
