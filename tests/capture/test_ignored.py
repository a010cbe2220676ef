"""What git ignores and Python needs: kept by its place, or named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from repro_env.capture import ignored
from repro_env.capture.source import CAP, SourceTree, imported, look
from tests.capture.conftest import Git, make_venv
from tests.capture.test_python import BASE
from tests.capture.test_source import files, left_out, put


@pytest.fixture
def src(tmp_path: Path, git: Git) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    git(folder, "init")
    return folder


def rules(root: Path, *lines: str) -> None:
    (root / ".gitignore").write_text("\n".join(lines) + "\n")


def seen(root: Path, **options: object) -> SourceTree:
    """Looked at as a capture does, and as a run does: both have to find the same."""
    tree = look(root, **options)  # type: ignore[arg-type]
    assert look(root, facts=False, data=CAP, **options).found == tree.found  # type: ignore[arg-type]
    assert not any(path == ".git" or path.startswith(".git/") for path in files(tree))
    return tree


def kept(root: Path, **options: object) -> list[str]:
    return [path for path in files(seen(root, **options)) if path != ".gitignore"]


def named(tree: SourceTree) -> list[str]:
    return [line.partition(" is ignored by git")[0] for line in tree.problems if " is ignored by git" in line]


def test_generated_modules_of_a_package(src: Path) -> None:
    rules(src, "_version.py", "_build/", "*_pb2.py", "*.pyc")
    put(src, "src/pkg/__init__.py", "src/pkg/_version.py", "src/pkg/deep/a_pb2.py", "src/pkg/_build/__init__.py")
    put(src, "src/pkg/_build/x.py", "src/pkg/_build/tables.json", "src/pkg/compiled.pyc", "src/pkg/left.pyc", "src/pkg/left.py")
    put(src, "tools/_version.py", "tools/run.py")
    tree = seen(src)
    assert files(tree)[1:] == [
        "src/pkg/__init__.py",
        "src/pkg/_build/__init__.py",
        "src/pkg/_build/tables.json",
        "src/pkg/_build/x.py",
        "src/pkg/_version.py",
        "src/pkg/compiled.pyc",
        "src/pkg/deep/a_pb2.py",
        "src/pkg/left.py",
        "tools/run.py",
    ]
    assert named(tree) == ["tools/_version.py"]
    assert left_out(tree) == {
        ".git": "the version control's own store", "src/pkg/left.pyc": "git-ignored", "tools/_version.py": "git-ignored",
    }  # fmt: skip


@pytest.mark.parametrize("place", ["", "src/"])
@pytest.mark.parametrize("mark", ["pyproject.toml", "setup.py", "setup.cfg"])
def test_single_modules_of_a_project(src: Path, place: str, mark: str) -> None:
    rules(src, "_version.py")
    put(src, f"{place}_version.py", f"{place}module.py")
    assert kept(src) == [f"{place}module.py"]
    put(src, mark)
    assert kept(src) == sorted([f"{place}_version.py", f"{place}module.py", mark])


def test_extensions(src: Path) -> None:
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
    assert left_out(seen(src))["build"] == "git-ignored"


def test_data_of_a_package(src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "DATA", 1000)
    monkeypatch.setattr("repro_env.capture.rules.DATA", 1000)
    rules(src, "*.bin", "*.log", "cache/", "weights/", "data/")
    put(src, "pkg/__init__.py", "pkg/a.py", "data/x.csv", "top.bin", "pkg/tables/names.txt")
    put(src, "pkg/tables/small.bin", "pkg/train.log", "pkg/cache/a", "pkg/cache/deep/b.log", "pkg/cache/deep/c", text="x" * 100)
    put(src, "pkg/tables/large.bin", "pkg/weights/w", text="x" * 1001)
    tree = seen(src)
    assert files(tree)[1:] == [
        "pkg/__init__.py", "pkg/a.py", "pkg/cache/a", "pkg/cache/deep/c", "pkg/tables/names.txt", "pkg/tables/small.bin",
    ]  # fmt: skip
    assert named(tree) == ["pkg/tables/large.bin", "pkg/weights"]
    sizes = {one.path: one.size for one in tree.excluded if one.why == "git-ignored"}
    assert sizes == {
        "data": 1,
        "top.bin": 1,
        "pkg/train.log": 100,
        "pkg/cache": 100,
        "pkg/tables/large.bin": 1001,
        "pkg/weights": 1001,
    }
    assert "pkg/weights/w" in kept(src, include=["pkg/weights"])
    assert named(seen(src, include=["pkg/weights", "large.bin"])) == []
    assert "pkg/cache/a" not in kept(src, exclude=["pkg/cache"])


def test_what_an_editable_project_says_of_itself(src: Path) -> None:
    rules(src, "*.egg-info/")
    put(src, "src/pkg.egg-info/PKG-INFO", "src/pkg.egg-info/entry_points.txt", "src/pkg/__init__.py")
    assert sorted(kept(src)) == ["src/pkg.egg-info/PKG-INFO", "src/pkg.egg-info/entry_points.txt", "src/pkg/__init__.py"]


def test_private_names_are_never_kept_unasked(src: Path) -> None:
    names = ["local_settings.py", "secrets.yaml", "credentials.json", "my_token.txt", "id_rsa", "server.pem", "aws_secret_key.py"]
    rules(src, *names)
    put(src, "app/__init__.py", "pyproject.toml", *(f"app/{name}" for name in names), *names)
    tree = seen(src)
    assert files(tree)[1:] == ["app/__init__.py", "pyproject.toml"]
    assert set(named(tree)) >= {f"app/{name}" for name in names}
    assert "app/local_settings.py" in kept(src, include=["app/local_settings.py"])


def test_folders_that_python_can_import_from_are_named(src: Path) -> None:
    rules(src, "gen/", "libs/", "out/", "build/")
    put(
        src,
        "gen/foo_pb2.py",
        "libs/requests/__init__.py",
        "out/a.csv",
        "out/wandb/run/files/train.py",
        "build/lib/pkg/__init__.py",
    )
    tree = seen(src)
    assert files(tree) == [".gitignore"]
    assert named(tree) == ["gen", "libs"]
    assert tree.ignored == ("build", "gen", "libs", "out")


def test_many_are_named_and_counted(src: Path) -> None:
    rules(src, "gen_*.py")
    put(src, "tools/run.py", *(f"tools/gen_{number:02d}.py" for number in range(12)))
    tree = seen(src)
    assert len(named(tree)) == 10
    assert "and 2 more that git ignores and Python may need" in tree.problems


def test_a_package_at_the_root_makes_no_package_of_everything(src: Path) -> None:
    rules(src, "data/")
    put(src, "__init__.py", "data/x.csv")
    assert kept(src) == ["__init__.py"]


def test_an_environment_in_an_ignored_folder(src: Path) -> None:
    rules(src, "envs/")
    make_venv(BASE, src / "envs" / "a")
    put(src, "envs/a/lib/x.cpython-311-x86_64-linux-gnu.so", "envs/conda-meta/history")
    tree = seen(src)
    assert files(tree) == [".gitignore"]
    assert named(tree) == []


def test_what_is_on_the_path_is_brought_in(src: Path) -> None:
    rules(src, "build/", "li[b]s/", "libs/", "envs/", "other/")
    put(src, "build/lib/mod.py", "build/lib/data.txt", "build/x.o", "libs/a/__init__.py", "other/b.py", "train.py")
    make_venv(BASE, src / "envs" / "a")
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    tree = look(src)
    folders = [
        src,
        src / "build" / "lib",
        src / "libs",
        src / "gone",
        src / "envs" / "a" / site,
        Path("/usr/lib"),
        src / "train.py",
    ]
    more = imported(tree, folders)
    assert more == ("/build/lib", "/libs")
    again = seen(src, include=more)
    assert files(again) == [".gitignore", "build/lib/data.txt", "build/lib/mod.py", "libs/a/__init__.py", "train.py"]
    assert named(again) == ["other"]
    assert imported(tree, folders, without=[src / "libs"]) == ("/build/lib",)
    assert imported(look(src.parent), folders) == ("/src/build/lib", "/src/libs")
    rules(src, "*.zip", "dist/")
    put(src, "code.zip", "dist/more.zip", "dist/other.zip")
    more = imported(look(src), [src / "code.zip", src / "dist" / "more.zip", src / "train.py"])
    assert more == ("/code.zip", "/dist/more.zip")
    assert {"code.zip", "dist/more.zip"} <= set(kept(src, include=more))
    assert "dist/other.zip" not in kept(src, include=more)


def test_a_pattern_of_a_path_matches_just_that(src: Path) -> None:
    rules(src, "a*/")
    put(src, "a[1]*/m.py", "a1x/m.py")
    more = imported(look(src), [src / "a[1]*"])
    assert kept(src, include=more) == ["a[1]*/m.py"]


def test_a_name_that_is_no_text_can_be_left_out(src: Path) -> None:
    rules(src, "data/")
    put(src, "train.py", "data/x")
    (src / "data" / "bad\udcff.bin").write_text("x")
    (src / "bad\udcff.txt").write_text("x")
    tree = seen(src, exclude=["bad*.txt"])
    assert files(tree) == [".gitignore", "train.py"]
    assert left_out(tree)["bad?.txt"] == "--exclude"


def test_a_live_run_sees_small_ignored_data_apart_from_the_code(src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr("repro_env.capture.rules.MANY", 20)
    plain, live = look(src, facts=False), look(src, facts=False, data=1000)
    assert plain.data == ()
    assert live.found == plain.found, "the code is the same"
    expected = {
        "build/lib/pkg/__init__.py",
        "build/foo.egg-info/PKG-INFO",
        "data/deep/x.csv",
        "data/tokenizer.json",
        "link",
        "prepared/a.bin",
    }
    expected |= {"closed/x"} if os.geteuid() == 0 else set()
    assert {one.path for one in live.data if one.kind != "dir"} == expected
    assert {"data", "data/deep", "build", "build/lib"} <= {one.path for one in live.data if one.kind == "dir"}
    (src / "closed").chmod(0o755)
    # The smallest come first, and each is complete or left out.
    assert {one.path for one in look(src, facts=False, data=2).data if one.kind != "dir"} <= {
        "closed/x",
        "link",
        "prepared/a.bin",
    }
