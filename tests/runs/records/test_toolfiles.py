"""Outputs that tools of the host would execute are distinguished from results."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.runs.records import toolfiles

EXECUTED = [
    ".git/hooks/pre-commit",
    "sub/.git/config",
    ".GIT/hooks/post-merge",
    ".git",
    "hooks/pre-push",
    "githooks/commit-msg",
    ".githooks/x",
    ".husky/pre-commit",
    ".github/workflows/ci.yml",
    ".gitlab-ci.yml",
    ".pre-commit-config.yaml",
    ".vscode/tasks.json",
    ".idea/workspace.xml",
    ".envrc",
    "sub/.envrc",
    ".env",
    ".bashrc",
    ".pdbrc",
    ".npmrc",
    ".venv/bin/python",
    "node_modules/.bin/eslint",
    "out/.devcontainer/devcontainer.json",
    ".hydra/.envrc",
    "Makefile",
    "sub/GNUmakefile",
    "conftest.py",
    "tests/conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "lib/x.pth",
    "__pycache__/train.cpython-311.pyc",
    "pyproject.toml",
    "setup.py",
    "tox.ini",
    "package.json",
    "Dockerfile",
    "compose.yaml",
    "env/pyvenv.cfg",
    "lefthook.yml",
    "json/__init__.py",
    "repro-env.ignore",
    "/home/ann/.bashrc",
    "/code/.git/config",
]
RESULTS = [
    "weights.pt",
    "out/metrics.json",
    "checkpoints/last.ckpt",
    ".hydra/config.yaml",
    "outputs/1/.hydra/overrides.yaml",
    ".cache/hub/x.bin",
    "model/config.json",
    "work_dirs/config.py",
    "notes.md",
    "out/pre-trained.pt",
    "pre-commit.txt",
    "make.log",
    "data.csv",
    "run.sh",
    "bin/tool",
    "/home/ann/.cache/hub/x",
    "/home/ann/.config/x/r.json",
]


@pytest.mark.parametrize("path", EXECUTED)
def test_files_of_tools_are_not_copied(tmp_path: Path, path: str) -> None:
    assert toolfiles.reason(path, tmp_path / path.lstrip("/"))


@pytest.mark.parametrize("path", RESULTS)
def test_results_are_copied(tmp_path: Path, path: str) -> None:
    assert not toolfiles.reason(path, tmp_path / path.lstrip("/"))


def test_the_place_of_the_copy_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "tools").symlink_to("bin")
    assert not toolfiles.reason("bin/ls", tmp_path / "bin/ls")
    monkeypatch.setenv("PATH", f"/usr/bin:{tmp_path}/tools")
    assert "on PATH" in toolfiles.reason("bin/ls", tmp_path / "bin/ls")
    assert "on PATH" in toolfiles.reason("ls", tmp_path / "bin/ls")

    (tmp_path / "env/lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").touch()
    assert "Python environment" in toolfiles.reason("torch.so", tmp_path / "env/lib/python3.11/site-packages/torch.so")
    assert "Git" in toolfiles.reason("weights.pt", tmp_path / ".git/weights.pt")


def test_a_new_module_beside_code_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert "import" in toolfiles.reason("json.py", tmp_path / "json.py")
    assert not toolfiles.reason("train.py", tmp_path / "train.py")  # overwritten only with --force
    assert not toolfiles.reason("work_dirs/config.py", tmp_path / "work_dirs/config.py")
