"""The files that say what a project needs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from repro_env.capture.requirements import Looked, is_one, look
from repro_env.io.files import walk


def put(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def seen(root: Path) -> Looked:
    return look(root, tuple(walk(root)))


def paths(root: Path) -> list[str]:
    return [one.path for one in seen(root).files]


@pytest.mark.parametrize(
    "path",
    [
        "requirements.txt", "requirements-dev.txt", "requirements_gpu.in", "dev-requirements.txt", "test_requirements.in",
        "constraints.txt", "pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "Pipfile.lock", "poetry.lock", "uv.lock",
        "pdm.lock", "pixi.lock", "pixi.toml", "environment.yml", "environment.yaml", "environment-gpu.yml", "conda-lock.yml",
        "pylock.toml", "pylock.dev.toml", ".python-version", "runtime.txt", "requirements/base.txt", "requirements/dev.in",
        "binder/environment.yml", "envs/environment.yaml", "conda/conda-linux-64.lock",
    ],
)  # fmt: skip
def test_known_by_name_and_place(path: str) -> None:
    assert is_one(path)


@pytest.mark.parametrize(
    "path", ["train.py", "notes.txt", "vendored/setup.py", "tests/requirements/base.txt", "data/train.txt", "envs/notes.txt"]
)
def test_other_files_are_none(path: str) -> None:
    assert not is_one(path)


def test_raw_bytes_sorted(tmp_path: Path) -> None:
    put(tmp_path, **{"requirements.txt": "torch\r\n", "pyproject.toml": "[project]\n", "train.py": "1"})
    looked = seen(tmp_path)
    assert [(one.path, one.sha256) for one in looked.files] == [
        (name, "sha256:" + hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
        for name in ("pyproject.toml", "requirements.txt")
    ]
    assert looked.problems == ()
    (tmp_path / "requirements.txt").write_bytes(b"torch\n")
    assert seen(tmp_path).files[1] != looked.files[1]


def test_includes_are_followed_inside_the_source(tmp_path: Path) -> None:
    put(
        tmp_path,
        **{
            "requirements.txt": "-r ops/base.txt  # the rest\n--constraint=ops/pins.txt\n-cops/more.txt\n  -r requirements.txt\n"
            "# -r commented.txt\n--requirement 'ops/quoted name.txt'\n-e .\nrequests\n--require-hashes\n--index-url https://x\n",
            "ops/base.txt": "-r nested/deep.txt\n-r ../requirements.txt\n",
            "ops/nested/deep.txt": "numpy\n",
            "ops/pins.txt": "numpy==1\n",
            "ops/more.txt": "",
            "ops/quoted name.txt": "",
            "ops/unrelated.txt": "",
            "commented.txt": "",
        },
    )
    assert paths(tmp_path) == [
        "ops/base.txt", "ops/more.txt", "ops/nested/deep.txt", "ops/pins.txt", "ops/quoted name.txt", "requirements.txt",
    ]  # fmt: skip
    assert seen(tmp_path).problems == ()


def test_an_absolute_include_inside_the_source(tmp_path: Path) -> None:
    put(tmp_path, **{"requirements.txt": f"-r {tmp_path}/ops/base.txt\n", "ops/base.txt": ""})
    assert paths(tmp_path) == ["ops/base.txt", "requirements.txt"]


def test_what_is_not_in_the_snapshot_is_named(tmp_path: Path) -> None:
    root = tmp_path / "src"
    put(
        root,
        **{
            "requirements.txt": "-r gone.txt\n-r ../common.txt\n-c https://ann:hunter7secret@example.org/pins.txt?sig=abc\n-r folder\n"
        },
    )
    (root / "folder").mkdir()
    put(tmp_path, **{"shared.txt": ""})
    looked = seen(root)
    assert [one.path for one in looked.files] == ["requirements.txt"]
    assert len(looked.problems) == 4
    assert "requirements.txt includes gone.txt, which is not in the snapshot" in looked.problems
    assert "requirements.txt includes ../common.txt, which is not in the snapshot" in looked.problems
    assert not any("hunter7secret" in line for line in looked.problems)


def test_links_loops_and_files_that_vanish(tmp_path: Path) -> None:
    put(tmp_path, **{"ops/base.txt": "numpy\n", "a/b": ""})
    (tmp_path / "requirements.txt").symlink_to("ops/base.txt")
    (tmp_path / "uv.lock").symlink_to("uv.lock")
    (tmp_path / "setup.cfg").symlink_to("/etc/hostname")
    (tmp_path / "constraints.txt").mkdir()
    assert paths(tmp_path) == ["requirements.txt"]
    assert seen(tmp_path).files[0].sha256 == "sha256:" + hashlib.sha256(b"numpy\n").hexdigest()
    found = tuple(walk(tmp_path))
    (tmp_path / "ops" / "base.txt").unlink()
    assert look(tmp_path, found) == Looked(
        (), ("requirements.txt, which says what the project needs, cannot be read: No such file or directory",)
    )


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe-r x\n\x00-r \x1b[31mred\n")
    looked = seen(tmp_path)
    assert len(looked.files) == 1
    assert all(line.isprintable() for line in looked.problems)
