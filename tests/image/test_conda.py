"""What a conda package becomes: placing, prefixes, scripts, and what contradicts itself. All constructed."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro_env.image import conda
from repro_env.image.conda import Facts, Info, Linked, Packed
from repro_env.image.script import EntryPoint
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError

OLD = "/home/builder/placehold_placehold_placehold"
NEW = "/home/ann/envs/ml"
LAYOUT = Layout(
    prefix=NEW,
    in_place=True,
    purelib="lib/python3.11/site-packages",
    platlib="lib/python3.11/site-packages",
    scripts="bin",
    headers="include/python3.11",
    python=f"{NEW}/bin/python",
)


def packed(*, binary: bool = False, placeholder: str = OLD, path: str = "bin/tool") -> Packed:
    return Packed(path, "file", -1, "", placeholder, binary)


def info(*, noarch: str = "", points: tuple[EntryPoint, ...] = ()) -> Info:
    return Info("tool", "1.0", "0", 3, "linux-64", ("python",), (), "MIT", noarch, points, ())


def file(path: str, data: bytes = b"x", *, executable: bool = False) -> Linked:
    return Linked(path, "file", executable, len(data), hashlib.sha256(data).hexdigest(), "")


def facts(*linked: Linked, **more: object) -> Facts:
    return Facts("tool-1.0-0.conda", info(**more), linked)  # type: ignore[arg-type] # passed on


def joined(data: bytes, one: Packed, prefix: str = NEW) -> bytes:
    return b"".join(conda.replaced(data, one, prefix))


def index(**more: object) -> dict[str, bytes]:
    said = {"name": "tool", "version": "1.0", "build": "0", "build_number": 3, "subdir": "linux-64", "depends": ["python"]}
    return {"info/index.json": json.dumps(said | more).encode(), "info/paths.json": b'{"paths": [], "paths_version": 1}'}


class TestPrefix:
    def test_text(self) -> None:
        assert joined(f"a={OLD}/lib:{OLD}\n".encode(), packed()) == f"a={NEW}/lib:{NEW}\n".encode()

    def test_a_c_string_keeps_its_length(self) -> None:
        data = b"\x7fELF" + f"{OLD}/lib:{OLD}/lib64".encode() + b"\0next\0"
        made = joined(data, packed(binary=True))
        assert len(made) == len(data)
        assert made.startswith(b"\x7fELF" + f"{NEW}/lib:{NEW}/lib64".encode() + b"\0")
        assert made.endswith(b"\0next\0")

    def test_a_c_string_at_the_very_end(self) -> None:
        made = joined(b"z" + OLD.encode(), packed(binary=True))
        assert made == b"z" + NEW.encode().ljust(len(OLD), b"\0")

    def test_a_prefix_that_is_too_long_for_a_binary_is_refused(self) -> None:
        with pytest.raises(ArtifactError, match="has room for a prefix of 43 bytes"):
            joined(OLD.encode(), packed(binary=True), "/x" * 40)

    def test_a_first_line_in_a_form_that_the_kernel_takes(self) -> None:
        long = "/" + "n" * 130
        data = f"#!{OLD}/bin/python3.11 -E\nprint('{OLD}')\n".encode()
        assert joined(data, packed()) == f"#!{NEW}/bin/python3.11 -E\nprint('{NEW}')\n".encode()
        assert joined(data, packed(), long).startswith(b"#!/bin/sh\n'''exec' \"" + long.encode() + b'/bin/python3.11" -E "$0"')
        perl = f"#!{OLD}/bin/perl -w\n".encode()
        assert joined(perl, packed(), long) == b"#!/usr/bin/env perl -w\n"
        assert joined(perl, packed(), "/my envs/one") == b"#!/usr/bin/env perl -w\n"
        assert joined(data, packed(), "/my envs/one").startswith(b"#!/bin/sh\n'''exec' \"/my envs/one/bin/python3.11\" -E")

    @given(st.lists(st.sampled_from([b"x", b"\0", b"\0\0\0", OLD.encode(), b"/lib", b"\n", b"#!"]), max_size=12), st.booleans())
    def test_taking_the_prefix_out_again_gives_what_was_packed(self, parts: list[bytes], binary: bool) -> None:
        data, one = b"".join(parts), packed(binary=binary)
        restored = conda.restored(joined(data, one), one, NEW)
        assert restored is not None
        if binary and OLD.encode() in data[-len(OLD) :]:
            return  # without a zero behind it there is no telling how long it was; the sha256 says so
        assert b"".join(restored) == data

    def test_a_string_that_had_the_prefix_before_stays(self) -> None:
        data = f"{NEW}\0{OLD}\0".encode()
        one = packed(binary=True)
        restored = conda.restored(joined(data, one), one, NEW)
        assert restored is not None
        assert b"".join(restored) == data


class TestPlacing:
    def test_noarch_python_goes_where_its_python_looks(self) -> None:
        found = conda.canonical(
            facts(file("site-packages/tool/a.py"), file("python-scripts/run", executable=True), noarch="python"), LAYOUT
        )
        assert {"lib/python3.11/site-packages/tool/a.py", "bin/run"} <= {entry.path for entry in found.entries}
        assert found.members["bin/run"] == "python-scripts/run"

    def test_other_packages_lie_as_they_are(self) -> None:
        found = conda.canonical(facts(file("site-packages/tool/a.py")), LAYOUT)
        assert "site-packages/tool/a.py" in found.members

    def test_entry_points_by_our_own_rule(self) -> None:
        point = EntryPoint("tool", "tool.cli", "main")
        found = conda.canonical(facts(file("site-packages/t.py"), noarch="python", points=(point,)), LAYOUT)
        assert found.literals["bin/tool"] == point.text(f"#!{NEW}/bin/python\n".encode())
        assert found.points == {"bin/tool": point}

    def test_bytecode_and_history_are_left_out(self) -> None:
        found = conda.canonical(facts(file("lib/a.py"), file("lib/__pycache__/a.pyc"), file("conda-meta/history")), LAYOUT)
        assert {entry.path for entry in found.entries} == {"lib/a.py", "conda-meta/tool-1.0-0.json"}

    def test_the_record_says_what_is_there_and_not_where_it_came_from(self) -> None:
        found = conda.canonical(facts(file("lib/a.py")), LAYOUT)
        said = json.loads(found.literals["conda-meta/tool-1.0-0.json"])
        assert said["files"] == ["lib/a.py"]
        assert (said["name"], said["version"], said["build"], said["build_number"]) == ("tool", "1.0", "0", 3)
        assert not {"extracted_package_dir", "package_tarball_full_path", "link"} & set(said)

    def test_symlinks_and_empty_folders(self) -> None:
        linked = (
            Linked("lib/b.so", "link", False, 0, "", "b.so.1"),
            Linked("lib/c.so", "link", False, 0, "", f"{NEW}/lib/b.so.1"),
            file("lib/b.so.1", executable=True),
            Linked("share/empty", "dir", False, 0, "", ""),
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
        with pytest.raises(ArtifactError, match="leaves the environment"):
            conda.canonical(facts(Linked("lib/x", "link", False, 0, "", target)), LAYOUT)

    def test_a_path_below_a_symlink_is_refused(self) -> None:
        with pytest.raises(ArtifactError, match="lies below a file or symlink"):
            conda.canonical(facts(Linked("lib/x", "link", False, 0, "", "../share"), file("lib/x/y")), LAYOUT)

    def test_a_prefix_that_is_a_symlink_stays_one(self) -> None:
        """The files name the prefix; they lie where it leads to."""
        found = conda.canonical(facts(file("lib/a.py")), msgspec.structs.replace(LAYOUT, real="/scratch/ann/ml"))
        assert found.root == "scratch/ann/ml"
        assert conda.canonical(facts(file("lib/a.py")), LAYOUT).root == NEW[1:]

    def test_two_files_on_one_path_are_refused(self) -> None:
        with pytest.raises(ArtifactError, match=r"installs bin/run twice"):
            conda.canonical(facts(file("python-scripts/run"), file("bin/run"), noarch="python"), LAYOUT)


class TestInfo:
    def test_the_older_form(self) -> None:
        files = index()
        del files["info/paths.json"]
        files["info/files"] = b"bin/a\nlib/b.so\nlib/c\nshare/with space.txt\n"
        files["info/has_prefix"] = (
            f'"{OLD}" text "bin/a"\n{OLD} binary lib/b.so\nlib/c\n\'{OLD}\' text "share/with space.txt"\n'.encode()
        )
        found = {one.path: one for one in conda.read_info(files, "tool-1.0-0.tar.bz2", frozenset()).paths}
        assert [(one.placeholder, one.binary) for one in found.values()] == [
            (OLD, False),
            (OLD, True),
            (conda.PLACEHOLDER, False),
            (OLD, False),
        ]
        again = conda.read_info(files, "tool-1.0-0.tar.bz2", frozenset({"lib/c"}))
        assert [(one.kind, one.placeholder) for one in again.paths if one.path == "lib/c"] == [("link", "")]

    def test_noarch_in_all_its_spellings(self) -> None:
        assert conda.read_info(index(noarch="python"), "tool-1.0-0.conda").noarch == "python"
        assert conda.read_info(index(noarch=True), "tool-1.0-0.conda").noarch == "generic"
        link = {"info/link.json": b'{"noarch": {"type": "python", "entry_points": ["t = t.cli:main"]}}'}
        found = conda.read_info(index() | link, "tool-1.0-0.conda")
        assert (found.noarch, [point.name for point in found.entry_points]) == ("python", ["t"])

    @pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "a\\b", "a\nb", "", "a/../../b", "..", "a\u202eb"])
    def test_a_path_that_leaves_or_hides_is_refused(self, path: str) -> None:
        paths = {"paths": [{"_path": path, "path_type": "hardlink"}], "paths_version": 1}
        with pytest.raises(ArtifactError, match="has the path"):
            conda.read_info(index() | {"info/paths.json": json.dumps(paths).encode()}, "tool-1.0-0.conda")

    def test_a_path_twice_is_refused(self) -> None:
        paths = {"paths": [{"_path": "a", "path_type": "hardlink"}] * 2, "paths_version": 1}
        with pytest.raises(ArtifactError, match="lists a path twice"):
            conda.read_info(index() | {"info/paths.json": json.dumps(paths).encode()}, "tool-1.0-0.conda")

    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"[]",
            b'{"paths": {}, "paths_version": 1}',
            b'{"paths": [], "paths_version": 2}',
            b'{"paths": [3], "paths_version": 1}',
            b'{"paths": [{"_path": "a", "path_type": "device"}], "paths_version": 1}',
            b'{"paths": [{"_path": 4}], "paths_version": 1}',
            b"[" * 100_000,
        ],
    )
    def test_a_list_that_is_none_is_refused(self, said: bytes) -> None:
        with pytest.raises(ArtifactError, match=r"info/paths\.json"):
            conda.read_info(index() | {"info/paths.json": said}, "tool-1.0-0.conda")

    @pytest.mark.parametrize(
        "more", [{"name": "other"}, {"name": "../x"}, {"version": 3}, {"build_number": "x"}, {"depends": "a"}]
    )
    def test_an_index_that_contradicts_the_file_name_or_itself_is_refused(self, more: dict[str, object]) -> None:
        with pytest.raises(ArtifactError):
            conda.read_info(index(**more), "tool-1.0-0.conda")

    def test_entry_points_cannot_smuggle_sections_or_paths(self) -> None:
        for told in (["a = b:c\n[gui_scripts]"], ["../x = b:c"], ["a"], "a = b:c", [3]):
            link = {"info/link.json": json.dumps({"noarch": {"type": "python", "entry_points": told}}).encode()}
            with pytest.raises(ArtifactError):
                conda.read_info(index(noarch="python") | link, "tool-1.0-0.conda")


def test_the_same_facts_give_the_same_bytes() -> None:
    """A golden digest: the rule is released, and never changes."""
    found = conda.canonical(
        facts(file("site-packages/t.py"), noarch="python", points=(EntryPoint("tool", "tool.cli", "main"),)), LAYOUT
    )
    told = [[entry.path, entry.executable, entry.size, entry.sha256] for entry in found.entries]
    assert (
        hashlib.sha256(json.dumps(told).encode()).hexdigest()
        == "98f53b2956e925b6e59a4aa53231b14522d6911b2523b0812c0dbad3b5f7b978"
    )
