"""The content of the snapshot, the reasons why files are left out, and errors."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.environment.source.selection import look
from repro_env.schema import codec
from repro_env.schema.environment import Excluded
from repro_env.schema.errors import SourceError, UsageError
from tests.environment.conftest import Git, make_venv
from tests.environment.python.environments import BASE
from tests.environment.source.projects import files, left_out, put

HF = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"


def refusal(root: Path, **options: object) -> str:
    with pytest.raises(SourceError) as caught:
        look(root, **options)  # type: ignore[arg-type]
    return f"{caught.value} ({caught.value.hint})"


@pytest.fixture
def src(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    return tmp_path / "src"


def test_lists_a_directory(src: Path) -> None:
    put(src, "train.py", "lib/a.py", text="12345")
    (src / "empty").mkdir()
    (src / "train.py").chmod(0o755)
    tree = look(src)
    assert [(entry.path, entry.kind, entry.executable) for entry in tree.found] == [
        ("empty", "dir", False),
        ("lib", "dir", False),
        ("lib/a.py", "file", False),
        ("train.py", "file", True),
    ]
    assert (tree.root, tree.size, tree.git, tree.excluded, tree.problems) == (src, 10, None, (), ())


def test_an_empty_directory_is_valid_and_a_missing_one_is_an_error(src: Path) -> None:
    assert look(src).found == ()
    assert "is not a directory" in refusal(src / "gone")
    put(src, "file")
    assert "is not a directory" in refusal(src / "file")


def test_caches_environments_and_special_files_are_left_out(src: Path) -> None:
    make_venv(BASE, src / ".venv")
    make_venv(BASE, src / "deep" / "my env")
    put(src, "conda/conda-meta/history", "conda/bin/python")
    put(src, "pkg/__pycache__/a.pyc", ".mypy_cache/x", ".ipynb_checkpoints/n.ipynb", "node_modules/m/index.js", ".tox/t")
    put(src, "store/CACHEDIR.TAG", "store/layers/x", "pkg/a.py", ".env", ".env.local", "pkg/.env", ".envrc", ".git/HEAD")
    (src / "link").symlink_to(".venv")
    os.mkfifo(src / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        cwd = Path.cwd()
        os.chdir(src)  # the path of a socket is short
        try:
            sock.bind("socket")
        finally:
            os.chdir(cwd)
        tree = look(src)
    assert files(tree) == [".envrc", "pkg/a.py"]
    assert left_out(tree) == {
        ".env": "may hold secrets",
        ".env.local": "may hold secrets",
        ".git": "version control data",
        ".ipynb_checkpoints": "a cache",
        ".mypy_cache": "a cache",
        ".tox": "a cache",
        ".venv": "a virtual environment",
        "conda": "a conda environment",
        "deep/my env": "a virtual environment",
        "link": "a virtual environment",
        "node_modules": "a cache",
        "pipe": "a pipe, socket or device",
        "pkg/.env": "may hold secrets",
        "pkg/__pycache__": "a cache",
        "socket": "a pipe, socket or device",
        "store": "a cache",
    }


def test_an_earlier_capture_is_left_out(src: Path) -> None:
    put(src, "train.py", "old/spec.json", "old/blobs/0123", "specs/spec.json")
    tree = look(src)
    assert files(tree) == ["specs/spec.json", "train.py"]
    assert left_out(tree) == {"old": "an earlier capture"}


def test_an_image_layout_is_left_out(src: Path) -> None:
    put(src, "train.py", "image/oci-layout", "image/index.json", "image/blobs/sha256/0123", "notes/oci-layout/x")
    tree = look(src)
    assert files(tree) == ["notes/oci-layout/x", "train.py"]
    assert left_out(tree) == {"image": "an image layout"}


def test_environments_and_caches_are_not_measured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"123")
    for name in (".venv", "__pycache__"):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "pyvenv.cfg").write_bytes(b"home = /usr/bin\n")
        (tmp_path / name / "lib/x.py").write_bytes(b"12345")

    tree = look(tmp_path, exclude=("train.py",))

    assert {row.path: row.size for row in tree.excluded} == {".venv": 0, "__pycache__": 0, "train.py": 3}


def test_a_venv_at_the_root_of_the_source_is_left_out(src: Path) -> None:
    make_venv(BASE, src)
    put(src, "train.py")
    tree = look(src)
    assert [path for path in files(tree) if path != ".gitignore"] == ["train.py"]  # Python 3.13 writes one
    assert "bin" in left_out(tree)


def test_output_directories_of_repro_env_are_not_measured(src: Path) -> None:
    """The output directory does not exist before the first capture, but both captures must have the same result."""
    put(src, "train.py")
    never = (src / "repro", src / "out" / "runs", src.parent / "elsewhere")
    first = look(src, never=never)
    put(src, "repro/spec.json", "repro/blobs/x", "out/runs/1/end.json")
    second = look(src, never=never)
    assert first == second
    assert files(first) == ["train.py"]
    why = "written by repro-env, not measured"
    assert first.excluded == (Excluded(path="out/runs", size=0, why=why), Excluded(path="repro", size=0, why=why))
    put(src, "out/mine.txt")
    assert files(look(src, never=never)) == ["out/mine.txt", "train.py"]


def test_two_captures_are_equal_if_the_repository_tracks_the_output(src: Path, git: Git) -> None:
    make_venv(BASE, src / ".venv")
    put(src, "train.py", "repro/spec.json")
    git(src, "init")
    git(src, "add", "train.py", "repro")
    git(src, "commit", "-m", "x")
    never = (src / "repro", src / "runs")
    first = look(src, never=never)
    put(src, "repro/spec.json", "runs/1/start.json", text="other")
    second = look(src, never=never)
    assert codec.canonical((first.git, first.excluded, first.problems)) == codec.canonical(
        (second.git, second.excluded, second.problems)
    )
    assert first.found == second.found
    assert first.git is not None
    assert first.git.dirty is False


def test_git_ignored_paths_are_left_out(src: Path, git: Git) -> None:
    git(src, "init")
    put(src, ".gitignore", text="*.log\n/data/\nbuild/\n*.so\n")
    put(src, "train.py", "a.log", "data/big.bin", "data/deep/b.bin", "pkg/fast.cpython-311-x86_64-linux-gnu.so", "pkg/plain.so")
    put(
        src,
        "build/lib/x.abi3.so",
        "build/lib/x.o",
        "build/libfoo.so",
        "build/notes/.env",
        "build/v/pyvenv.cfg",
        "build/v/y.abi3.so",
    )
    put(src, "kept/forced.log", "pkg/__init__.py")
    git(src, "add", "-f", "kept/forced.log")
    tree = look(src)
    assert files(tree) == [
        ".gitignore",
        "build/lib/x.abi3.so",
        "build/libfoo.so",
        "kept/forced.log",
        "pkg/__init__.py",
        "pkg/fast.cpython-311-x86_64-linux-gnu.so",
        "pkg/plain.so",
        "train.py",
    ]
    assert "build/v" not in [entry.path for entry in tree.found]
    ignored = {path: why for path, why in left_out(tree).items() if why == "git-ignored"}
    assert set(ignored) == {"a.log", "data", "build"}
    assert {row.path: row.size for row in tree.excluded if row.why == "git-ignored"} == {"a.log": 1, "data": 2, "build": 1}


def test_a_nested_repository_has_its_own_rules(src: Path, git: Git) -> None:
    git(src, "init")
    put(src, "train.py", "sub/code.py", "sub/out.bin")
    put(src, "sub/.gitignore", text="*.bin\n")
    (src / "sub" / ".gitignore").rename(src / "saved")
    git(src / "sub", "init")
    (src / "saved").rename(src / "sub" / ".gitignore")
    put(src, "outer.bin")
    tree = look(src)
    assert files(tree) == ["outer.bin", "sub/.gitignore", "sub/code.py", "train.py"]
    assert left_out(tree)["sub/out.bin"] == "git-ignored"


def test_git_rules_do_not_apply_to_a_source_that_is_ignored_itself(src: Path, git: Git) -> None:
    """For example a home directory under git with the rule `*`, or a scratch directory inside a repository."""
    git(src, "init")
    put(src, ".gitignore", text="scratch/\n")
    put(src, "scratch/deep/train.py", "scratch/train.py")
    for root in (src / "scratch", src / "scratch" / "deep"):
        tree = look(root)
        assert "train.py" in files(tree)
        assert (tree.git, tree.problems) == (None, ())


def test_without_git_a_problem_is_reported(src: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    git(src, "init")
    put(src, "train.py")
    monkeypatch.setenv("PATH", str(src))
    tree = look(src)
    assert files(tree) == ["train.py"]
    assert tree.git is None
    assert any("git is not installed" in problem for problem in tree.problems)


def test_a_broken_repository_is_a_problem(src: Path, git: Git) -> None:
    (src / ".git").write_text("gitdir: gone")
    put(src, "train.py")
    tree = look(src)
    assert files(tree) == ["train.py"]
    assert any("does not name a repository" in problem for problem in tree.problems)


def test_exclude_patterns_match_names_and_paths(src: Path) -> None:
    put(src, "a.csv", "deep/b.csv", "deep/c.txt", "deep/er/d.txt", "data/x", "sub/data/y", "we[i]rd", "top.txt")
    assert files(look(src, exclude=["*.csv"])) == ["data/x", "deep/c.txt", "deep/er/d.txt", "sub/data/y", "top.txt", "we[i]rd"]
    assert files(look(src, exclude=["/data", "*.csv"])) == ["deep/c.txt", "deep/er/d.txt", "sub/data/y", "top.txt", "we[i]rd"]
    assert "sub/data/y" not in files(look(src, exclude=["data/"]))
    assert files(look(src, exclude=["deep/*.txt", "**/data/**", "*.csv"])) == ["deep/er/d.txt", "top.txt", "we[i]rd"]
    assert "we[i]rd" not in files(look(src, exclude=["we[[]i]rd"]))
    assert "a.csv" in files(look(src, exclude=["[!a].csv"]))
    tree = look(src, exclude=["deep"])
    assert Excluded(path="deep", size=3, why="--exclude") in tree.excluded
    assert look(src, exclude=["*.cvs"]).problems == ("no path of the source matches --exclude *.cvs",)
    for bad in ("", ".", "../x", "a/../b", "[z-a]"):
        with pytest.raises(UsageError, match="pattern"):
            look(src, exclude=[bad])


def test_include_adds_paths_that_a_rule_leaves_out(src: Path, git: Git) -> None:
    git(src, "init")
    put(src, ".gitignore", text="data/\n*.bin\n")
    put(
        src,
        "data/vocab.txt",
        "data/big.raw",
        "m.bin",
        "node_modules/m/i.js",
        "node_modules/n.js",
        ".env",
        ".git/x",
        "v/pyvenv.cfg",
    )
    put(src, "v/y.bin", "data/.env")
    assert files(look(src)) == [".gitignore"]
    assert files(look(src, include=["vocab.txt"])) == [".gitignore", "data/vocab.txt"]
    assert files(look(src, include=["data"])) == [".gitignore", "data/big.raw", "data/vocab.txt"]
    assert files(look(src, include=["data"], exclude=["*.raw"])) == [".gitignore", "data/vocab.txt"]
    assert files(look(src, include=["node_modules/m/*.js"])) == [".gitignore", "node_modules/m/i.js"]
    assert files(look(src, include=["*.bin"])) == [".gitignore", "m.bin"]
    assert files(look(src, include=["v"])) == [".gitignore", "v/pyvenv.cfg", "v/y.bin"]
    tree = look(src, include=[".env", ".git", "repro"], never=[src / "repro"])
    assert files(tree) == [".gitignore"]
    assert "--include .env adds nothing" in tree.problems
    sizes = {row.path: row.size for row in look(src, include=["vocab.txt"]).excluded}
    assert sizes["data"] == 1


def test_the_error_for_a_large_source_names_the_largest_paths(src: Path) -> None:
    put(src, "code.py", "assets/deep/model.bin", text="x" * 600)
    put(src, "assets/deep/small", "b.bin", text="x" * 30)
    message = refusal(src, cap=1000)
    assert "assets (0.0 MB), code.py (0.0 MB), b.bin (0.0 MB)" in message
    assert "--data assets" in message
    assert files(look(src, cap=1000, exclude=["assets"])) == ["b.bin", "code.py"]


def test_a_secret_is_an_error(src: Path) -> None:
    put(src, "train.py", text=f"import os\n\nTOKEN = '{HF}'\n")
    message = refusal(src)
    assert "train.py: Hugging Face token (line 3); --exclude 'train.py' or --not-secret 'train.py'" in message
    assert "--exclude 'train.py'" in message
    assert HF not in message
    assert files(look(src, exclude=["train.py"])) == []
    assert files(look(src, facts=False)) == ["train.py"]


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a directory that any user can access."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@contextlib.contextmanager
def plain_user() -> Iterator[None]:
    """Become a user other than root, who may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_error_names_an_unreadable_file_or_directory(shared: Path) -> None:
    put(shared, "train.py", "secret.py", "closed/x")
    (shared / "secret.py").chmod(0)
    with plain_user():
        message = refusal(shared)
    assert f"{shared}/secret.py: cannot be read: Permission denied" in message
    assert "--exclude 'secret.py'" in message
    (shared / "closed").chmod(0o300)
    with plain_user():
        assert "--exclude 'closed'" in refusal(shared, exclude=["secret.py"])
        assert files(look(shared, exclude=["secret.py", "closed"])) == ["train.py"]
    (shared / "closed").chmod(0o700)


