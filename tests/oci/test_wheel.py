"""Canonical rule 1: what a wheel installs, and the refusal of inconsistent wheels."""

from __future__ import annotations

import base64
import hashlib

import msgspec
import pytest

from repro_env.oci import wheel
from repro_env.oci.wheel import Facts, File, canonical
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError

LAYOUT = Layout(
    prefix="/home/ann/venv",
    purelib="lib/python3.11/site-packages",
    platlib="lib64/python3.11/site-packages",
    scripts="bin",
    headers="include/site/python3.11",
)
INFO = "Demo_Pkg-1.0.dist-info"
DATA = "Demo_Pkg-1.0.data"
FILES = {
    "demo/__init__.py": b"x = 1\n",
    "demo/tool.so": b"\x7fELF",
    "demo/__pycache__/__init__.cpython-311.pyc": b"pyc",
    "demo/only.pyc": b"sourceless",
    f"{DATA}/scripts/run": b"#!python\nprint(1)\n",
    f"{DATA}/scripts/shell.sh": b"#!/bin/sh\n",
    f"{DATA}/data/share/demo.txt": b"data",
    f"{DATA}/headers/demo.h": b"int x;",
    f"{DATA}/purelib/pure.py": b"",
    f"{INFO}/METADATA": b"Name: Demo.Pkg\nVersion: 1.0\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
    f"{INFO}/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
    f"{INFO}/INSTALLER": b"somebody\n",
}


def row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def facts(
    files: dict[str, bytes], *, listed: str | None = None, filename: str = "Demo_Pkg-1.0-cp311-cp311-linux_x86_64.whl"
) -> Facts:
    rows = "".join(row(name, content) for name, content in files.items()) + f"{INFO}/RECORD,,\n" if listed is None else listed
    return Facts(
        filename=filename,
        files=(
            *(File(name, len(content), name.endswith((".so", ".sh"))) for name, content in files.items()),
            File(f"{INFO}/RECORD", 1, False),
        ),
        record=rows.encode(),
        metadata=files.get(f"{INFO}/WHEEL", b""),
        entry_points=files.get(f"{INFO}/entry_points.txt", b""),
        scripts={name: content for name, content in files.items() if name.startswith(f"{DATA}/scripts/")},
    )


def test_every_member_is_installed_by_its_scheme() -> None:
    found = canonical(facts(FILES), LAYOUT, name="demo-pkg")
    site = LAYOUT.platlib
    assert [entry.path for entry in found.entries] == sorted(
        [
            "bin/demo",
            "bin/run",
            "bin/shell.sh",
            "include/site/python3.11/demo-pkg/demo.h",
            f"{LAYOUT.purelib}/pure.py",
            f"{site}/{INFO}/INSTALLER",
            f"{site}/{INFO}/METADATA",
            f"{site}/{INFO}/RECORD",
            f"{site}/{INFO}/WHEEL",
            f"{site}/{INFO}/entry_points.txt",
            f"{site}/demo/__init__.py",
            f"{site}/demo/only.pyc",
            f"{site}/demo/tool.so",
            "share/demo.txt",
        ],
        key=str.encode,
    )
    by_path = {entry.path: entry for entry in found.entries}
    assert by_path[f"{site}/demo/tool.so"].executable
    assert not by_path[f"{site}/demo/__init__.py"].executable
    assert by_path["bin/run"].executable
    assert found.literals[f"{site}/{INFO}/INSTALLER"] == b"repro-env\n"
    assert found.literals["bin/shell.sh"] == b"#!/bin/sh\n"
    assert found.size == sum(entry.size for entry in found.entries)


def test_record_is_written_again_and_correct() -> None:
    found = canonical(facts(FILES), LAYOUT, name="demo-pkg")
    own = f"{LAYOUT.platlib}/{INFO}/RECORD"
    rows = wheel.read_record(found.literals[own], "test")
    assert [row.path.encode() for row in rows] == sorted(row.path.encode() for row in rows)
    assert {row.path for row in rows} >= {"demo/__init__.py", "../../../bin/demo", "../../../share/demo.txt", f"{INFO}/RECORD"}
    assert len(rows) == len(found.entries)
    by_hash = {entry.sha256 for entry in found.entries}
    assert all(row.sha256 in by_hash for row in rows if row.path != f"{INFO}/RECORD")


def test_order_of_members_does_not_matter() -> None:
    backwards = dict(reversed(FILES.items()))
    assert (
        canonical(facts(FILES), LAYOUT, name="demo-pkg").entries == canonical(facts(backwards), LAYOUT, name="demo-pkg").entries
    )


