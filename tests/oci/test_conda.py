"""What a conda package installs: paths, prefixes, scripts, and inconsistent packages. All packages are made by hand."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest

from repro_env.guest.wheelrule import EntryPoint
from repro_env.oci import conda
from repro_env.oci.conda import Facts, Info, PackagePath
from repro_env.oci.entry import Entry
from repro_env.schema.errors import ArtifactError
from tests.oci.condapackages import LAYOUT, NEW

OLD = "/home/builder/placehold_placehold_placehold"


def packed(*, binary: bool = False, placeholder: str = OLD, path: str = "bin/tool") -> PackagePath:
    return PackagePath(path, prefix_placeholder=placeholder, file_mode="binary" if binary else "text")


def info(*, noarch: str = "", points: tuple[EntryPoint, ...] = ()) -> Info:
    return Info("tool", "1.0", "0", 3, "linux-64", ("python",), (), "MIT", noarch, points, ())


def file(path: str, data: bytes = b"x", *, executable: bool = False) -> Entry:
    return Entry(path, "file", executable, len(data), hashlib.sha256(data).hexdigest(), "")


def facts(*linked: Entry, **more: object) -> Facts:
    return Facts("tool-1.0-0.conda", info(**more), linked)  # type: ignore[arg-type] # passed on


def joined(data: bytes, path: PackagePath, prefix: str = NEW) -> bytes:
    return b"".join(conda.insert_prefix(data, path, prefix))


def index(**more: object) -> dict[str, bytes]:
    fields = {"name": "tool", "version": "1.0", "build": "0", "build_number": 3, "subdir": "linux-64", "depends": ["python"]}
    return {"info/index.json": json.dumps(fields | more).encode(), "info/paths.json": b'{"paths": [], "paths_version": 1}'}


class TestPrefix:
    def test_the_prefix_is_inserted_into_a_text_file(self) -> None:
        assert joined(f"a={OLD}/lib:{OLD}\n".encode(), packed()) == f"a={NEW}/lib:{NEW}\n".encode()

    def test_a_c_string_keeps_its_length(self) -> None:
        data = b"\x7fELF" + f"{OLD}/lib:{OLD}/lib64".encode() + b"\0next\0"
        made = joined(data, packed(binary=True))
        assert len(made) == len(data)
        assert made.startswith(b"\x7fELF" + f"{NEW}/lib:{NEW}/lib64".encode() + b"\0")
        assert made.endswith(b"\0next\0")

    def test_a_c_string_at_the_end_of_a_file_keeps_its_length(self) -> None:
        made = joined(b"z" + OLD.encode(), packed(binary=True))
        assert made == b"z" + NEW.encode().ljust(len(OLD), b"\0")

    def test_a_prefix_too_long_for_a_binary_file_is_refused(self) -> None:
        with pytest.raises(ArtifactError, match="has space for 43 bytes"):
            joined(OLD.encode(), packed(binary=True), "/x" * 40)

    def test_a_long_first_line_is_changed_to_a_form_that_kernels_accept(self) -> None:
        long = "/" + "n" * 130
        data = f"#!{OLD}/bin/python3.11 -E\nprint('{OLD}')\n".encode()
        assert joined(data, packed()) == f"#!{NEW}/bin/python3.11 -E\nprint('{NEW}')\n".encode()
        assert joined(data, packed(), long).startswith(b"#!/bin/sh\n'''exec' \"" + long.encode() + b'/bin/python3.11" -E "$0"')
        perl = f"#!{OLD}/bin/perl -w\n".encode()
        assert joined(perl, packed(), long) == b"#!/usr/bin/env perl -w\n"
        assert joined(perl, packed(), "/my envs/one") == b"#!/usr/bin/env perl -w\n"
        assert joined(data, packed(), "/my envs/one").startswith(b"#!/bin/sh\n'''exec' \"/my envs/one/bin/python3.11\" -E")


class TestPlacing:
    def test_noarch_python_files_are_installed_into_site_packages(self) -> None:
        found = conda.canonical(
            facts(file("site-packages/tool/a.py"), file("python-scripts/run", executable=True), noarch="python"), LAYOUT
        )
        assert {"lib/python3.11/site-packages/tool/a.py", "bin/run"} <= {entry.path for entry in found.entries}
        assert found.members["bin/run"] == "python-scripts/run"

    def test_files_of_other_packages_keep_their_paths(self) -> None:
        found = conda.canonical(facts(file("site-packages/tool/a.py")), LAYOUT)
        assert "site-packages/tool/a.py" in found.members

    def test_entry_points_are_written_by_the_script_rule(self) -> None:
        point = EntryPoint("tool", "tool.cli", "main")
        found = conda.canonical(facts(file("site-packages/t.py"), noarch="python", points=(point,)), LAYOUT)
        assert found.literals["bin/tool"] == point.text(f"#!{NEW}/bin/python\n".encode())
        assert found.points == {"bin/tool": point}

    def test_bytecode_and_history_are_left_out(self) -> None:
        found = conda.canonical(facts(file("lib/a.py"), file("lib/__pycache__/a.pyc"), file("conda-meta/history")), LAYOUT)
        assert {entry.path for entry in found.entries} == {"lib/a.py", "conda-meta/tool-1.0-0.json"}

    def test_the_record_lists_files_without_their_origin(self) -> None:
        installed = conda.canonical(facts(file("lib/a.py")), LAYOUT)
        record = json.loads(installed.literals["conda-meta/tool-1.0-0.json"])
        assert record["files"] == ["lib/a.py"]
        assert (record["name"], record["version"], record["build"], record["build_number"]) == ("tool", "1.0", "0", 3)
        assert not {"extracted_package_dir", "package_tarball_full_path", "link"} & set(record)

    def test_symlinks_and_empty_directories_are_installed(self) -> None:
        linked = (
            Entry("lib/b.so", "link", False, 0, "", "b.so.1"),
            Entry("lib/c.so", "link", False, 0, "", f"{NEW}/lib/b.so.1"),
            file("lib/b.so.1", executable=True),
            Entry("share/empty", "dir", False, 0, "", ""),
        )
        kinds = {entry.path: entry.kind for entry in conda.canonical(facts(*linked), LAYOUT).entries}
        assert kinds == {
            "lib/b.so": "link",
            "lib/c.so": "link",
            "lib/b.so.1": "file",
            "share/empty": "dir",
            "conda-meta/tool-1.0-0.json": "file",
        }

    @pytest.mark.parametrize("target", ["../../etc/passwd", "/etc/passwd", "/home/ann/envs/ml2/x", "", "a\nb", ".."])
    def test_a_symlink_that_leaves_the_prefix_is_refused(self, target: str) -> None:
        with pytest.raises(ArtifactError, match="outside of the environment"):
            conda.canonical(facts(Entry("lib/x", "link", False, 0, "", target)), LAYOUT)

    def test_a_path_below_a_symlink_is_refused(self) -> None:
        with pytest.raises(ArtifactError, match="is below a file or symlink"):
            conda.canonical(facts(Entry("lib/x", "link", False, 0, "", "../share"), file("lib/x/y")), LAYOUT)

    def test_an_environment_at_a_symlinked_prefix_uses_the_real_path(self) -> None:
        """The files contain the prefix, and are installed at its target."""
        found = conda.canonical(facts(file("lib/a.py")), msgspec.structs.replace(LAYOUT, real="/scratch/ann/ml"))
        assert found.root == "scratch/ann/ml"
        assert conda.canonical(facts(file("lib/a.py")), LAYOUT).root == NEW[1:]

    def test_two_files_at_one_path_are_refused(self) -> None:
        with pytest.raises(ArtifactError, match=r"installs bin/run twice"):
            conda.canonical(facts(file("python-scripts/run"), file("bin/run"), noarch="python"), LAYOUT)


class TestInfo:
    def test_all_spellings_of_noarch_are_read(self) -> None:
        assert conda.read_info(index(noarch="python"), "tool-1.0-0.conda").noarch == "python"
        assert conda.read_info(index(noarch=True), "tool-1.0-0.conda").noarch == "generic"
        link = {"info/link.json": b'{"noarch": {"type": "python", "entry_points": ["t = t.cli:main"]}}'}
        found = conda.read_info(index() | link, "tool-1.0-0.conda")
        assert (found.noarch, [point.name for point in found.entry_points]) == ("python", ["t"])

    @pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "a\\b", "a\nb", "", "a/../../b", "..", "a\u202eb"])
    def test_a_path_that_is_not_normal_is_refused(self, path: str) -> None:
        paths = {"paths": [{"_path": path, "path_type": "hardlink"}], "paths_version": 1}
        with pytest.raises(ArtifactError, match="has the path"):
            conda.read_info(index() | {"info/paths.json": json.dumps(paths).encode()}, "tool-1.0-0.conda")

    def test_a_path_listed_twice_is_refused(self) -> None:
        paths = {"paths": [{"_path": "a", "path_type": "hardlink"}] * 2, "paths_version": 1}
        with pytest.raises(ArtifactError, match="lists a path twice"):
            conda.read_info(index() | {"info/paths.json": json.dumps(paths).encode()}, "tool-1.0-0.conda")

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"[]",
            b"\xff",
            b'{"paths": {}, "paths_version": 1}',
            b'{"paths": [], "paths_version": 2}',
            b'{"paths": [3], "paths_version": 1}',
            b'{"paths": [{"_path": "a", "path_type": "device"}], "paths_version": 1}',
            b'{"paths": [{"_path": 4}], "paths_version": 1}',
            b"[" * 100_000,
        ],
    )
    def test_an_invalid_paths_json_is_refused(self, content: bytes) -> None:
        with pytest.raises(ArtifactError, match=r"info/paths\.json"):
            conda.read_info(index() | {"info/paths.json": content}, "tool-1.0-0.conda")

    @pytest.mark.parametrize(
        "more", [{"name": "other"}, {"name": "../x"}, {"version": 3}, {"build_number": "x"}, {"depends": "a"}]
    )
    def test_an_index_that_contradicts_the_file_name_or_itself_is_refused(self, more: dict[str, object]) -> None:
        with pytest.raises(ArtifactError):
            conda.read_info(index(**more), "tool-1.0-0.conda")

    def test_entry_points_cannot_inject_sections_or_paths(self) -> None:
        for entry_points in (["a = b:c\n[gui_scripts]"], ["../x = b:c"], ["a"], "a = b:c", [3]):
            link = {"info/link.json": json.dumps({"noarch": {"type": "python", "entry_points": entry_points}}).encode()}
            with pytest.raises(ArtifactError):
                conda.read_info(index(noarch="python") | link, "tool-1.0-0.conda")


def test_the_same_facts_give_the_same_bytes() -> None:
    """A golden digest: the rule never changes."""
    found = conda.canonical(
        facts(file("site-packages/t.py"), noarch="python", points=(EntryPoint("tool", "tool.cli", "main"),)), LAYOUT
    )
    rows = [[entry.path, entry.executable, entry.size, entry.sha256] for entry in found.entries]
    assert (
        hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        == "98f53b2956e925b6e59a4aa53231b14522d6911b2523b0812c0dbad3b5f7b978"
    )
