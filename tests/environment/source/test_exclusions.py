"""Git-ignored files that Python may need are kept or reported."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from repro_env.environment.source.exclusions import survey
from repro_env.environment.source.selection import CAP, SourceTree, imported, look
from tests.environment.conftest import Git, make_venv
from tests.environment.python.environments import BASE
from tests.environment.source.projects import files, left_out, put


@pytest.fixture
def src(tmp_path: Path, git: Git) -> Path:
    directory = tmp_path / "src"
    directory.mkdir()
    git(directory, "init")
    return directory


def rules(root: Path, *lines: str) -> None:
    (root / ".gitignore").write_text("\n".join(lines) + "\n")


def look_twice(root: Path, **options: object) -> SourceTree:
    """List the source with the options of a capture and with those of a run, which must have the same snapshot."""
    tree = look(root, **options)  # type: ignore[arg-type]
    assert look(root, facts=False, data=CAP, **options).found == tree.found  # type: ignore[arg-type]
    assert not any(path == ".git" or path.startswith(".git/") for path in files(tree))
    return tree


def kept(root: Path, **options: object) -> list[str]:
    return [path for path in files(look_twice(root, **options)) if path != ".gitignore"]


def reported(tree: SourceTree) -> list[str]:
    return [match[1] for line in tree.problems if (match := re.match(r"git ignores (.*), but Python may need it", line))]


def test_ignored_modules_of_a_package_are_kept(src: Path) -> None:
    rules(src, "_version.py", "_build/", "*_pb2.py", "*.pyc")
    put(src, "src/pkg/__init__.py", "src/pkg/_version.py", "src/pkg/deep/a_pb2.py", "src/pkg/_build/__init__.py")
    put(src, "src/pkg/_build/x.py", "src/pkg/_build/tables.json", "src/pkg/left.pyc", "src/pkg/left.py")
    put(src, "tools/_version.py", "tools/run.py")
    tree = look_twice(src)
    assert files(tree)[1:] == [
        "src/pkg/__init__.py",
        "src/pkg/_build/__init__.py",
        "src/pkg/_build/tables.json",
        "src/pkg/_build/x.py",
        "src/pkg/_version.py",
        "src/pkg/deep/a_pb2.py",
        "src/pkg/left.py",
        "tools/run.py",
    ]
    assert reported(tree) == ["tools/_version.py"]
    assert left_out(tree) == {
        ".git": "version control data", "src/pkg/left.pyc": "git-ignored", "tools/_version.py": "git-ignored",
    }  # fmt: skip


def test_ignored_extension_modules_are_kept(src: Path) -> None:
    rules(src, "*.so", "*.so.*", "build/", "third/")
    put(src, "pkg/__init__.py", "pkg/fast.so", "pkg/libdep.so.1", "plain/x.so")
    put(src, "build/cp311/ext.cpython-311-x86_64-linux-gnu.so", "build/cp311/libdep.so.1.2", "build/cp311/ext.o", "third/libx.so")
    put(src, "pkg/lib/untagged.so")
    assert sorted(kept(src)) == [
        "build/cp311/ext.cpython-311-x86_64-linux-gnu.so",
        "build/cp311/libdep.so.1.2",
        "pkg/__init__.py",
        "pkg/fast.so",
        "pkg/lib/untagged.so",
        "pkg/libdep.so.1",
        "plain/x.so",
    ]
    assert left_out(look_twice(src))["build"] == "git-ignored"


def test_ignored_data_of_a_package_is_kept_up_to_a_limit(src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro_env.environment.source.exclusions.DATA", 1000)
    rules(src, "*.bin", "*.log", "cache/", "weights/", "data/")
    put(src, "pkg/__init__.py", "pkg/a.py", "data/x.csv", "top.bin", "pkg/tables/names.txt")
    put(src, "pkg/tables/small.bin", "pkg/train.log", "pkg/cache/a", "pkg/cache/deep/b.log", "pkg/cache/deep/c", text="x" * 100)
    put(src, "pkg/tables/large.bin", "pkg/weights/w", text="x" * 1001)
    tree = look_twice(src)
    assert files(tree)[1:] == [
        "pkg/__init__.py", "pkg/a.py", "pkg/cache/a", "pkg/cache/deep/c", "pkg/tables/names.txt", "pkg/tables/small.bin",
    ]  # fmt: skip
    assert reported(tree) == ["pkg/tables/large.bin", "pkg/weights"]
    sizes = {row.path: row.size for row in tree.excluded if row.why == "git-ignored"}
    assert sizes == {
        "data": 1,
        "top.bin": 1,
        "pkg/train.log": 100,
        "pkg/cache": 100,
        "pkg/tables/large.bin": 1001,
        "pkg/weights": 1001,
    }
    assert "pkg/weights/w" in kept(src, include=["pkg/weights"])
    assert reported(look_twice(src, include=["pkg/weights", "large.bin"])) == []
    assert "pkg/cache/a" not in kept(src, exclude=["pkg/cache"])


def test_ignored_metadata_of_an_editable_project_is_kept(src: Path) -> None:
    rules(src, "*.egg-info/")
    put(src, "src/pkg.egg-info/PKG-INFO", "src/pkg.egg-info/entry_points.txt", "src/pkg/__init__.py")
    assert sorted(kept(src)) == ["src/pkg.egg-info/PKG-INFO", "src/pkg.egg-info/entry_points.txt", "src/pkg/__init__.py"]


def test_files_with_private_names_are_kept_only_with_include(src: Path) -> None:
    names = ["local_settings.py", "secrets.yaml", "credentials.json", "my_token.txt", "id_rsa", "server.pem", "aws_secret_key.py"]
    rules(src, *names)
    put(src, "app/__init__.py", "pyproject.toml", *(f"app/{name}" for name in names), *names)
    tree = look_twice(src)
    assert files(tree)[1:] == ["app/__init__.py", "pyproject.toml"]
    assert set(reported(tree)) >= {f"app/{name}" for name in names}
    assert "app/local_settings.py" in kept(src, include=["app/local_settings.py"])


def test_ignored_directories_that_python_can_import_from_are_reported(src: Path) -> None:
    rules(src, "gen/", "libs/", "out/", "build/")
    put(
        src,
        "gen/foo_pb2.py",
        "libs/requests/__init__.py",
        "out/a.csv",
        "out/wandb/run/files/train.py",
        "build/lib/pkg/__init__.py",
    )
    tree = look_twice(src)
    assert files(tree) == [".gitignore"]
    assert reported(tree) == ["gen", "libs"]
    assert tree.ignored == ("build", "gen", "libs", "out")


def test_further_ignored_paths_are_only_counted(src: Path) -> None:
    rules(src, "gen_*.py")
    put(src, "tools/run.py", *(f"tools/gen_{number:02d}.py" for number in range(12)))
    tree = look_twice(src)
    assert len(reported(tree)) == 10
    assert "git ignores 2 more paths that Python may need" in tree.problems


def test_the_root_of_the_source_does_not_count_as_a_package(src: Path) -> None:
    rules(src, "data/")
    put(src, "__init__.py", "data/x.csv")
    assert kept(src) == ["__init__.py"]


def test_an_environment_in_an_ignored_directory_is_left_out(src: Path) -> None:
    rules(src, "envs/")
    make_venv(BASE, src / "envs" / "a")
    put(src, "envs/a/lib/x.cpython-311-x86_64-linux-gnu.so", "envs/conda-meta/history")
    tree = look_twice(src)
    assert files(tree) == [".gitignore"]
    assert reported(tree) == []


def test_imported_returns_patterns_for_ignored_paths_of_sys_path(src: Path) -> None:
    rules(src, "build/", "li[b]s/", "libs/", "envs/", "other/")
    put(src, "build/lib/mod.py", "build/lib/data.txt", "build/x.o", "libs/a/__init__.py", "other/b.py", "train.py")
    make_venv(BASE, src / "envs" / "a")
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    tree = look(src)
    paths = [
        src,
        src / "build" / "lib",
        src / "libs",
        src / "gone",
        src / "envs" / "a" / site,
        Path("/usr/lib"),
        src / "train.py",
    ]
    more = imported(tree, paths)
    assert more == ("/build/lib", "/libs")
    again = look_twice(src, include=more)
    assert files(again) == [".gitignore", "build/lib/data.txt", "build/lib/mod.py", "libs/a/__init__.py", "train.py"]
    assert reported(again) == ["other"]
    assert imported(tree, paths, without=[src / "libs"]) == ("/build/lib",)
    assert imported(look(src.parent), paths) == ("/src/build/lib", "/src/libs")
    rules(src, "*.zip", "dist/")
    put(src, "code.zip", "dist/more.zip", "dist/other.zip")
    more = imported(look(src), [src / "code.zip", src / "dist" / "more.zip", src / "train.py"])
    assert more == ("/code.zip", "/dist/more.zip")
    assert {"code.zip", "dist/more.zip"} <= set(kept(src, include=more))
    assert "dist/other.zip" not in kept(src, include=more)


def test_the_pattern_of_a_path_matches_only_that_path(src: Path) -> None:
    rules(src, "a*/")
    put(src, "a[1]*/m.py", "a1x/m.py")
    more = imported(look(src), [src / "a[1]*"])
    assert kept(src, include=more) == ["a[1]*/m.py"]


def test_a_file_with_an_undecodable_name_can_be_excluded(src: Path) -> None:
    rules(src, "data/")
    put(src, "train.py", "data/x")
    (src / "data" / "bad\udcff.bin").write_text("x")
    (src / "bad\udcff.txt").write_text("x")
    tree = look_twice(src, exclude=["bad*.txt"])
    assert files(tree) == [".gitignore", "train.py"]
    assert left_out(tree)["bad?.txt"] == "--exclude"


def test_small_ignored_data_is_listed_separately_from_the_code(src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = "data/\n*.bin\n*.log\nbig/\nbuild/\n.env\nsecret.yaml\nlink\nclosed/\nmany/\n"
    put(src, ".gitignore", text=ignored)
    put(src, "train.py", "prepared/keep.py", "prepared/a.bin", "data/deep/x.csv", "data/tokenizer.json", "data/.env", "run.log")
    put(
        src,
        "build/lib/pkg/__init__.py",
        "build/foo.egg-info/PKG-INFO",
        "secret.yaml",
        "closed/x",
        *(f"many/{n}" for n in range(30)),
    )
    put(src, "big/y", text="y" * 2000)
    put(src, "data/__pycache__/x.pyc", "data/.venv/pyvenv.cfg", "data/.venv/lib/x.py", "data/.git/config")
    (src / "link").symlink_to("/usr")
    (src / "broken.bin").symlink_to("/no/such")
    os.mkfifo(src / "data" / "pipe")
    (src / "closed").chmod(0)
    monkeypatch.setattr("repro_env.environment.source.exclusions.MANY", 20)
    plain, live = look(src, facts=False), look(src, facts=False, data=1000)
    assert plain.data == ()
    assert live.found == plain.found, "the code differs"
    expected = {
        "build/lib/pkg/__init__.py",
        "broken.bin",
        "build/foo.egg-info/PKG-INFO",
        "data/deep/x.csv",
        "data/tokenizer.json",
        "link",
        "prepared/a.bin",
    }
    expected |= {"closed/x"} if os.geteuid() == 0 else set()
    assert {entry.path for entry in live.data if entry.kind != "dir"} == expected
    assert {"data", "data/deep", "build", "build/lib"} <= {entry.path for entry in live.data if entry.kind == "dir"}
    (src / "closed").chmod(0o755)
    # The smallest paths are included first, and each is either complete or not included.
    assert {entry.path for entry in look(src, facts=False, data=2).data if entry.kind != "dir"} <= {
        "broken.bin",
        "closed/x",
        "link",
        "prepared/a.bin",
    }


def test_a_survey_counts_code_and_data_outside_of_environments_and_caches(tmp_path: Path) -> None:
    put(
        tmp_path,
        "tables/a.csv",
        "deep/pkg/module.py",
        ".venv/pyvenv.cfg",
        ".venv/lib/b.so",
        "node_modules/c.js",
        ".git/d",
        text="xy",
    )
    put(tmp_path, "pkg/__pycache__/e.pyc", text="xy")
    complete = survey(str(tmp_path))
    assert (complete.files, complete.size) == (2, 4)
    assert (complete.has_code, complete.has_extension, complete.is_incomplete) == (False,) * 3


def test_a_survey_recognizes_code_and_libraries(tmp_path: Path) -> None:
    put(tmp_path, "pkg/__init__.py", "lib/libx.so.1")
    plain = survey(str(tmp_path))
    assert (plain.has_code, plain.has_extension) == (True, False)
    put(tmp_path, "lib/x.abi3.so")
    assert survey(str(tmp_path)).has_extension
    assert survey(str(tmp_path / "missing")).is_incomplete