def test_purelib_wheels_are_installed_into_purelib() -> None:
    files = FILES | {f"{INFO}/WHEEL": b"Root-Is-Purelib: true\nTag: py3-none-any\n"}
    found = canonical(facts(files), LAYOUT, name="demo-pkg")
    assert f"{LAYOUT.purelib}/demo/__init__.py" in {entry.path for entry in found.entries}


def test_facts_can_be_stored_and_read() -> None:
    before = facts(FILES)
    assert msgspec.json.decode(msgspec.json.encode(before), type=Facts) == before


BAD_NAMES = [
    "../x.py",
    "/etc/passwd",
    "a/../../x",
    "a//b",
    "./a",
    "a\\b",
    "a\nb",
    f"{DATA}/data/../x",
    f"{DATA}/other/x",
    f"{DATA}/data",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_outside_of_the_install_schemes_are_refused(name: str) -> None:
    with pytest.raises(ArtifactError):
        canonical(facts(FILES | {name: b"x"}), LAYOUT, name="demo-pkg")


def test_a_duplicate_member_is_refused() -> None:
    good = facts(FILES)
    with pytest.raises(ArtifactError, match="twice"):
        canonical(good._replace(files=(*good.files, good.files[0])), LAYOUT, name="demo-pkg")


def test_two_members_at_one_path_are_refused() -> None:
    files = FILES | {f"{DATA}/platlib/demo/__init__.py": b"other"}
    with pytest.raises(ArtifactError, match="twice"):
        canonical(facts(files), LAYOUT, name="demo-pkg")


def test_a_member_missing_in_record_is_refused() -> None:
    listed = facts({name: text for name, text in FILES.items() if name != "demo/tool.so"}).record.decode()
    with pytest.raises(ArtifactError, match=r"demo/tool\.so"):
        canonical(facts(FILES, listed=listed), LAYOUT, name="demo-pkg")


def test_a_row_without_a_file_is_refused() -> None:
    listed = facts(FILES | {"demo/ghost.py": b""}).record.decode()
    with pytest.raises(ArtifactError, match=r"demo/ghost\.py"):
        canonical(facts(FILES, listed=listed), LAYOUT, name="demo-pkg")


@pytest.mark.parametrize("swap", [("sha256=", "md5="), (",6\n", ",7\n")])
def test_rows_with_a_wrong_hash_or_size_are_refused(swap: tuple[str, str]) -> None:
    listed = facts(FILES).record.decode().replace(*swap)
    with pytest.raises(ArtifactError):
        canonical(facts(FILES, listed=listed), LAYOUT, name="demo-pkg")


def test_scripts_that_do_not_match_record_are_refused() -> None:
    good = facts(FILES)
    with pytest.raises(ArtifactError, match="does not have the sha256 in RECORD"):
        canonical(good._replace(scripts={**good.scripts, f"{DATA}/scripts/run": b"evil"}), LAYOUT, name="demo-pkg")


@pytest.mark.parametrize(
    "filename", ["demo.whl", "other-1.0-py3-none-any.whl", "Demo_Pkg-2.0-py3-none-any.whl", "Demo_Pkg-1.0-py3-none-any.zip"]
)
def test_a_file_name_that_does_not_match_is_refused(filename: str) -> None:
    with pytest.raises(ArtifactError):
        canonical(facts(FILES, filename=filename), LAYOUT, name="demo-pkg")


def test_dist_info_of_vendored_packages_is_ignored() -> None:
    files = FILES | {"demo/_vendor/six-1.0.dist-info/RECORD": b""}
    found = canonical(facts(files), LAYOUT, name="demo-pkg")
    vendored = f"{LAYOUT.platlib}/demo/_vendor/six-1.0.dist-info/RECORD"
    assert {entry.path: entry.size for entry in found.entries}[vendored] == 0
    assert vendored not in found.literals
    assert b"_vendor/six-1.0.dist-info/RECORD,sha256=" in found.literals[f"{LAYOUT.platlib}/{INFO}/RECORD"]


def test_signatures_and_local_versions_are_accepted() -> None:
    assert wheel.name_and_version("torch-2.1.0+cpu-cp311-cp311-linux_x86_64.whl") == ("torch", "2.1.0+cpu")
    assert wheel.name_and_version("demo-1.0-3-py3-none-any.whl") == ("demo", "1.0")
