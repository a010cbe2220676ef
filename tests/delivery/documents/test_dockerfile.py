"""The Dockerfile of a spec: its bytes and order; a builder reads the exact values of a spec, or they are refused."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro_env.delivery.documents import dockerfile
from repro_env.delivery.documents.dockerfile import INSTALLER, LISTING, NAME, json_words, plain_path, setting
from repro_env.guest import install
from repro_env.oci import config
from repro_env.oci.entry import Entry
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import Variable
from repro_env.schema.errors import SpecError
from repro_env.schema.image import LABEL
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.delivery.documents.values import NASTY
from tests.fakes import specs, wheels

NAMES = (NAME, INSTALLER, LISTING)
UNSAYABLE = {
    "newline": "a\nRUN id",
    "carriage return": "a\rRUN id",
    "both": "a\r\nRUN id",
    "continued newline": "a\\\nRUN id",
    "vertical tab": "a\vb",
    "form feed": "a\fb",
    "zero": "a\0b",
    "tab": "a\tb",
    "escape": "a\x1b[2Jb",
    "delete": "a\x7fb",
    "next line": "a\x85RUN id",
    "line separator": "a\u2028RUN id",
    "paragraph separator": "a\u2029RUN id",
    "file separator": "a\x1cRUN id",
    "right to left": "a\u202eb",
    "zero width": "a\u200bb",
    "byte order mark": "\ufeffa",
    "no-break space": "a\u00a0b",
    "half a character": "a\ud800b",
}


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
    return dockerfile.render(spec, spec.observed.source)


def test_golden_dockerfile(spec: Spec) -> None:
    """The same bytes on every machine, independent of the versions of zlib and Python."""
    assert rendered(spec).decode() == GOLDEN.read_text()


def lines_of(spec: Spec) -> list[str]:
    """Return the instructions. No other line of a Dockerfile may have a value."""
    text = rendered(spec).decode()
    assert text.splitlines() == text.split("\n")[:-1], "a value has a line separator"
    return [line for line in text.splitlines() if line and not line.startswith("# ") and line != "#"]


def test_the_stages_come_in_order(spec: Spec) -> None:
    lines = lines_of(spec)
    stages = ["scratch AS base", "base AS distributions", "base AS image", "image AS checked", "image"]
    assert [line.removeprefix("FROM ") for line in lines if line.startswith("FROM ")] == stages
    last = lines[lines.index("FROM image") :]
    assert not any(line.startswith("RUN") for line in last)  # nothing is run in the last stage
    assert [line for line in last if line.startswith("COPY")] == ['COPY --from=checked ["/.repro-env/build/marker/", "/"]']
    env = [line.removeprefix("ENV ").partition("=") for line in last if line.startswith("ENV ")]
    assert {name: expanded(value) for name, _, value in env} == config.variables(spec.identity)
    assert spec.observed.source is not None
    code = f"blobs/{spec.observed.source.tree.sha256[7:]}.gz"
    assert last[-2:] == [f'ADD ["{code}", "/home/ann/project/"]', "WORKDIR /home/ann/project"]
    assert f'LABEL {LABEL}="{spec.digest}"' in last


def test_only_the_installer_downloads(spec: Spec) -> None:
    assert "http" not in "".join(lines_of(spec))
    assert "files.example.com" not in rendered(spec).decode()


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_a_builder_reads_values_unchanged(spec: Spec, value: str) -> None:
    env = (*spec.identity.config.env, Variable(name="ZZ", value=value))
    odd = changed(spec, config=msgspec.structs.replace(spec.identity.config, env=env))
    (line,) = set(lines_of(odd)) - set(lines_of(spec)) - {line for line in lines_of(odd) if odd.digest in line}
    assert line == setting("ENV", "ZZ", value)
    assert not line.endswith("\\")
    assert expanded(line.removeprefix("ENV ZZ=")) == value


@pytest.mark.parametrize("value", [value for value in NASTY.values() if value and "/" not in value])
def test_a_builder_reads_the_words_of_a_command_unchanged(spec: Spec, value: str) -> None:
    runtime = msgspec.structs.replace(spec.identity.interpreter, executable=f"/opt/{value}/python")
    lines = [line for line in lines_of(changed(spec, interpreter=runtime)) if line.startswith("RUN ")]
    assert [json.loads(line.removeprefix("RUN "))[0] for line in lines] == [f"/opt/{value}/python"] * 2
    assert all(line.isascii() and "<<" not in line for line in lines)  # BuildKit looks for heredocs in the raw line


@pytest.mark.parametrize("value", UNSAYABLE.values(), ids=UNSAYABLE)
def test_a_value_that_does_not_fit_into_a_line_is_refused(spec: Spec, value: str) -> None:
    env = (Variable(name="A", value=value),)
    runtime = spec.identity.interpreter
    for odd in (
        changed(spec, config=msgspec.structs.replace(spec.identity.config, env=env)),
        changed(spec, interpreter=msgspec.structs.replace(runtime, executable=f"/opt/{value}")),
        changed(spec, interpreter=msgspec.structs.replace(runtime, version=f"3.11{value}")),
    ):
        with pytest.raises((SpecError, UnicodeEncodeError, ValueError)) as caught:
            rendered(odd)
        assert not isinstance(caught.value, SpecError) or str(caught.value).isprintable()


@pytest.mark.parametrize("value", [*NASTY.values(), "/a$b", "/a*", "/a ", "/ä", '/"'])
def test_only_plain_paths_are_accepted(value: str) -> None:
    """ADD expands variables even in the JSON form, and WORKDIR too."""
    with pytest.raises(SpecError):
        plain_path(value)


@pytest.mark.parametrize("name", ["", "A B", "A=B", "A\nRUN", "$A", "1A", 'A"', "A\\", "Ä"])
def test_only_valid_names_are_accepted(name: str) -> None:
    with pytest.raises(SpecError):
        setting("ENV", name, "x")


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=30), min_size=1, max_size=4))
def test_any_text_is_read_back_or_refused(words: list[str]) -> None:
    try:
        text, line = json_words(words), setting("ENV", "A", words[0])
    except SpecError:
        return
    assert json.loads(text) == words
    assert expanded(line.removeprefix("ENV A=")) == words[0]


def test_conda_packages_are_refused_by_name(spec: Spec) -> None:
    package = CondaPackage(
        name="zlib", version="1", build="0", subdir="linux-64", filename="zlib-1-0.conda", sha256="sha256:" + "0" * 64, size=1
    )
    with pytest.raises(SpecError, match="conda packages"):
        rendered(changed(spec, packages=(package,)))


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
    data = dockerfile.listing(rows)
    assert data == dockerfile.listing(rows)
    lines = [json.loads(line) for line in zlib.decompress(data, 31).decode().splitlines()]
    assert lines == [["a", "dir", ""], ["a/ü\n", "file", "0" * 64], ["b", "program", "1" * 64], ["c", "link", "/x y"]]


def test_the_dockerfile_is_written_again_only_if_a_file_is_missing(spec: Spec, tmp_path: Path) -> None:
    directory, store = tmp_path / "repro", Store.open(tmp_path / "store")
    for path in (tmp_path / "wheels").iterdir():
        store.blobs.put([path.read_bytes()], "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest(), where="test")
    assert dockerfile.write(directory, spec, store, wheels.forms_in(tmp_path / "wheels", spec)) == ""
    first = {name: (directory / name).read_bytes() for name in NAMES}
    times = {name: (directory / name).stat().st_mtime_ns for name in NAMES}
    assert dockerfile.write(directory, spec, store, wheels.forms_in(tmp_path / "wheels", spec)) == ""
    assert times == {name: (directory / name).stat().st_mtime_ns for name in NAMES}
    for name in NAMES:
        (directory / name).write_bytes(b"edited")
        dockerfile.write(directory, spec, store, wheels.forms_in(tmp_path / "wheels", spec))
        assert {name: (directory / name).read_bytes() for name in NAMES} == first
    assert first["install.py"] == dockerfile.installer()


def test_an_old_dockerfile_is_removed_if_it_cannot_be_written(spec: Spec, tmp_path: Path) -> None:
    directory = tmp_path / "repro"
    for name in NAMES:
        (directory / name).write_bytes(b"of an earlier capture")
    package = CondaPackage(
        name="zlib", version="1", build="0", subdir="linux-64", filename="zlib-1-0.conda", sha256="sha256:" + "0" * 64, size=1
    )
    assert dockerfile.write(
        directory, changed(spec, packages=(package,)), Store.open(tmp_path / "store"), wheels.forms_in(tmp_path, spec)
    )
    assert not any((directory / name).exists() for name in NAMES)


@pytest.mark.parametrize("value", ["/home/ann/my\u00a0project", "/a\u2028RUN id", "/a\u202eb"])
def test_a_value_that_a_dockerfile_cannot_express_does_not_end_the_capture(spec: Spec, tmp_path: Path, value: str) -> None:
    odd = changed(spec, config=msgspec.structs.replace(spec.identity.config, env=(Variable(name="PATH", value=value),)))
    why = dockerfile.write(tmp_path / "repro", odd, Store.open(tmp_path / "store"), wheels.forms_in(tmp_path, spec))
    assert "a Dockerfile cannot express" in why
    assert why.isprintable()
    assert not (tmp_path / "repro" / "Dockerfile").exists()


def expanded(text: str) -> str:
    """Expand a word of ENV like BuildKit (`shell.Lex`): in double quotes, `\\` escapes `"`, `$` and itself."""
    assert text[0] == text[-1] == '"'
    inner = text[1:-1]
    assert re.fullmatch(r'(?:[^"\\$]|\\["\\$])*', inner), "a quote ends too early, or a variable is expanded"
    return re.sub(r'\\(["\\$])', r"\1", inner)