def test_symlinks_stay_symlinks_and_outside_targets_are_problems(src: Path) -> None:
    put(src, "a.py", "deep/b.py", "node_modules/x.js")
    (src / "deep" / "near").symlink_to("../a.py")
    (src / "directory").symlink_to("deep")
    (src / "via").symlink_to("directory/b.py")
    (src / "absolute-inside").symlink_to(src / "a.py")
    (src / "dangling").symlink_to("nothing")
    (src / "away").symlink_to("/etc/passwd")
    (src / "up").symlink_to("../outside")
    (src / "excluded").symlink_to("node_modules/x.js")
    tree = look(src)
    assert {entry.path: entry.target for entry in tree.found if entry.kind == "link"} == {
        "absolute-inside": str(src / "a.py"),
        "away": "/etc/passwd",
        "dangling": "nothing",
        "deep/near": "../a.py",
        "directory": "deep",
        "excluded": "node_modules/x.js",
        "up": "../outside",
        "via": "directory/b.py",
    }
    assert [problem.partition(" ")[0] for problem in tree.problems] == ["away", "excluded", "up"]


def test_unprintable_names_are_kept_and_undecodable_names_refused(src: Path) -> None:
    put(src, "new\nline.py", ".env.a\nb", "ünï.py", " spaced ")
    tree = look(src)
    assert files(tree) == [" spaced ", "new\nline.py", "ünï.py"]
    assert left_out(tree) == {".env.a?b": "may hold secrets"}
    (Path(os.fsdecode(os.fsencode(src) + b"/bad\xff"))).write_text("x")
    assert "not valid UTF-8" in refusal(src)


def test_many_excluded_files_are_summed_up_by_directory(src: Path, git: Git) -> None:
    git(src, "init")
    put(src, ".gitignore", text="*.png\n")
    put(
        src, *(f"data/{number % 3}/{number}.png" for number in range(600)), "data/0/a.py", "data/1/a.py", "data/2/a.py", "one.png"
    )
    tree = look(src)
    rows = [row for row in tree.excluded if row.why.startswith("git-ignored")]
    assert [(row.path, row.size, row.why) for row in rows] == [
        ("data", 600, "git-ignored (600 paths in it)"),
        ("one.png", 1, "git-ignored"),
    ]


def test_a_source_in_a_subdirectory_of_a_repository(src: Path, git: Git) -> None:
    git(src, "init")
    put(src, "project/train.py", "project/new.py", "other/x.py")
    put(src, ".gitignore", text="*.log\n")
    put(src, "project/a.log")
    git(src, "add", "project/train.py", ".gitignore")
    git(src, "commit", "-m", "x")
    tree = look(src / "project")
    assert files(tree) == ["new.py", "train.py"]
    assert tree.git is not None
    assert tree.git.untracked == ("new.py",)
    assert left_out(tree) == {"a.log": "git-ignored"}
